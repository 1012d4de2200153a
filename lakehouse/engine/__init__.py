"""Moves records through the layers, exactly once: judging, merging, exporting, and the loop that runs it."""
