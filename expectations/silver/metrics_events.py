"""The suite for silver.metrics_events: measurements with finite values."""

from __future__ import annotations

from great_expectations import ExpectationSuite

from expectations.silver.common import accepted
from lakehouse.streams.contract import COORDINATES
from lakehouse.streams.registry import BY_DEFAULT
from lakehouse.streams.suites import make_suite, rows

(SOURCE,) = (one for stream in BY_DEFAULT for one in stream.sources if one.table == "metrics_events")


def suite() -> ExpectationSuite:
    """Return the suite for silver.metrics_events."""
    return make_suite(
        "silver.metrics_events",
        *accepted(SOURCE),
        rows(COORDINATES, "values are finite", "NOT isnan(value) AND abs(value) < double('infinity')"),
    )
