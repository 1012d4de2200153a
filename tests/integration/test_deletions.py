"""Deletions as real producers send them, through a real step of silver: one of two rows is deleted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession

from lakehouse.common.errors import SettingsError
from lakehouse.engine.layers import silver
from lakehouse.engine.layers.step import Permitted
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Source, Stream
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


def paid(id_: str) -> Raw:
    record = {"id": id_, "version": 1, "user": "ann", "amount": 10, "timestamp": AT}
    return Raw(json.dumps(record).encode())


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


@pytest.mark.soak
def test_a_record_without_a_value_takes_the_row_that_its_key_says(
    spark: SparkSession, lake_settings: Settings
) -> None:
    commits = [[paid("1004"), paid("1005")], [Raw(None, b'{"id":1004}')]]

    rows, letters = outcomes(spark, lake_settings, stream_of("json:id"), commits)

    assert rows == [1]
    assert letters == {0: ("superseded", "1004"), 2: ("deletion", "1004")}


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
