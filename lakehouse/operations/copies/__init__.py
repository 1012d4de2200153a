"""Copies of a whole lake: create and update them while streams run, and adopt one to replace the original."""
