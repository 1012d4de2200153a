"""What a user spent in five minutes is a function of silver: neither order nor cuts affect it.

110 cases, each in two orders and three cuts; see tests/properties/copies.py. Edges of windows, malformed,
late and non-positive amounts, amounts with 29 digits, whose totals exceed their type, and amounts of a
billionth, all to the last digit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from lakehouse.settings import Settings
from tests.oracles.transactions import Transaction, user_transactions_5m
from tests.properties.copies import Copy, Outcome, copies_of, fold_copies, generated
from tests.properties.strategies import LATE_MS, MONEY, NAMES, NO_MONEY, around_windows
from tests.support import pipeline, verdicts
from tests.support.pipeline import DEAD_LETTERS, Raw
from tests.support.streams import TRANSACTIONS

pytestmark = [pytest.mark.cases, pytest.mark.soak]

START_MS = int(pipeline.utc("2026-03-28T22:55:00").timestamp() * 1000)
LANDED = pipeline.utc("2026-03-29T12:00:00")
SILVER, GOLD = "transactions", "gold.user_transactions_5m"


class Spent(NamedTuple):
    """A transaction as written."""

    user: str
    amount: str
    at_ms: int
    partition: int


_AMOUNTS = st.one_of(MONEY, MONEY, MONEY, st.sampled_from(["0", "-0.0", "-1e-9", "-1000"]), NO_MONEY)
_AT = around_windows(300_000).map(lambda ms: START_MS + ms)
_SPENT = st.builds(Spent, NAMES | st.just(""), _AMOUNTS, _AT, st.sampled_from([0, 1]))
_IN_ONE_WINDOW = st.builds(
    Spent, st.just("a"), MONEY, st.sampled_from([START_MS, START_MS + 299_999]), st.just(0)
)
CASES = st.lists(_SPENT, min_size=1, max_size=12) | st.lists(_IN_ONE_WINDOW, min_size=2, max_size=12)


def to_raw(copy: str, spent: Spent) -> tuple[str, Raw]:
    user = spent.user and f"{copy}/{spent.user}"
    record = f'{{"userId":{json.dumps(user)},"amount":{spent.amount},"timestamp":{spent.at_ms}}}'
    return SILVER, Raw(record.encode(), user.encode(), partition=spent.partition)


@pytest.fixture(scope="module")
def copies() -> Sequence[Copy[Spent]]:
    amounts = ('"12.5"', "true", "NaN", "null", "0", "1e29", "7")
    by_hand = [
        *(Spent("a", amount, START_MS, 0) for amount in amounts),
        Spent("", "1", START_MS, 0),
        Spent("a", "1", START_MS + LATE_MS, 0),
    ]
    many = [Spent("a", "1.000000001", START_MS + number, number % 2) for number in range(12)]
    return copies_of([*generated(CASES, 109), many, by_hand], seed=5)


@pytest.fixture(scope="module")
def outcome(spark: SparkSession, session_settings: Settings, copies: Sequence[Copy[Spent]]) -> Outcome:
    return fold_copies(spark, session_settings, TRANSACTIONS, copies, to_raw, landed_at=LANDED)


def test_the_cases_are_many_and_of_every_kind(outcome: Outcome, copies: Sequence[Copy[Spent]]) -> None:
    rules = {reason["rule"] for row in outcome.rows[DEAD_LETTERS] for reason in row["reasons"]}

    assert len(copies) == 666
    assert rules >= {"late", "not_json", "wrong_type", "beyond_decimal", "empty_string", "not_positive"}
    assert max(row["count"] for row in outcome.rows[GOLD]) >= 10


def test_silver_and_the_dead_letters_are_the_oracles(outcome: Outcome) -> None:
    assert list(outcome.silver_differences()) == []


def test_the_windows_of_every_copy_are_the_oracles(outcome: Outcome) -> None:
    expected = user_transactions_5m(outcome.accepted(SILVER, Transaction))

    assert verdicts.row_differences(outcome.rows[GOLD], expected, ("user_id", "window_start")) == []
