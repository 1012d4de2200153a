"""Access to the lake's tables by name: in Spark SQL, in DuckDB and in a metastore."""
