"""What a live run reports about refusals in silver: once, again after a while, and when they are over."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from pyspark.sql import SparkSession

from lakehouse.common.events import Event, EventLog, noting
from lakehouse.engine.layers.step import BatchResult
from lakehouse.engine.ops_tables.refusals import percent
from lakehouse.engine.runtime.loop import BatchDone
from lakehouse.engine.runtime.refusals import RefusalCounts
from lakehouse.settings import Settings
from lakehouse.streams.kinds.records import identified
from tests.support import pipeline
from tests.support.pipeline import Raw
from tests.support.streams import METRICS, under

NOON = pipeline.utc("2026-03-01T12:00:00")
BROKEN = [Raw(b"{") for _ in range(3)] + [Raw(b'{"serviceId":1,"metricName":"m","value":1}')]


class Clock:
    """A clock that shows the time that it is given."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


def batch(judged: int, refused: int, query: str = "silver.metrics_events") -> BatchDone:
    return BatchDone(query, 1, BatchResult(judged, {}, refused=refused), 0.1)


def test_a_live_run_warns_once_and_again_after_an_hour_and_when_it_is_over(
    spark: SparkSession, lake_settings: Settings
) -> None:
    pipeline.land(spark, lake_settings, [BROKEN], landed_at=NOON)
    pipeline.run_layers(spark, lake_settings, "silver", now=NOON)
    topic = lake_settings.topic(METRICS.sources[0].topic)
    clock, said, events = Clock(NOON), list[str](), list[Event]()
    log = EventLog("tests", lambda found, _again: events.extend(found), said.append)
    counts = RefusalCounts(
        [METRICS],
        str(pipeline.path_of(lake_settings, pipeline.DEAD_LETTERS)),
        0.05,
        said.append,
        is_live=True,
        clock=clock,
    )

    def told(minutes: int, *done: BatchDone) -> list[str]:
        """Return what is reported about micro-batches, this many minutes after noon."""
        clock.now = NOON + timedelta(minutes=minutes)
        said.clear()
        for one in done:
            counts.on_batch(one)
        return list(said)

    with noting(log):
        assert told(1, batch(999, 999), batch(5, 5, "gold.metrics_1m")) == []  # too few to report
        (first,) = told(2, batch(1, 1), batch(500, 400))
        assert told(30, batch(100, 100), batch(100, 0)) == []
        (again,) = told(63, batch(1_000, 60))
        assert told(64, batch(100_000, 0)) == []  # they may recur
        (over,) = told(80, batch(1, 0))

    reasons = (
        f"3 not_json, such as {topic}/0/0: the value is not valid JSON: {{; "
        f"1 wrong_type of service_id, such as {topic}/0/3: serviceId must be a string, not a number: 1"
    )
    way_out = "`lakehouse dead-letters list --stream metrics` shows them"
    limit = "in the last hour, more than run.refused_limit allows (5 %)"
    table = "silver.metrics_events"
    assert first == f"{table}: 1,000 of 1,000 records refused (100 %) {limit}: {reasons}. {way_out}"
    # Refusals older than an hour no longer count, but their letters may be of the same kinds.
    assert again.startswith(f"{table}: 160 of 1,200 records refused (13.3 %) {limit}")
    assert over.endswith("records refused (0.2 %) in the last hour: back within the limit of 5 %")
    assert [json.loads(one.details or "")["over"] for one in events] == [True, True, False]
    assert [(one.kind, one.stream, one.table) for one in events] == [("refused", "metrics", table)] * 3
    assert "serviceId must be" not in "".join(str(one) for one in events)  # no values in events


@pytest.mark.soak
def test_repeated_records_are_judged_and_not_refused(spark: SparkSession, lake_settings: Settings) -> None:
    record = b'{"serviceId":"a","metricName":"m","value":1,"timestamp":1772366400000}'
    pipeline.land(spark, lake_settings, [[Raw(record), Raw(record), Raw(b"{")]], landed_at=NOON)
    source = identified(under(lake_settings, pipeline.STREAM).sources[0], "serviceId", None)

    (done,) = pipeline.run_layers(
        spark,
        lake_settings,
        "silver",
        stream=replace(under(lake_settings, pipeline.STREAM), sources=(source,)),
    )

    assert (done.result.rows, done.result.written["dead_letters"], done.result.refused) == (3, 2, 1)


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0, "0 %"),
        (0.00001, "less than 0.1 %"),
        (0.05, "5 %"),
        (0.9994, "99.9 %"),
        (0.99999, "more than 99.9 %"),
        (1, "100 %"),
    ],
)
def test_shares_never_read_as_all_or_nothing_unless_they_are(share: float, said: str) -> None:
    assert percent(share) == said
