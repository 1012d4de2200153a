"""Suites of the bronze tables."""
