"""Suites for the bronze tables."""
