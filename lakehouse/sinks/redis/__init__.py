"""Gold rows in Redis."""
