"""Great Expectations suites. The suite for a table is in `<layer>/<table>.py`.

Each of these modules has a function `suite()` that returns the suite. Expectations that several tables share
are in `bronze/common.py`, `silver/common.py` and `gold/windows.py`.
"""
