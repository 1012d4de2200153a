"""Data quality: the tables' expectation suites, their results, and the gate before the export.

expectations/<layer>/<table>.py ── suite() ─┐
a table at a version, cached once ──────────┴─ check ─┬─ ops.expectation_results ── history
                                                      ├─ Data Docs
                                                      └─ gate ── export
"""

import os

os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")  # set before Great Expectations is imported
