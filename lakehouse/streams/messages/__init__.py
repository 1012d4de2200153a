"""Formatting and parsing of keys and messages: rows, names, JSON, and raw bytes as text."""
