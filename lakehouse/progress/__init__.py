"""How far queries have read, as the commits of the tables that they fill say."""
