"""Checks of an installation and its permissions, with a remedy for every problem."""
