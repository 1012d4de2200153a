"""How far queries have read, as recorded in the commits of the tables that they fill."""
