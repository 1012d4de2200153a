"""Suites of the gold tables."""
