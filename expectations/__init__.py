"""What every table must look like: one suite of Great Expectations a table, `<layer>/<table>.py`.

Each module's `suite()` returns the suite of the table; what several tables have in common stands once, in
`bronze/common.py`, `silver/common.py` and `gold/windows.py`.
"""
