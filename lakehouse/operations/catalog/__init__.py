"""Access to the lake's tables by name, through Spark SQL, DuckDB or a metastore."""
