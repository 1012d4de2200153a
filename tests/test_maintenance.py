"""Maintenance clears what only merging needs, where nothing can be merged any more, and nothing else."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession

from lakehouse.maintenance import Cleared, clear_state
from lakehouse.settings import Settings
from lakehouse.streams.metrics import METRICS
from tests import pipeline
from tests.conftest import MakeSettings
from tests.pipeline import GOLD, STREAM, Raw, Row

START = pipeline.utc("2026-03-01T00:00:00")
LANDED = pipeline.utc("2026-03-02T00:00:00")
HOUR = timedelta(hours=1)


def event(at: datetime, value: float = 1.0) -> Raw:
    record = {"serviceId": "s", "metricName": "m", "value": value, "timestamp": int(at.timestamp() * 1000)}
    return Raw(json.dumps(record).encode())


def cleared(rows: list[Row]) -> dict[datetime, bool]:
    return {
        datetime.fromtimestamp(row["window_start"] / 1_000_000, UTC): row["sketch"] is None
        and row["m2"] is None
        for row in rows
    }


@pytest.fixture
def settings(lake_settings: Settings) -> Settings:
    return lake_settings.model_copy(update={"allowed_lateness_s": 3600, "max_bytes_per_batch": "1"})


def test_nothing_is_cleared_before_anything_is_merged(spark: SparkSession, settings: Settings) -> None:
    assert clear_state(spark, [METRICS], settings) == [
        Cleared("gold.metrics_1m", 0, None),
        Cleared("gold.metrics_summary_10m", 0, None),
    ]


def test_rows_that_no_record_can_reach_lose_their_state_and_nothing_that_users_read(
    spark: SparkSession, settings: Settings
) -> None:
    times = [START, START + 2 * HOUR, START + 4 * HOUR]
    pipeline.land(spark, settings, [[event(at)] for at in times], landed_at=LANDED)
    pipeline.run_layers(spark, settings, "silver", "gold")
    before = pipeline.rows_of(spark, settings, GOLD)

    (found,) = clear_state(spark, [STREAM], settings)

    after = pipeline.rows_of(spark, settings, GOLD)
    assert found == Cleared(GOLD, 2, START + 3 * HOUR)
    assert cleared(after) == {times[0]: True, times[1]: True, times[2]: False}
    state = dict.fromkeys(("sketch", "m2"))
    assert sorted(map(repr, (row | state for row in after))) == sorted(
        map(repr, (row | state for row in before))
    )
    assert [one.rows for one in clear_state(spark, [STREAM], settings)] == [0]


def test_a_window_that_ends_after_the_watermark_keeps_its_state(
    spark: SparkSession, settings: Settings
) -> None:
    pipeline.land(
        spark, settings, [[event(START)], [event(START + HOUR + timedelta(seconds=59))]], landed_at=LANDED
    )
    pipeline.run_layers(spark, settings, "silver", "gold")

    assert [one.rows for one in clear_state(spark, [STREAM], settings)] == [0]

    pipeline.land(
        spark, settings, [[event(START + HOUR + timedelta(seconds=60))]], landed_at=LANDED, first_offset=2
    )
    pipeline.run_layers(spark, settings, "silver", "gold")
    assert [one.rows for one in clear_state(spark, [STREAM], settings)] == [1]


def test_what_gold_has_not_merged_yet_holds_the_clearing_back(
    spark: SparkSession, settings: Settings
) -> None:
    pipeline.land(spark, settings, [[event(START)]], landed_at=LANDED)
    pipeline.run_layers(spark, settings, "silver", "gold")
    pipeline.land(
        spark, settings, [[event(START)], [event(START + 9 * HOUR)]], landed_at=LANDED, first_offset=1
    )
    pipeline.run_layers(spark, settings, "silver")

    assert [one.rows for one in clear_state(spark, [STREAM], settings)] == [0]

    pipeline.run_layers(spark, settings, "gold")
    assert sorted(row["count"] for row in pipeline.rows_of(spark, settings, GOLD)) == [1, 2]
    assert [one.rows for one in clear_state(spark, [STREAM], settings)] == [1]


def test_a_row_that_is_not_final_keeps_its_state(spark: SparkSession, settings: Settings) -> None:
    patient = settings.model_copy(update={"grace_s": 24 * 3600})
    pipeline.land(spark, patient, [[event(START)], [event(START + 4 * HOUR)]], landed_at=LANDED)
    pipeline.run_layers(spark, patient, "silver", "gold")

    assert [one.rows for one in clear_state(spark, [STREAM], patient)] == [0]


def test_a_record_for_a_cleared_row_has_the_row_made_anew_without_a_sketch(
    spark: SparkSession, settings: Settings
) -> None:
    """Silver lets none through unless it is asked to; this one is put there by hand."""
    pipeline.land(spark, settings, [[event(START, 2.0)], [event(START + 4 * HOUR)]], landed_at=LANDED)
    pipeline.run_layers(spark, settings, "silver", "gold")
    clear_state(spark, [STREAM], settings)
    path = str(pipeline.path_of(settings, pipeline.SILVER))
    silver = spark.read.format("delta").load(path)
    again = silver.where("offset = 0").replace(0, 99, ["offset"]).replace(2.0, 5.0, ["value"])
    again.write.format("delta").mode("append").save(path)

    pipeline.run_layers(spark, settings, "gold")

    row = min(pipeline.rows_of(spark, settings, GOLD), key=lambda row: row["window_start"])
    assert [row[name] for name in ("count", "sum", "p50", "p99", "m2", "is_final")] == [2, 7, 2, 5, 4.5, True]
    assert row["sketch"] is None


@pytest.mark.slow
def test_a_cleared_row_does_not_leave_again(spark: SparkSession, make_settings: MakeSettings) -> None:
    settings = make_settings(allowed_lateness_s=3600)
    pipeline.land(spark, settings, [[event(START)], [event(START + 4 * HOUR)]], landed_at=LANDED)
    pipeline.run_layers(spark, settings, "silver", "gold", "export")
    topic = settings.topic("metrics-aggregated-1m")
    before = pipeline.read_topic(settings.kafka_bootstrap_servers, topic)

    assert [one.rows for one in clear_state(spark, [STREAM], settings)] == [1]
    pipeline.run_layers(spark, settings, "export")

    assert len(before) == 2
    assert len(pipeline.read_topic(settings.kafka_bootstrap_servers, topic)) == 2
