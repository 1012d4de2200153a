"""`lakehouse new stream`, which generates a stream's package from a file of sample records."""
