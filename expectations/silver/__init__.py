"""Suites for the silver tables."""
