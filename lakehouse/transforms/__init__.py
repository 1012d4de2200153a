"""Expressions and frames from frames: windows, statistics, decimals, timestamps."""
