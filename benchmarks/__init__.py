"""Measurements of the pipeline on this machine, for example with `make bench`."""
