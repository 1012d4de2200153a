"""`lakehouse new stream`, which generates a stream's table or package from files of sample records."""
