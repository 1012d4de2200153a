"""An audit of the records that landed since a time names only differences among these. No Kafka."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from pyspark.sql import SparkSession

from lakehouse.operations.audit.records import check_records
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from tests.support import pipeline
from tests.support.pipeline import BRONZE, SILVER, SOURCE, STREAM, Raw

FIRST, SECOND = pipeline.utc("2026-03-01T12:00:00"), pipeline.utc("2026-03-01T12:10:00")


@pytest.fixture
def lake(spark: SparkSession, lake_settings: Settings) -> Lake:
    """Return a lake where offsets 0 to 2 landed at FIRST, and 3 to 5 at SECOND; 2 and 5 are dead letters."""
    for first, landed_at in ((0, FIRST), (3, SECOND)):
        one = {"serviceId": "a", "metricName": "m", "value": 1, "timestamp": int(FIRST.timestamp() * 1000)}
        good = Raw(json.dumps(one).encode())
        cuts = [[good, good, Raw(b"malformed")]]
        pipeline.land(spark, lake_settings, cuts, landed_at=landed_at, first_offset=first)
    pipeline.run_layers(spark, lake_settings, "silver")
    return Lake(spark, lake_settings.lake)


def offsets(lake: Lake, since: datetime | None) -> tuple[int, list[int]]:
    """Return the number of compared records, and the offsets of those that differ."""
    (check,) = check_records(lake, STREAM, SOURCE, since)
    assert check.differences == len(check.examples)
    return check.compared, sorted(one.key["offset"] for one in check.examples)


def test_an_audit_of_a_part_names_only_records_that_landed_since_then(lake: Lake) -> None:
    assert offsets(lake, None) == (6, [])

    silver, bronze = (f"delta.`{lake.path(*name.split('.'))}`" for name in (SILVER, BRONZE))
    lake.spark.sql(f"UPDATE {silver} SET value = 999 WHERE offset IN (0, 3)")
    lake.spark.sql(f"DELETE FROM {silver} WHERE offset IN (1, 4)")
    assert offsets(lake, None) == (6, [0, 1, 3, 4])
    assert offsets(lake, SECOND) == (3, [3, 4])

    lake.spark.sql(f"DELETE FROM {bronze} WHERE offset IN (2, 5)")
    assert offsets(lake, SECOND) == (2, [3, 4, 5])


def test_the_check_says_which_records_it_compares(lake: Lake) -> None:
    (check,) = check_records(lake, STREAM, SOURCE, SECOND)
    assert check.subject.endswith(" + dead letters, landed since 2026-03-01 12:10:00 UTC")
    assert check.notes[0] == (
        "bronze 3; silver 2, of these 0 replayed; dead letters 1 open, 0 discarded; "
        "0 in an unfinished micro-batch"
    )
