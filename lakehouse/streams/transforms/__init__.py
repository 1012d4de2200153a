"""Transformations of columns and frames: windows, statistics, decimals."""
