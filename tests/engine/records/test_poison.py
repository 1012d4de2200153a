"""The pipeline's judge and the oracle's refuse every kind of poison under exactly its rules."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random

import pytest
from pyspark.sql import SparkSession

from lakehouse.engine.layers import bronze
from lakehouse.engine.records.validation import judge
from lakehouse.storage.spark.collecting import local_frame
from tests.oracles.judging import CONTRACTS, judge_record
from tests.support.pipeline import micros
from tests.support.poison import KINDS, Kind, endless, valid
from tests.support.streams import STREAMS

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOW_MS = micros(NOW) // 1000
SOURCES = {source.table: source for stream in STREAMS for source in stream.sources}
EACH = 3
QUICK = {"metrics_events", "call_metrics"}
"""The tables that make test checks; make soak checks the others."""
MOST_SAID = 600  # characters: a sentence and a value of at most 80 characters, escaped
# Families that exceed limits that only a parser has.
BEYOND_THE_ORACLE = {"deep nesting", "a long name", "too many digits"}


def test_there_are_enough_kinds_for_every_table() -> None:
    assert KINDS.keys() == SOURCES.keys() == CONTRACTS.keys()
    for kinds in KINDS.values():
        assert len({kind.family for kind in kinds}) >= 24
        assert len({kind.name for kind in kinds}) == len(kinds)


def test_all_kinds_come_before_any_comes_again() -> None:
    kinds = sum(map(len, KINDS.values()))
    poison = endless(Random(1), lambda: NOW_MS)

    first = [next(poison) for _ in range(kinds)]

    assert {(one.table, one.kind.name) for one in first} == {
        (table, kind.name) for table, of_table in KINDS.items() for kind in of_table
    }
    assert max(len(one.bytes.value or b"") for one in first) <= 1_000_000


@pytest.mark.parametrize(
    "table", [pytest.param(one, marks=() if one in QUICK else pytest.mark.soak) for one in KINDS]
)
def test_each_kind_is_refused_by_exactly_its_rules(spark: SparkSession, table: str) -> None:
    rng = Random(7)
    sent: list[tuple[Kind | None, bytes | None, bytes | None]] = []
    for kind in KINDS[table]:
        sent += [(kind, *kind.make(rng, NOW_MS)) for _ in range(1 if kind.huge else EACH)]
        sent.append((None, *valid(table, rng, NOW_MS)))
    rows = [
        (key, value, None, "any", 0, offset, NOW, 0, NOW, None) for offset, (_, value, key) in enumerate(sent)
    ]

    judged = judge(local_frame(spark, rows, bronze.SCHEMA), SOURCES[table], None)
    reasons = {row.offset: row.reasons for row in judged.select("offset", "reasons").collect()}
    found = {offset: {one.rule for one in ones} for offset, ones in reasons.items()}

    for offset, (poison, value, key) in enumerate(sent):
        expected = frozenset() if poison is None else poison.rules
        name = "valid" if poison is None else poison.name
        assert found[offset] == expected, (name, value and value[:300], key)
        if poison is None or poison.family not in BEYOND_THE_ORACLE:
            oracle = judge_record(CONTRACTS[table], value, NOW_MS, micros(NOW), None, key=key)
            assert {rule for rule, _ in oracle.reasons} == expected, (name, value and value[:300], key)
    said = [one.message for ones in reasons.values() for one in ones]
    assert all(len(message) <= MOST_SAID and message.isprintable() for message in said)
