"""Repair tables: replay, discard or resolve dead letters, and rebuild silver or gold."""

MOST_TAKEN_AWAY = 0.2
"""The largest share of a table's rows that a rebuild of gold deletes without `force`."""
