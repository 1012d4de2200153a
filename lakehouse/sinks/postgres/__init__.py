"""Export of gold rows to PostgreSQL."""
