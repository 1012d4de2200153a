"""The suite for silver.transactions: users' payments, with amounts above zero."""

from __future__ import annotations

from great_expectations import ExpectationSuite

from expectations.silver.common import accepted
from lakehouse.streams.contract import COORDINATES
from lakehouse.streams.registry import BY_DEFAULT
from lakehouse.streams.suites import make_suite, rows

(SOURCE,) = (one for stream in BY_DEFAULT for one in stream.sources if one.table == "transactions")


def suite() -> ExpectationSuite:
    """Return the suite for silver.transactions."""
    return make_suite(
        "silver.transactions",
        *accepted(SOURCE),
        rows(COORDINATES, "amounts are above zero", "amount > 0"),
    )
