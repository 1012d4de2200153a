"""Access control, request limits and connection deadlines."""
