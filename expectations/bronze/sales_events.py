"""What bronze.sales_events must look like: the records of sales-events-v1, one row each, byte for byte.

Nothing is expected of keys and values: what is wrong with them is for silver to say.
"""

from __future__ import annotations

from great_expectations import ExpectationSuite

from expectations.bronze.common import landed
from lakehouse.quality.expectations import make_suite


def suite() -> ExpectationSuite:
    """Return the suite of bronze.sales_events."""
    return make_suite("bronze.sales_events", *landed())
