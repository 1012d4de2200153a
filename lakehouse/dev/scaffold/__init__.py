"""`lakehouse new stream`: generate a package with a stream from a file of sample records."""
