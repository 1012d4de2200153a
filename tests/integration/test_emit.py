"""A table that emits final rows sends a window once it is final; changing that loses or doubles no row."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession

from lakehouse.operations.audit.stores import check_lead
from lakehouse.storage.tables import Lake
from tests.support import pipeline
from tests.support.pipeline import STREAM, Raw, read_topic
from tests.support.settings import MakeSettings
from tests.support.streams import METRICS_1M, under

pytestmark = pytest.mark.soak

TEN, NOW = pipeline.utc("2026-03-20T10:00:00"), pipeline.utc("2026-03-20T10:10:00")


def measured(at: str) -> Raw:
    stamp = int(pipeline.utc(f"2026-03-20T10:{at}").timestamp() * 1000)
    record = {"serviceId": "s", "metricName": "m", "value": 1, "timestamp": stamp}
    return Raw(json.dumps(record).encode(), partition=0)


def test_only_final_windows_leave_while_the_table_emits_these(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    base, sent = make_settings(), 0
    lake = Lake(spark, base.lake)
    topic = base.topic(METRICS_1M.export.topic or "")

    def leaves(emit: str, *times: str) -> list[tuple[int, int, bool]]:
        """Return each new message's minute, count and isFinal, in order; check that the audit agrees."""
        nonlocal sent
        settings = make_settings({"streams": {"metrics": {"gold": {METRICS_1M.name: {"emit": emit}}}}})
        stream = under(settings, STREAM)
        pipeline.send(settings, map(measured, times))
        pipeline.run_layers(spark, settings, "bronze", "silver", "gold", "export", stream=stream, now=NOW)
        records = read_topic(settings.kafka.bootstrap_servers, topic)
        found = [
            json.loads(one.value) for one in sorted(records, key=lambda one: (one.partition, one.offset))
        ]
        new, sent = found[sent:], len(found)
        checks = check_lead(lake, stream, stream.gold[0], settings)
        assert [check.examples for check in checks if check.differences] == []
        start = pipeline.micros(TEN) // 1000
        return [((one["windowStart"] - start) // 60_000, one["count"], one["isFinal"]) for one in new]

    assert leaves("changes", "00:30", "05:00") == [(0, 1, True), (5, 1, False)]
    assert leaves("final", "05:10") == []
    assert leaves("final", "07:30", "00:40") == [(0, 2, True), (5, 2, True)]
    assert leaves("changes", "07:40") == [(7, 2, False)]
