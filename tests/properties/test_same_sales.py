"""Totals and notifications are a function of silver: order, cuts and replays do not affect them.

110 cases (106 from Hypothesis, 4 by hand), each in two orders and three cuts; see
tests/properties/copies.py. What arrives out of order is recomputed from silver. Sales and returns,
tombstones, products in two partitions, malformed and late records, amounts with 29 digits, whose totals
exceed their type, and amounts of a billionth.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from lakehouse.settings import Settings
from tests.oracles.sales import Sale, product_sales, sales_notifications
from tests.properties.copies import (
    PIECES,
    Copy,
    Outcome,
    copies_of,
    cut_up,
    fold_copies,
    generated,
)
from tests.properties.strategies import LATE_MS, MONEY, NAMES, NO_MONEY, around_windows
from tests.support import pipeline, verdicts
from tests.support.chance import chance
from tests.support.pipeline import DEAD_LETTERS, Raw
from tests.support.streams import SALES, with_streams

pytestmark = [pytest.mark.cases, pytest.mark.soak]

START_MS = int(pipeline.utc("2026-03-28T22:59:00").timestamp() * 1000)
LANDED = pipeline.utc("2026-03-29T12:00:00")
SILVER, TOTALS, NOTIFICATIONS = "sales_events", "gold.product_sales", "gold.sales_notifications"
NOTIFICATION_KEYS = ("product", "partition", "offset")


class Sold(NamedTuple):
    """A sale as written; without a value, it is a tombstone."""

    product: str
    value: str | None
    at_ms: int
    partition: int


_VALUES = st.one_of(
    MONEY,
    MONEY,
    MONEY.map(lambda number: f"-{number}"),
    st.sampled_from(["0", "-0.0", "2000", "-2000"]),
    st.none(),
    NO_MONEY,
)
_AT = around_windows(60_000).map(lambda ms: START_MS + ms)
_SALES = st.builds(Sold, NAMES | st.just(""), _VALUES, _AT, st.sampled_from([0, 0, 1]))
_OF_ONE_PRODUCT = st.builds(
    Sold,
    st.just("a"),
    st.sampled_from(["1000", "1999.999999999", "0.000000001", "-1500", "2000", None]),
    st.just(START_MS),  # ties in event time
    st.just(0),
)
CASES = st.lists(_SALES, min_size=1, max_size=12) | st.lists(_OF_ONE_PRODUCT, min_size=3, max_size=12)


def up_and_down() -> list[Sold]:
    """Return sales of a product that crosses the threshold four times, once after a tombstone."""
    values = ["2000", "-0.000000001", "1e-9", "-1", "1", None, "1999", "1"]
    return [Sold("a", value, START_MS + number, 0) for number, value in enumerate(values)]


def beyond_and_back() -> list[Sold]:
    """Return sales of a product whose total exceeds decimal(38,9) both ways, recovers, and starts again."""
    much = f"{'9' * 29}.{'9' * 9}"
    values = [much, "1e-9", "-1e-9", "-5", f"-{much}", f"-{much}", "-1", "6", much, "2000", None, "2000"]
    return [Sold("a", value, START_MS + number, 0) for number, value in enumerate(values)]


def moved() -> list[Sold]:
    """Return sales of a product that moves to another partition and back, with a tombstone in each."""
    of_partitions = [("1500", 0, 1), ("600", 1, 2), (None, 1, 4), ("10", 1, 5), ("5", 0, 3), ("1990", 0, 6)]
    of_partitions += [(None, 0, 8), ("1", 1, 7), ("2", 1, 9), ("1998", 1, 9)]
    return [Sold("a", value, START_MS + after_ms, place) for value, place, after_ms in of_partitions]


def refused() -> list[Sold]:
    """Return records with every reason against them, between two good ones."""
    values = ("1", "NaN", '"12"', "1e29", "null", "2")
    return [
        *(Sold("a", value, START_MS, 0) for value in values),
        *(Sold("", value, START_MS, 0) for value in ("1", None)),
        Sold("a", "1", START_MS + LATE_MS, 0),
    ]


def to_raw(copy: str, sold: Sold) -> tuple[str, Raw]:
    product = sold.product and f"{copy}/{sold.product}"
    if sold.value is None:
        return SILVER, Raw(None, product.encode(), timestamp_ms=sold.at_ms, partition=sold.partition)
    record = f'{{"product":{json.dumps(product)},"value":{sold.value},"timestamp":{sold.at_ms}}}'
    return SILVER, Raw(record.encode(), product.encode(), partition=sold.partition)


@pytest.fixture(scope="module")
def cases() -> Sequence[Sequence[Sold]]:
    return [*generated(CASES, 106), up_and_down(), beyond_and_back(), moved(), refused()]


@pytest.fixture(scope="module")
def copies(cases: Sequence[Sequence[Sold]]) -> Sequence[Copy[Sold]]:
    return copies_of(cases, seed=4)


@pytest.fixture(scope="module")
def outcome(spark: SparkSession, session_settings: Settings, copies: Sequence[Copy[Sold]]) -> Outcome:
    return fold_copies(spark, session_settings, SALES, copies, to_raw, landed_at=LANDED)


@pytest.fixture(scope="module")
def every_update(spark: SparkSession, session_settings: Settings, cases: Sequence[Sequence[Sold]]) -> Outcome:
    """Return the outcome with the other setting, with every copy in offset order."""
    rng = chance(8)
    copies = [
        Copy(number, f"{number}.{pieces}", cut_up(list(enumerate(case)), pieces, rng))
        for number, case in enumerate(cases)
        for pieces in PIECES
    ]
    settings = with_streams(session_settings, sales={"notify": "every_update"})
    return fold_copies(spark, settings, SALES, copies, to_raw, landed_at=LANDED)


def test_the_cases_are_many_and_of_every_kind(outcome: Outcome, copies: Sequence[Copy[Sold]]) -> None:
    rules = {reason["rule"] for row in outcome.rows[DEAD_LETTERS] for reason in row["reasons"]}

    assert len(copies) == 660
    assert rules >= {"late", "not_json", "wrong_type", "beyond_decimal", "empty_string", "key_empty"}
    assert sum(row["value"] is None for row in outcome.rows[f"silver.{SILVER}"]) > 100
    assert len(outcome.rows[NOTIFICATIONS]) > 100
    assert max(row["crossing"] for row in outcome.rows[NOTIFICATIONS]) >= 4


def test_silver_and_the_dead_letters_are_the_oracles(outcome: Outcome) -> None:
    assert list(outcome.silver_differences()) == []


def test_the_totals_of_every_copy_are_the_oracles(outcome: Outcome) -> None:
    expected = product_sales(outcome.accepted(SILVER, Sale))

    assert verdicts.row_differences(outcome.rows[TOTALS], expected, ("product",)) == []


def test_the_crossings_of_every_copy_are_the_oracles(outcome: Outcome) -> None:
    expected = sales_notifications(outcome.accepted(SILVER, Sale))

    assert verdicts.row_differences(outcome.rows[NOTIFICATIONS], expected, NOTIFICATION_KEYS) == []


def test_the_updates_of_every_copy_are_the_oracles(every_update: Outcome) -> None:
    clean = every_update.accepted(SILVER, Sale)
    expected = sales_notifications(clean, every_update=True)

    assert len(expected) > len(sales_notifications(clean))
    assert verdicts.row_differences(every_update.rows[NOTIFICATIONS], expected, NOTIFICATION_KEYS) == []
