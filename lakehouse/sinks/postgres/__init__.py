"""Gold rows in PostgreSQL."""
