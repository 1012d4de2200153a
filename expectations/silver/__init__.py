"""Suites of the silver tables."""
