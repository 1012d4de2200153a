"""Copies of a whole lake: create or update one while streams run, and adopt it to replace the original."""
