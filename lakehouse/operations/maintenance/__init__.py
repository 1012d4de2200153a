"""Maintenance: merges small files, removes old files, commits and fold state, and applies retention."""
