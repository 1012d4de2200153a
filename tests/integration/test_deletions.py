"""Deletions as real producers send them, through a real step of silver: one of two rows is deleted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.common.errors import SettingsError
from lakehouse.engine.layers import silver
from lakehouse.engine.layers.step import Permitted
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Field, FieldType, Source, Stream
from lakehouse.streams.kinds import Records, windowed_sums
from lakehouse.streams.registry import choose_one
from lakehouse.testing.kills import take_next
from tests.support import pipeline
from tests.support.pipeline import DEAD_LETTERS, Raw
from tests.support.streams import with_streams

LANDED = datetime(2026, 1, 1, 12, tzinfo=UTC)
AT = 1_767_225_600_000


def stream_of(form: str) -> Stream:
    records = Records("payments", unique_by="id", sequence_by="version", deletion_key=form)
    return windowed_sums("payments", records, by="user", value="amount", length="5m")


DEBEZIUM = windowed_sums(
    "payments",
    Records(
        "payments",
        event_time="source.ts_ms",
        unique_by="after.id",
        sequence_by="source.lsn",
        deletion_key="json:id",
        deleted_if="op=d",
    ),
    by=Field("after.user", "user", FieldType.STRING),
    value=Field("after.amount", "amount", FieldType.DECIMAL),
    length="5m",
)


def paid(id_: str) -> Raw:
    record = {"id": id_, "version": 1, "user": "ann", "amount": 10, "timestamp": AT}
    return Raw(json.dumps(record).encode())


def event(op: str, lsn: int, before: Any, after: Any) -> Raw:
    told = {"before": before, "after": after, "source": {"lsn": lsn, "ts_ms": AT}, "op": op, "ts_ms": AT}
    return Raw(json.dumps(told).encode(), b'{"id":1004}')


def outcomes(
    spark: SparkSession, settings: Settings, stream: Stream, commits: Sequence[Sequence[Raw]]
) -> tuple[list[int], dict[int, tuple[str, str | None]]]:
    """Return the offsets of silver's rows, and the status and id of each letter by offset."""
    offset = 0
    for number, commit in enumerate(commits):
        pipeline.land(
            spark,
            settings,
            [commit],
            landed_at=LANDED + timedelta(seconds=number),
            first_offset=offset,
            source=stream.sources[0],
        )
        offset += len(commit)
    lake = Lake(spark, settings.lake)
    for maker in silver.steps(lake, stream, 1, Permitted()):
        step = maker.make()
        while take_next(step, now=LANDED) is not None:
            pass
    rows = pipeline.rows_of(settings, "silver.payments")
    letters = pipeline.rows_of(settings, DEAD_LETTERS)
    told = {one["offset"]: (one["status"], one["unique_id"]) for one in letters}
    return sorted(row["offset"] for row in rows), told


@pytest.mark.parametrize(
    ("form", "ids", "key"),
    [
        ("json", ("quoted", "other"), b'"quoted"'),
        ("json:id", ("1004", "1005"), b'{"id":1004}'),
        ("long", ("17", "18"), bytes.fromhex("0000000000000011")),
    ],
    ids=["quoted", "object", "long"],
)
def test_a_record_without_a_value_takes_the_row_that_its_key_says(
    spark: SparkSession,
    lake_settings: Settings,
    form: str,
    ids: tuple[str, str],
    key: bytes,
) -> None:
    commits = [[paid(ids[0]), paid(ids[1])], [Raw(None, key)]]

    rows, letters = outcomes(spark, lake_settings, stream_of(form), commits)

    assert rows == [1]
    assert letters == {0: ("superseded", ids[0]), 2: ("deletion", ids[0])}


@pytest.mark.soak
def test_debeziums_event_and_its_tombstone_delete_one_row_and_a_later_insert_brings_it_back(
    spark: SparkSession, lake_settings: Settings
) -> None:
    row = {"id": 1004, "user": "ann", "amount": 10}
    other = {"id": 1005, "user": "ann", "amount": 1}
    pair = [event("d", 12, row, None), Raw(None, b'{"id":1004}')]
    commits = [[event("c", 10, None, row), event("c", 11, None, other)], pair, [event("c", 13, None, row)]]

    rows, letters = outcomes(spark, lake_settings, DEBEZIUM, commits)

    assert rows == [1, 4]
    assert letters == {0: ("superseded", "1004"), 2: ("deletion", "1004"), 3: ("deletion", "1004")}


def test_a_key_that_cannot_be_read_is_an_open_letter_and_no_row_goes(
    spark: SparkSession, lake_settings: Settings
) -> None:
    commits = [[paid("17")], [Raw(None, b"17")]]

    rows, letters = outcomes(spark, lake_settings, stream_of("long"), commits)

    assert rows == [0]
    assert letters == {1: ("open", None)}


def test_a_form_that_is_none_is_refused_at_the_start(lake_settings: Settings) -> None:
    ids = {"unique_by": "transactionId", "sequence_by": "version"}

    def chosen(**given: str) -> Source:
        (source,) = choose_one("transactions", with_streams(lake_settings, transactions=ids | given)).sources
        return source

    source = chosen(deletion_key="json:id", deleted_if="op=d")
    assert (source.deletion_key, source.deleted_if) == ("json:id", "op=d")
    with pytest.raises(SettingsError, match="deletion_key 'jsn' is not a key form; expected text, "):
        chosen(deletion_key="jsn")
    with pytest.raises(SettingsError, match="deleted_if 'op' is not FIELD=VALUE, such as op=d"):
        chosen(deleted_if="op")
