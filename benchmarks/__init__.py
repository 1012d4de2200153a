"""Measurements on this machine: `make bench`."""
