"""Formats of records."""
