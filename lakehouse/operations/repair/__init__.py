"""Repairs of tables: replays and rebuilds."""
