"""An audit of the records that landed since a time names only differences among these. No Kafka."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession

from lakehouse.operations.audit.records import check_records
from lakehouse.operations.audit.report import Check
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


def offsets(check: Check) -> list[int]:
    """Return the offsets of the records that differ."""
    return sorted(one.key["offset"] for one in check.examples)


def test_an_audit_of_a_part_names_only_records_that_landed_since_then(lake: Lake) -> None:
    silver, bronze = (f"delta.`{lake.path(*name.split('.'))}`" for name in (SILVER, BRONZE))
    lake.spark.sql(f"UPDATE {silver} SET value = 999 WHERE offset IN (0, 3)")
    lake.spark.sql(f"DELETE FROM {silver} WHERE offset IN (1, 4)")
    lake.spark.sql(f"DELETE FROM {bronze} WHERE offset IN (2, 5)")

    (whole,), (part,) = (check_records(lake, STREAM, SOURCE, since) for since in (None, SECOND))

    assert (whole.compared, offsets(whole)) == (4, [0, 1, 2, 3, 4, 5])
    assert (part.compared, offsets(part)) == (2, [3, 4, 5])
    assert part.subject.endswith(" + dead letters, landed since 2026-03-01 12:10:00 UTC")
