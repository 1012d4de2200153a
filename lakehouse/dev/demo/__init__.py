"""`lakehouse demo`: run all streams end to end on local services, and check the results."""
