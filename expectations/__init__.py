"""Great Expectations suites, one per table, in `<layer>/<table>.py`.

Each module's `suite()` returns the table's suite. Expectations shared by several tables are in
`bronze/common.py`, `silver/common.py` and `gold/windows.py`.
"""
