"""What bronze.call_metrics must look like: the records of metricsTopic, one row each, byte for byte.

Nothing is expected of keys and values: what is wrong with them is for silver to say.
"""

from __future__ import annotations

from great_expectations import ExpectationSuite

from expectations.bronze.common import landed
from lakehouse.quality.expectations import make_suite


def suite() -> ExpectationSuite:
    """Return the suite of bronze.call_metrics."""
    return make_suite("bronze.call_metrics", *landed())
