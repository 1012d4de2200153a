"""The progress of queries, as recorded in the commits of the tables that they fill."""
