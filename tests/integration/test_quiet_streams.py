"""Windows of a stream that receives no more events: the wall clock makes them final.

events    1 |60 s   |grace 60 s |                2 (late)
window      [-------)           |
wall clock  ·····merged·········:····idle 300 s····F···········F   is_final
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.engine.layers import LayerName
from lakehouse.engine.layers.step import Ticker
from lakehouse.engine.runtime.runner import utc_now
from lakehouse.operations.audit.gold import check_gold
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from tests.support import pipeline
from tests.support.batches import gold_of
from tests.support.pipeline import GOLD, STREAM, Raw
from tests.support.settings import MakeSettings
from tests.support.streams import METRICS_1M

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND, IDLE, HOUR = timedelta(seconds=1), timedelta(seconds=300), timedelta(hours=1)


def event(at: datetime, value: float) -> Raw:
    record = {"serviceId": "s", "metricName": "m", "value": value, "timestamp": pipeline.micros(at) // 1000}
    return Raw(json.dumps(record).encode())


@pytest.mark.soak
def test_the_last_window_of_a_quiet_service_becomes_final_leaves_as_final_and_can_still_be_corrected(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    settings = make_settings()
    now = utc_now()
    windows = [now - timedelta(minutes=minutes) for minutes in (8, 1)]

    def take(now: datetime, *layers: LayerName) -> list[tuple[int, bool]]:
        """Run the layers until they catch up, and return the windows' counts and finality, oldest first."""
        pipeline.run_layers(spark, settings, *layers, now=now)
        rows = sorted(pipeline.rows_of(settings, GOLD), key=lambda row: row["window_start"])
        return [(row["count"], row["is_final"]) for row in rows]

    pipeline.land(spark, settings, [[event(at, 1.0) for at in windows]], landed_at=now)
    assert take(now, "silver", "gold") == [(1, True), (1, False)]
    assert take(now + IDLE - SECOND, "gold") == [(1, True), (1, False)], "nothing has come for less than that"
    assert take(now + HOUR, "gold", "export") == [(1, True), (1, True)]
    late = [[event(windows[1], 2.0)]]
    pipeline.land(spark, settings, late, landed_at=now + HOUR, first_offset=2)
    assert take(now + HOUR, "silver", "gold", "export") == [(1, True), (2, True)]

    topic = settings.topic("metrics-aggregated-1m")
    records = pipeline.read_topic(settings.kafka.bootstrap_servers, topic)
    messages: list[dict[str, Any]] = [json.loads(record.value) for record in records]
    sent = sorted((one["count"], one["isFinal"]) for one in messages)
    assert sent == [(1, False), (1, True), (1, True), (2, True)]
    (check,) = check_gold(Lake(spark, settings.lake), STREAM, METRICS_1M)
    assert check.differences == 0


@pytest.fixture
def look(spark: SparkSession, lake_settings: Settings) -> Callable[[float], bool]:
    """Return a function that tells whether gold's ticker is due a given number of seconds after noon."""
    ticker = gold_of(spark, lake_settings).ticker
    assert ticker is not None
    known: Ticker = ticker
    return lambda after_s: known.is_due(NOON + after_s * SECOND)


def test_a_live_run_waits_for_the_idle_time_from_its_own_start(look: Callable[[float], bool]) -> None:
    """Records sent while no run was active may be waiting in Kafka."""
    assert [look(after_s) for after_s in (0, 299.9, 300)] == [False, False, True]


def test_a_clock_that_is_set_back_keeps_no_table_waiting_for_the_old_time(
    look: Callable[[float], bool],
) -> None:
    assert [look(after_s) for after_s in (0, -3600, -3301, -3300)] == [False, False, False, True]
