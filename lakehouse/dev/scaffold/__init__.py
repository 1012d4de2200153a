"""`lakehouse new stream`: generates a package with a stream from a file of sample records."""
