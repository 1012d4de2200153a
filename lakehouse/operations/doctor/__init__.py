"""Check an installation and its permissions, and suggest a remedy for every problem."""
