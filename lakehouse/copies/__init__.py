"""Copies of a whole lake in another place: made and brought up to date while the streams run, and adopted."""
