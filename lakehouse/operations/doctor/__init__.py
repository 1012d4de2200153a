"""Checks of an installation and its permissions, each with a remedy."""
