"""Silver of a feed with nested fields, integers and booleans: written, judged again, and expected."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from expectations.silver.common import accepted
from lakehouse.operations.repair.rebuild_silver import Landed, SilverRebuilt, rebuild_silver
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from lakehouse.streams.contract import Contract
from lakehouse.streams.definition import Source, Stream
from tests.support import pipeline
from tests.support.change_events import CHANGES, CLEAN, REFUSED
from tests.support.pipeline import DEAD_LETTERS, Raw

LANDED = pipeline.utc("2026-01-01T12:00:00")
SOURCE = Source("changes", "changes", CHANGES)


@pytest.mark.soak
def test_silver_of_a_feed_is_written_and_judged_again(spark: SparkSession, lake_settings: Settings) -> None:
    stream = Stream("changes", (SOURCE,))
    records = [Raw(text.encode()) for text in (*CLEAN, *REFUSED)]
    pipeline.land(spark, lake_settings, [records], landed_at=LANDED, source=SOURCE)

    pipeline.run_layers(spark, lake_settings, "silver", stream=stream)

    rows = sorted(pipeline.rows_of(lake_settings, "silver.changes"), key=lambda row: row["offset"])
    assert [
        {name: row[name] for name in wanted} for row, wanted in zip(rows, CLEAN.values(), strict=True)
    ] == [*CLEAN.values()]
    assert len(pipeline.rows_of(lake_settings, DEAD_LETTERS)) == len(REFUSED)

    # Judging again under a newly set bound removes the rows before it and changes nothing else.
    later = replace(SOURCE, earliest_event_time=pipeline.utc("2025-12-31T23:59:58.1"))
    done = rebuild_silver(
        Lake(spark, lake_settings.lake), replace(stream, sources=(later,)), Landed(), LANDED
    )
    assert replace(done, first=None, last=None) == SilverRebuilt(
        judged=len(records), removed=len(CLEAN) - 1, newly_refused=len(CLEAN) - 1
    )


def test_a_source_without_a_required_text_expects_none() -> None:
    numbers = Contract(tuple(field for field in CHANGES.fields if field.column == "bot"))

    found = {one.description for one in accepted(replace(SOURCE, contract=numbers))}

    assert "required strings are not empty" in {one.description for one in accepted(SOURCE)} - found
