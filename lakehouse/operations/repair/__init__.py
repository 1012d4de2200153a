"""Repair tables: replay, discard or resolve dead letters, and rebuild silver or gold."""
