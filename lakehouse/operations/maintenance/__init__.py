"""Maintenance: merge small files, remove old files, commits and fold state, and apply retention."""
