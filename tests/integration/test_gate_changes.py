"""A gate that was open looks only at what has changed since, and still misses no damage.

Records are landed in bronze directly. Files that must not be read are removed: a look that reads them reports
the table as broken.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.operations.quality.checking import check
from lakehouse.operations.quality.gate import SuiteGate
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake, commits, reading
from lakehouse.streams.definition import Source, Stream
from tests.support import pipeline
from tests.support.pipeline import Raw
from tests.support.streams import CALLS, METRICS, SALES, STREAMS, TRANSACTIONS

GOLD, SILVER = "gold.user_transactions_5m", "silver.transactions"
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
START = pipeline.utc("2026-03-01T00:00:00")
LANDED = pipeline.utc("2026-03-05T00:00:00")


class Watched:
    """A lake of one stream and its gate; `whole` lists the tables that the gate has looked at in full."""

    def __init__(
        self, spark: SparkSession, settings: Settings, stream: Stream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.whole: list[str] = []
        self.said: list[str] = []
        self._spark = spark
        self._settings = settings
        self._stream = stream
        self._offset = 0
        self._looks = 0
        self.gate = self.another_gate()

        def noting(subject: Any, *arguments: Any) -> Any:
            self.whole.append(subject.name)
            return check(subject, *arguments)

        monkeypatch.setattr("lakehouse.operations.quality.gate.check", noting)

    def another_gate(self) -> SuiteGate:
        return SuiteGate(Lake(self._spark, self._settings.lake), STREAMS, self._settings, self.said.append)

    def is_open(self) -> bool:
        self._looks += 1
        return self.gate.check(self._stream, LANDED + self._looks * MINUTE)

    def take(self, *records: Raw, source: Source | None = None) -> None:
        """Land records and take them to gold."""
        pipeline.land(
            self._spark,
            self._settings,
            [list(records)],
            landed_at=LANDED,
            first_offset=self._offset,
            source=source or self._stream.sources[0],
        )
        self._offset += len(records)
        pipeline.run_layers(self._spark, self._settings, "silver", "gold", stream=self._stream, now=LANDED)

    def sql(self, statement: str) -> None:
        names = {"gold": GOLD, "silver": SILVER}
        self._spark.sql(
            statement.format(
                **{name: f"delta.`{pipeline.path_of(self._settings, at)}`" for name, at in names.items()}
            )
        )

    def files(self, table: str) -> set[str]:
        path = str(pipeline.path_of(self._settings, table))
        return {file.path for file in tables.files(self._spark, path)}

    def version(self, table: str) -> int:
        return pipeline.version_of(self._settings, table)

    def path(self, table: str) -> Path:
        return pipeline.path_of(self._settings, table)


def record(at: datetime, **fields: object) -> Raw:
    return Raw(json.dumps({**fields, "timestamp": int(at.timestamp() * 1000)}).encode())


def spent(user: str, at: datetime) -> Raw:
    return record(at, userId=user, amount=1.5)


def old_and_new(user: str) -> Iterator[Raw]:
    for day in range(2):
        for minute in range(0, 20, 5):
            yield spent(user, START + day * DAY + minute * MINUTE)


@pytest.fixture
def spending(spark: SparkSession, lake_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Return a watched lake of transactions."""
    return Watched(spark, lake_settings, TRANSACTIONS, monkeypatch)


