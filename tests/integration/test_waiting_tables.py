"""Tables that a live run merges only at intervals: rows wait in silver; none is lost or counted twice."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.engine.layers import LAYERS
from lakehouse.engine.runtime.loop import StreamLoop
from lakehouse.engine.runtime.runner import BatchDone, RunOptions, run
from lakehouse.engine.runtime.signals import Stop
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.operations.audit import audit
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Stream
from tests.support import pipeline
from tests.support.pipeline import Raw
from tests.support.settings import MakeSettings
from tests.support.streams import METRICS, METRICS_SUMMARY_10M

NOON = pipeline.utc("2026-03-01T12:00:00")
MINUTES, SUMMARIES = "gold.metrics_1m", "gold.metrics_summary_10m"
EXPORT = "export.metrics_summary_10m"
PATIENCE_S = 120
LONG_S, SHORT_S = 3600, 3


def every(seconds: int) -> Stream:
    """Return the metrics stream with summaries that are merged once every `seconds` seconds."""
    first, summaries = METRICS.gold
    assert summaries == METRICS_SUMMARY_10M
    return replace(METRICS, gold=(first, replace(summaries, merge_every_s=seconds)))


@dataclass
class WaitingLake:
    """A lake of metrics. `sent` counts the events; `done` holds the finished micro-batches."""

    spark: SparkSession
    settings: Settings
    sent: int = 0
    done: list[BatchDone] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    @contextmanager
    def running(self, merge_every_s: int) -> Iterator[None]:
        """Run all layers live during the block."""
        stop = Stop()

        def work() -> None:
            try:
                self._run("100 milliseconds", stop, every(merge_every_s))
            except Exception as failure:  # noqa: BLE001 - reported in the test's own thread
                self.failures.append(failure)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stop.request()
            thread.join()
        assert self.failures == []

    def catch_up(self) -> None:
        self._run(AVAILABLE_NOW, Stop(), every(LONG_S))

    def _run(self, trigger: str, stop: Stop, stream: Stream) -> None:
        run(
            Lake(self.spark, self.settings.lake),
            [stream],
            LAYERS,
            self.settings,
            RunOptions(trigger, stop=stop, clock=lambda: NOON, on_batch=self.done.append),
        )

    def produce(self) -> None:
        """Send an event, and wait until gold.metrics_1m counts it."""
        stamp = int(NOON.timestamp() * 1000) + self.sent
        one = {"serviceId": "auth", "metricName": "m", "value": self.sent, "timestamp": stamp}
        pipeline.send(self.settings, [Raw(json.dumps(one).encode())])
        self.sent += 1
        self.await_count(MINUTES)

    def await_count(self, table: str) -> None:
        """Wait until a table counts every event that was sent."""
        self._await(lambda: self.count(table), self.sent, table)

    def await_sent(self, topic: str) -> None:
        """Wait until a topic's last row counts every event."""

        def last() -> int:
            rows = pipeline.read_topic(self.settings.kafka.bootstrap_servers, self.settings.topic(topic))
            return int(json.loads(rows[-1].value)["count"]) if rows else 0

        self._await(last, self.sent, topic)

    def _await(self, found: Callable[[], object], expected: object, of: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (now := found()) != expected:
            assert time.monotonic() < deadline, f"{of}: {now}, expected {expected}"
            assert self.failures == []
            time.sleep(0.1)

    def count(self, table: str) -> int:
        there = pipeline.path_of(self.settings, table) / "_delta_log" / f"{0:020}.json"
        return sum(row["count"] for row in pipeline.rows_of(self.settings, table)) if there.exists() else 0

    def merges(self) -> list[int]:
        """Return how many rows each merge of the summaries has read."""
        return [one.result.rows for one in self.done if one.query == SUMMARIES]

    def check(self) -> None:
        assert (self.count(MINUTES), self.count(SUMMARIES)) == (self.sent, self.sent)
        lake = Lake(self.spark, self.settings.lake)
        assert audit(lake, [METRICS], self.settings, NOON + timedelta(days=1)).is_clean


@pytest.fixture
def lake(spark: SparkSession, make_settings: MakeSettings) -> WaitingLake:
    return WaitingLake(spark, make_settings({"kafka.topic_partitions": 1}))


@pytest.mark.soak
def test_rows_wait_until_it_is_time_and_are_merged_though_nothing_comes(lake: WaitingLake) -> None:
    with lake.running(SHORT_S):
        lake.produce()
        lake.await_count(SUMMARIES)
        lake.produce()
        lake.produce()
        lake.await_count(SUMMARIES)
        lake.await_sent("metrics-summary-10m")
    assert sum(lake.merges()) == 3
    assert [one.query for one in lake.done].count(EXPORT) == len(lake.merges())


@pytest.mark.soak
def test_rows_that_wait_are_merged_and_sent_when_the_run_ends(lake: WaitingLake) -> None:
    with lake.running(LONG_S):
        lake.produce()
        lake.await_count(SUMMARIES)
        lake.produce()
        lake.produce()
        assert lake.count(SUMMARIES) == 1
    assert lake.merges() == [1, 2]
    assert [one.query for one in lake.done].count(EXPORT) == 2
    lake.check()


@pytest.mark.soak
def test_what_somebody_else_writes_into_silver_is_merged_and_sent_though_no_record_comes(
    lake: WaitingLake,
) -> None:
    path = str(pipeline.path_of(lake.settings, "silver.metrics_events"))
    with lake.running(SHORT_S):
        lake.produce()
        lake.await_count(SUMMARIES)
        rows = lake.spark.read.format("delta").load(path)
        tables.append(rows.withColumn("offset", F.lit(7).cast("long")), path)
        lake.sent += 1
        lake.await_count(MINUTES)
        lake.await_count(SUMMARIES)
        lake.await_sent("metrics-aggregated-1m")
        lake.await_sent("metrics-summary-10m")
        lake.produce()


@pytest.mark.soak
def test_what_waited_when_a_run_was_killed_is_merged_by_the_next_run(
    lake: WaitingLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(StreamLoop, "settle", lambda _loop: None)
        with lake.running(LONG_S):
            for _ in range(3):
                lake.produce()
    assert lake.count(SUMMARIES) == 1

    lake.catch_up()

    assert lake.merges() == [1, 2]
    lake.check()
