"""The progress of queries, as recorded in commits to the tables that they fill."""
