"""Repair tables: replays, rebuilds and resolved letters."""
