"""Checks of an installation and its permissions. Each check has a remedy."""
