"""What `lakehouse new stream` writes: a package with a stream, guessed from a file of sample records."""
