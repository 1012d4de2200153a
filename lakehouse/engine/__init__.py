"""Move records through the layers exactly once: validation, merging, exports, and the loop that runs them."""
