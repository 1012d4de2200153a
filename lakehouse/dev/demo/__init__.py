"""`lakehouse demo`, which runs all streams end to end on local services and checks the results."""
