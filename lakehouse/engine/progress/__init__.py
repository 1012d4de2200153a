"""Queries' progress, as recorded in commits to the tables that they fill."""
