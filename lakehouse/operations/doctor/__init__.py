"""Checks of an installation and of its rights, each with a remedy."""
