"""Suites for the gold tables."""
