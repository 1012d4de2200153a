"""The suite of silver.transactions: users' payments, with amounts above zero."""

from __future__ import annotations

from great_expectations import ExpectationSuite

from expectations.silver.common import accepted
from lakehouse.streams.builtin.transactions import TRANSACTIONS
from lakehouse.streams.contract import COORDINATES
from lakehouse.streams.suites import make_suite, rows


def suite() -> ExpectationSuite:
    """Return the suite of silver.transactions."""
    return make_suite(
        "silver.transactions",
        *accepted(TRANSACTIONS.sources[0]),
        rows(COORDINATES, "amounts are above zero", "amount > 0"),
    )
