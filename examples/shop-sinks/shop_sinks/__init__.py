"""Two sinks for gold rows: an HTTP endpoint (`http`), and Parquet files by day (`files`).

    http.py ────── client.py ─ ─ HTTP ─ ─> endpoint.py     at least once, newest version of each row
    files.py ───── folder.py, reading.py                    exactly once, with the position
         └─ comparing.py, keys.py                           for both: the audit, and the keys of [sinks.NAME]

The entry points in pyproject.toml name `http.KIND` and `files.KIND`.
"""