@pytest.mark.soak
def test_the_second_look_reads_the_files_of_what_has_changed_and_no_others(
    spending: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (commits, reading):
        monkeypatch.setattr(module, "FEW_FILES", 0)  # else all files of a small table are read
    spending.take(spent("u1", START), spent("u2", START + MINUTE))
    old = {table: spending.files(table) for table in (GOLD, SILVER)}
    spending.take(spent("u1", START + DAY), spent("u2", START + DAY))
    assert spending.is_open()
    assert spending.whole == [GOLD]

    spending.take(spent("u1", START + DAY), spent("u3", START + DAY + 5 * MINUTE))
    for table, names in old.items():
        assert names <= spending.files(table)
        for name in names:
            Path(spending.path(table), name).unlink()

    assert spending.is_open()
    assert spending.whole == [GOLD]
    spending.gate = spending.another_gate()  # which looks at the whole table
    assert not spending.is_open()
    assert f"{GOLD}: the table can be read" in spending.said[-1]


DAMAGES = {
    "every window has a transaction": "UPDATE {gold} SET count = 0 WHERE user_id = 'u1' AND {old}",
    "keys are unique": "INSERT INTO {gold} SELECT * FROM {gold} WHERE user_id = 'u1' AND {old}",
    "required columns have values": (
        "INSERT INTO {gold} SELECT null, window_start, window_end, 1, 1 FROM {gold} WHERE {old} LIMIT 1"
    ),
    "every window has an event in silver": "DELETE FROM {silver} WHERE user_id = 'u1' AND {event}",
}
"""By the expectation that must report it, the damage done by hand to an old row."""


@pytest.mark.soak
def test_damage_done_by_hand_to_an_old_row_closes_the_gate_at_the_next_look(spending: Watched) -> None:
    spending.take(*old_and_new("u1"), *old_and_new("u2"))
    assert spending.is_open()
    places = {
        "old": "unix_micros(window_start) = " + str(pipeline.micros(START)),
        "event": "unix_micros(event_time) = " + str(pipeline.micros(START)),
    }
    before = {table: spending.version(table) for table in (GOLD, SILVER)}
    for name, damage in DAMAGES.items():
        spending.sql(damage.format(gold="{gold}", silver="{silver}", **places))
        assert not spending.is_open(), name
        assert f"{GOLD}: {name}" in spending.said[-1]
        spending.sql(f"RESTORE TABLE {{gold}} TO VERSION AS OF {before[GOLD]}")
        spending.sql(f"RESTORE TABLE {{silver}} TO VERSION AS OF {before[SILVER]}")
        assert spending.is_open(), name

    # What the change feed does not contain is looked for in the whole table.
    feed = "ALTER TABLE {{gold}} SET TBLPROPERTIES (delta.enableChangeDataFeed = {})"
    for statement in (feed.format("false"), DAMAGES["every window has a transaction"], feed.format("true")):
        spending.sql(statement.format(gold="{gold}", **places))
    spending.sql("INSERT INTO {gold} SELECT 'u3', window_start, window_end, 1, 1 FROM {gold} LIMIT 1")
    assert not spending.is_open()
    assert f"{GOLD}: every window has a transaction" in spending.said[-1]


def sold(product: str, value: float | None, at: datetime = START) -> Raw:
    key = product.encode()
    return (
        Raw(None, key=key) if value is None else Raw(record(at, product=product, value=value).value, key=key)
    )


def measured(service: str, at: datetime, value: float = 1.0) -> Raw:
    return record(at, serviceId=service, metricName="cpu", value=value)


def called(at: datetime) -> Raw:
    return record(at, user1="ann", user2="bob", analytics="a")


STORIES = {
    "metrics": (
        METRICS,
        [measured("s1", START), measured("s2", START + DAY)],
        [measured("s2", START + DAY, 2.0), measured("s1", START), measured("s3", START + DAY + MINUTE)],
    ),
    "calls": (
        CALLS,
        [called(START), called(START + DAY)],
        [called(START + 30 * MINUTE / 60), called(START + DAY + MINUTE)],
    ),
    "sales": (
        SALES,
        [sold("p1", 2500), sold("p2", 100), sold("p3", 3000), sold("p4", 1)],
        [sold("p1", -10), sold("p1", 5), sold("p2", 2000), sold("p3", None), sold("p5", 7)],
    ),
}
"""By stream: its records, and more of them, which change rows, add rows and make totals fall."""


@pytest.mark.soak
@pytest.mark.parametrize("name", STORIES)
def test_what_the_streams_do_is_followed_without_a_look_at_whole_tables(
    spark: SparkSession, lake_settings: Settings, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    stream, first, more = STORIES[name]
    watched = Watched(spark, lake_settings, stream, monkeypatch)
    watched.take(*first)
    assert watched.is_open()
    looked = sorted(watched.whole)
    assert looked == sorted(f"gold.{table.name}" for table in stream.tables)

    watched.take(*more)
    assert watched.is_open()
    assert sorted(watched.whole) == looked

    table = stream.tables[-1]
    gold = f"delta.`{watched.path(f'gold.{table.name}')}`"
    spark.sql(f"INSERT INTO {gold} SELECT * FROM {gold} LIMIT 1")
    assert not watched.is_open()
    assert f"gold.{table.name}: keys are unique" in watched.said[-1]
