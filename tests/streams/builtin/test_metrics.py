"""metrics_1m: preaggregation and fold, compared with the plain-Python rows of tests/oracles/metrics.py."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse.engine.records.validation import clean_schema
from lakehouse.settings import Settings
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.streams.definition import EventTimeProgress
from lakehouse.streams.transforms.windows import StatisticsWindows, Tumbling
from lakehouse.streams.window_lengths import Seconds
from tests.oracles.metrics import PERCENTILES, Metric, metrics_1m, rank_error
from tests.support.streams import METRICS, METRICS_1M, under, with_streams

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = 1_000_000
MINUTE = 60 * SECOND
RANK_ERROR = 2 * 0.0165
TIMES = ("window_start", "window_end", "last_event_time")

Key = tuple[str, str, int]
Table = dict[Key, dict[str, Any]]


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def moment(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


NOON_US = micros(NOON)


def event(value: float, after_noon_us: int = 0, service: str = "api", metric: str = "latency") -> Metric:
    return Metric(service, metric, value, "prod", event_time_us=NOON_US + after_noon_us)


class Gold:
    """The table as rows by key, filled as by the gold layer; `take` returns the rows that a batch changed."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.kept = StatisticsWindows(
            Tumbling(("service_id", "metric_name"), Seconds(60)), grace_s=60, quantile_k=200, idle_after_s=300
        )
        self.rows: Table = {}
        self.front: datetime | None = None

    def take(self, events: Sequence[Metric]) -> Table:
        partials = self.kept.preaggregate(self.clean(events)).persist()
        reached = moment(max(event.event_time_us for event in events))
        progress = EventTimeProgress(self.front, reached if self.front is None else max(self.front, reached))
        starts = [event.event_time_us // MINUTE * MINUTE for event in events]
        between = F.col("window_start").between(F.lit(moment(min(starts))), F.lit(moment(max(starts))))
        current = self.table().where(between | self.due(progress))
        folded = self.collect(self.kept.fold(partials, current, progress))
        partials.unpersist()
        self.front = progress.now
        self.rows |= folded
        return folded

    def due(self, progress: EventTimeProgress) -> Column:
        first, last = self.kept.due_ends(progress)
        return (F.col("window_end") >= first if first else F.lit(True)) & (F.col("window_end") <= last)

    def clean(self, events: Iterable[Metric]) -> DataFrame:
        rows = [
            (
                e.service_id,
                e.metric_name,
                e.value,
                e.environment,
                moment(e.event_time_us),
                moment(e.event_time_us),
                "metrics-events",
                0,
                n,
                None,
                None,
                None,
            )
            for n, e in enumerate(events)
        ]
        return local_frame(self.spark, rows, clean_schema(METRICS.sources[0].contract))

    def table(self) -> DataFrame:
        rows = [
            tuple(moment(row[name]) if name in TIMES else row[name] for name in METRICS_1M.schema.names)
            for row in self.rows.values()
        ]
        return local_frame(self.spark, rows, METRICS_1M.schema)

    @staticmethod
    def collect(frame: DataFrame) -> Table:
        in_micros = frame.withColumns({name: F.unix_micros(name) for name in TIMES})
        rows = [row.asDict() for row in in_micros.collect()]
        by_key = {(row["service_id"], row["metric_name"], row["window_start"]): row for row in rows}
        assert len(by_key) == len(rows), "two rows with one key"
        return by_key


@pytest.fixture
def gold(spark: SparkSession) -> Gold:
    return Gold(spark)


def assert_rows(rows: Table, events: Iterable[Metric], *, k: int = 200) -> None:
    expected = metrics_1m(events)
    assert rows.keys() == expected.keys()
    for key, row in rows.items():
        wanted: Any = expected[key]
        assert row["window_end"] - row["window_start"] == MINUTE
        for name in ("count", "min", "max", "last_event_time"):
            assert row[name] == wanted.get(name, wanted["last_event_time_us"]), (key, name)
        for name in ("sum", "avg", "variance", "stddev"):
            assert row[name] == (
                None if wanted[name] is None else pytest.approx(wanted[name], rel=1e-9, abs=1e-15)
            ), (key, name)
        for name, p in PERCENTILES.items():
            if wanted["count"] <= k:
                assert row[name] == wanted[name], (key, name)
            else:
                assert rank_error(wanted["values"], p, row[name]) <= RANK_ERROR, (key, name)


def test_a_fold_returns_the_columns_of_the_table(gold: Gold) -> None:
    partials = gold.kept.preaggregate(gold.clean([event(1.0)]))

    folded = gold.kept.fold(partials, gold.table(), EventTimeProgress(None, NOON))

    found = [(field.name, field.dataType.simpleString()) for field in folded.schema.fields]
    assert found == [(field.name, field.dataType.simpleString()) for field in METRICS_1M.schema.fields]


def test_an_event_on_the_minute_belongs_to_the_window_that_begins_there(gold: Gold) -> None:
    r"""Two windows, [11:59, 12:00) and [12:00, 12:01), and the last microsecond of each.

    11:59            12:00            12:01
      |1-------------2|3-------------4|5---
    """
    times = {1.0: -MINUTE, 2.0: -1, 3.0: 0, 4.0: MINUTE - 1, 5.0: MINUTE}
    events = [event(value, at) for value, at in times.items()]

    gold.take(events)

    sums = {start - NOON_US: row["sum"] for (_, _, start), row in gold.rows.items()}
    assert sums == {-MINUTE: 1 + 2, 0: 3 + 4, MINUTE: 5}
    assert_rows(gold.rows, events)


def test_times_before_the_epoch_have_windows_that_begin_on_the_minute(gold: Gold) -> None:
    events = [replace(event(1.0), event_time_us=at) for at in (-1, -MINUTE, -MINUTE - 1, 0, -(2**52))]

    gold.take(events)

    assert {start for _, _, start in gold.rows} == {0, -MINUTE, -2 * MINUTE, -(2**52) // MINUTE * MINUTE}
    assert_rows(gold.rows, events)


def test_names_are_keys_as_they_are(gold: Gold) -> None:
    names = ["api", "API", "api ", "Zürich", "Zu\u0308rich", "東京 😀", "a:b", "\x00", "?"]
    events = [event(float(n), service=name, metric=name) for n, name in enumerate(names)]

    gold.take(events)
    again = gold.take(events)

    assert len(again) == len(names)
    assert_rows(gold.rows, events * 2)


def test_the_environment_is_no_key_of_a_window(gold: Gold) -> None:
    events = [replace(event(1.0), environment=environment) for environment in ("prod", "test", None, "")]

    gold.take(events)

    assert_rows(gold.rows, events)


def test_a_fold_returns_only_what_is_new_or_different(gold: Gold) -> None:
    gold.take([event(1.0), event(1.0, service="other"), event(1.0, MINUTE), event(1.0, 2 * MINUTE)])

    returned = gold.take([event(2.0, MINUTE + SECOND), event(2.0, 2 * MINUTE, service="other")])

    assert {(service, start - NOON_US) for service, _, start in returned} == {
        ("api", MINUTE),
        ("other", 2 * MINUTE),
    }


def test_the_last_event_time_does_not_go_back(gold: Gold) -> None:
    gold.take([event(1.0, 30 * SECOND), event(1.0, 20 * SECOND)])
    (row,) = gold.take([event(1.0, 10 * SECOND)]).values()

    assert row["last_event_time"] == NOON_US + 30 * SECOND
    assert row["count"] == 3


@pytest.mark.parametrize(
    ("grace_s", "front_us", "final"),
    [
        (60, 2 * MINUTE, True),
        (60, 2 * MINUTE - 1, False),
        (60, 2 * MINUTE + 1, True),
        (0, MINUTE, True),
        (0, MINUTE - 1, False),
    ],
)
def test_a_row_is_final_when_event_time_has_passed_its_end_by_the_grace(
    gold: Gold, grace_s: int, front_us: int, final: bool
) -> None:
    gold.kept = replace(gold.kept, grace_s=grace_s)

    rows = gold.take([event(1.0), event(1.0, front_us, service="other")])

    assert rows["api", "latency", NOON_US]["is_final"] is final


def test_time_alone_makes_each_row_final_exactly_once(gold: Gold) -> None:
    """Four windows, then events of another service that each advance event time by about half a minute."""
    gold.take([event(float(minute), minute * MINUTE) for minute in range(4)])
    before = {key: dict(row) for key, row in gold.rows.items()}
    flips: dict[int, int] = {}

    for step in range(7, 12):
        front_us = step * MINUTE // 2 + step
        returned = gold.take([event(0.0, front_us, service="clock")])
        for (service, _, start), row in returned.items():
            if service == "api":
                assert row["is_final"]
                assert start not in flips, "a row was made final twice"
                flips[start] = front_us
                assert row == before[service, "latency", start] | {"is_final": True}

    ends = {NOON_US + minute * MINUTE: (minute + 1) * MINUTE + MINUTE for minute in range(4)}
    assert flips.keys() | {NOON_US, NOON_US + MINUTE} == ends.keys()
    for start, front_us in flips.items():
        assert ends[start] <= front_us < ends[start] + MINUTE // 2 + 1


def test_the_due_rows_include_those_that_become_final_between_the_two_fronts(gold: Gold) -> None:
    gold.take([event(1.0, minute * MINUTE) for minute in range(6)])

    def due(before_us: int | None, now_us: int) -> set[int]:
        progress = EventTimeProgress(
            None if before_us is None else moment(NOON_US + before_us), moment(NOON_US + now_us)
        )
        rows = gold.table().where(gold.due(progress))
        return {start - NOON_US for _, _, start in gold.collect(rows)}

    assert due(None, 3 * MINUTE) == {0, MINUTE}
    assert due(2 * MINUTE, 3 * MINUTE) == {0, MINUTE}
    assert due(2 * MINUTE - 1, 3 * MINUTE - 1) == {0}
    assert due(3 * MINUTE, 3 * MINUTE) == {MINUTE}
    assert due(3 * MINUTE, 4 * MINUTE - 1) == {MINUTE}
    assert due(2 * MINUTE + 1, 60 * MINUTE) == {minute * MINUTE for minute in range(1, 6)}


def test_a_late_update_of_a_final_row_counts_and_leaves_it_final(gold: Gold) -> None:
    gold.take([event(1.0), event(1.0, 10 * MINUTE)])
    assert gold.rows["api", "latency", NOON_US]["is_final"]

    (row,) = gold.take([event(2.0, SECOND)]).values()

    assert (row["count"], row["sum"], row["is_final"]) == (2, 3.0, True)


def test_what_the_wall_clock_has_made_final_stays_final_when_events_come_again(gold: Gold) -> None:
    gold.take([event(1.0), event(1.0, service="other")])
    gold.rows["api", "latency", NOON_US]["is_final"] = True

    returned = gold.take([event(2.0, SECOND), event(2.0, MINUTE)])

    finals = {(service, start - NOON_US): row["is_final"] for (service, _, start), row in gold.rows.items()}
    assert finals == {("api", 0): True, ("other", 0): False, ("api", MINUTE): False}
    assert returned["api", "latency", NOON_US]["count"] == 2


def test_values_of_the_greatest_magnitude_leave_every_statistic_finite(gold: Gold) -> None:
    most = 1e140
    gold.take([event(most), event(most), event(-most, service="far"), event(5e-324, service="near")])
    gold.take([event(most), event(most, service="far"), event(1.0)])

    row, far = (gold.rows[service, "latency", NOON_US] for service in ("api", "far"))
    assert (row["count"], row["min"], row["max"], row["p50"]) == (4, 1.0, most, most)
    assert (far["min"], far["sum"], far["avg"]) == (-most, 0.0, 0.0)
    assert far["variance"] == pytest.approx(2 * most * most)
    names = ("sum", "avg", "variance", "stddev", "m2")
    assert all(math.isfinite(one[name]) for one in (row, far) for name in names)
    assert gold.rows["near", "latency", NOON_US]["sum"] == 5e-324
    assert gold.table().select(F.to_json(METRICS_1M.export.value())).count() == 3


def test_a_message_has_the_documented_fields_and_times_in_epoch_milliseconds(gold: Gold) -> None:
    gold.take([event(1.0, 1500), event(4.0, 30 * SECOND + 999)])

    row = gold.table().select(
        METRICS_1M.export.key().alias("key"), F.to_json(METRICS_1M.export.value()).alias("value")
    )
    (message,) = row.collect()

    noon_ms = NOON_US // 1000
    assert message.key == "api:latency"
    assert json.loads(message.value) == {
        "serviceId": "api",
        "metricName": "latency",
        "windowStart": noon_ms,
        "windowEnd": noon_ms + 60_000,
        "count": 2,
        "sum": 5.0,
        "min": 1.0,
        "max": 4.0,
        "avg": 2.5,
        "variance": 4.5,
        "stddev": pytest.approx(4.5**0.5),
        "p50": 1.0,
        "p90": 4.0,
        "p95": 4.0,
        "p99": 4.0,
        "lastEventTime": noon_ms + 30_000,
        "isFinal": False,
    }


def test_redis_has_a_series_of_windows_and_the_latest_of_each_service(gold: Gold) -> None:
    gold.take([event(1.0)])
    view = METRICS_1M.export.redis

    (row,) = (
        gold.table()
        .select(
            view.row_key().alias("row_key"),
            view.group().alias("group"),
            view.member().alias("member"),
            view.order().alias("order"),
        )
        .collect()
    )

    noon_ms = NOON_US // 1000
    assert row.asDict() == {
        "row_key": f"api:latency:{noon_ms}",
        "group": "latency",
        "member": "api",
        "order": noon_ms,
    }


def test_the_table_is_bound_to_the_settings_that_its_rows_depend_on(session_settings: Settings) -> None:
    changed = with_streams(session_settings, metrics={"quantile_k": 400, "grace": "5s"})

    assert under(changed, METRICS).gold[0].pinned_settings == {"streams.metrics.quantile_k": "400"}


def test_the_table_is_looked_at_for_cleared_rows_only_where_one_may_be() -> None:
    """Windows that end after the watermark are not cleared, and the watermark is noon at the latest."""
    assert METRICS_1M.state is not None
    unsettled_from = METRICS_1M.state.unsettled_from

    assert unsettled_from(EventTimeProgress(NOON, NOON + timedelta(hours=1))) == NOON - timedelta(minutes=1)
    assert unsettled_from(EventTimeProgress(None, NOON)) is None
