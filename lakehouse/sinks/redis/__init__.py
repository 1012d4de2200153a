"""Export of gold rows to Redis."""
