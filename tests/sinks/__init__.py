"""Sinks, each against a real server."""
