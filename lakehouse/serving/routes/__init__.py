"""The routes of the REST API, with one module per group."""
