"""Copies of a whole lake: created and updated while the streams run, and adopted in the original's place."""
