"""Tools for testing a stream with literal records, for use in the package that defines the stream.

If lakehouse is installed, pytest finds the fixtures in `lakehouse.dev.pytest_plugin`:

    def test_amounts_add_up(case):
        case(ORDERS, [{"userId": "ann", "amount": 2}], gold=[{"user_id": "ann", "total": 2}])

    def test_neither_order_nor_cuts_show(assert_same_gold):
        assert_same_gold(ORDERS, [{"userId": "ann", "amount": amount} for amount in range(1, 9)])

`AssertKept` tests a store that a package adds (`lakehouse.sinks`), with the fixture `assert_kept`.

`declared` returns the streams in a `lakehouse.toml`, which can be tested in the same way. For other test
runners, this package provides the classes behind the fixtures, which take a Spark session.
"""

from lakehouse.common.record_lines import Record
from lakehouse.testing.cases import Case, Outcome
from lakehouse.testing.declared import declared
from lakehouse.testing.same_gold import SameGold
from lakehouse.testing.session import small_session
from lakehouse.testing.stores import PROMISES, AssertKept, StoreUnderTest

__all__ = [
    "PROMISES",
    "AssertKept",
    "Case",
    "Outcome",
    "Record",
    "SameGold",
    "StoreUnderTest",
    "declared",
    "small_session",
]
