"""Repairs of existing tables: replays, rebuilds, and the care of files."""
