"""What silver.call_metrics must look like: events of calls between two users, with metrics or without."""

from __future__ import annotations

from great_expectations import ExpectationSuite

from expectations.silver.common import accepted
from lakehouse.kinds.calls import SOURCES
from lakehouse.quality.expectations import make_suite


def suite() -> ExpectationSuite:
    """Return the suite of silver.call_metrics."""
    return make_suite("silver.call_metrics", *accepted(SOURCES[1]))
