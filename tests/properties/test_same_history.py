"""Pieces of history, loaded in any order and cut anywhere, make the same gold: in a backfill nothing is late.

Each case is a few transactions from 25 years, in two orders and three cuts, loaded in four runs.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from lakehouse.settings import Settings
from tests.oracles.transactions import Transaction, user_transactions_5m
from tests.properties.copies import BATCHES, copies_of, generated
from tests.properties.jar import EACH_SHARE
from tests.properties.strategies import MONEY, NAMES, NO_MONEY
from tests.support import pipeline, verdicts
from tests.support.pipeline import DEAD_LETTERS, Raw
from tests.support.streams import TRANSACTIONS, under

pytestmark = [pytest.mark.cases, pytest.mark.soak, EACH_SHARE]

START_MS = int(pipeline.utc("2001-01-01T00:00:00").timestamp() * 1000)
LANDED = pipeline.utc("2026-11-27T12:00:00")
YEAR_MS = 365 * 24 * 3600 * 1000
NO_LIMIT_S = 10**10
SILVER, GOLD = "silver.transactions", "gold.user_transactions_5m"


class Spent(NamedTuple):
    """A transaction as written; without a time, it has Kafka's."""

    user: str
    amount: str
    at_ms: int | None
    partition: int


_AT = st.builds(
    lambda year, ms: START_MS + year * YEAR_MS + ms,
    st.integers(0, 24),
    st.sampled_from([0, 299_999, 300_000]),
)
_SPENT = st.builds(Spent, NAMES, st.one_of(MONEY, MONEY, NO_MONEY), _AT | st.none(), st.sampled_from([0, 1]))
CASES = st.lists(_SPENT, min_size=2, max_size=8)


def to_raw(copy: str, spent: Spent, offset: int) -> Raw:
    user = f"{copy}/{spent.user}"
    at = "" if spent.at_ms is None else f',"timestamp":{spent.at_ms}'
    value = f'{{"userId":{json.dumps(user)},"amount":{spent.amount}{at}}}'
    return Raw(value.encode(), user.encode(), partition=spent.partition, offset=offset)


@pytest.mark.parametrize("number", [20, pytest.param(150, marks=pytest.mark.soak)])
def test_history_in_pieces_makes_the_gold_that_the_oracle_makes_of_all_of_it(
    spark: SparkSession, lake_settings: Settings, number: int
) -> None:
    stream, source = under(lake_settings, TRANSACTIONS), TRANSACTIONS.sources[0]
    pieces: list[list[Raw]] = [[] for _ in range(BATCHES)]
    first = 0
    for copy in copies_of(generated(CASES, number), seed=11):
        for piece, events in zip(pieces, copy.batches, strict=True):
            piece += [to_raw(copy.name, spent, first + place) for place, spent in events]
        first += sum(map(len, copy.batches))
    for piece in pieces:
        pipeline.land(spark, lake_settings, [piece], landed_at=LANDED, source=source)
        pipeline.run_layers(spark, lake_settings, "silver", "gold", stream=stream, is_backfill=True)

    bronze = pipeline.rows_of(lake_settings, "bronze.transactions")
    patient = lake_settings.changed({"stream_defaults.allowed_lateness_s": NO_LIMIT_S})
    judged = verdicts.judge_batches([bronze], patient, replace(source, allowed_lateness_s=NO_LIMIT_S))
    expected = user_transactions_5m(verdicts.accepted(judged, Transaction))

    assert len(bronze) == first
    assert len(expected) > number
    assert verdicts.same_silver(pipeline.rows_of(lake_settings, SILVER), judged)
    assert verdicts.same_dead_letters(pipeline.rows_of(lake_settings, DEAD_LETTERS), judged)
    assert (
        verdicts.row_differences(pipeline.rows_of(lake_settings, GOLD), expected, ("user_id", "window_start"))
        == []
    )
