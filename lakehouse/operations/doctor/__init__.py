"""Checks of an installation and its rights, each with what to do."""
