"""Access control, request limits and connection handling."""
