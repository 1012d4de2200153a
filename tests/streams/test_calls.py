"""calls over a real Kafka: what makes a call, when it closes, and how it is corrected afterwards.

Times are seconds after START. The clock is the tests' own: nothing here waits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.layer import LAYERS
from lakehouse.runner import BatchDone
from lakehouse.settings import Settings
from lakehouse.streams import STREAMS
from lakehouse.streams.calls import CALLS
from tests import pipeline
from tests.conftest import MakeSettings
from tests.pipeline import DEAD_LETTERS, Raw, Row

SOURCES = {source.topic: source for source in CALLS.sources}
ANALYTICS, METRICS = SOURCES["analyticsTopic"], SOURCES["metricsTopic"]
START_MS = (int(time.time()) - 7200) * 1000
START = datetime.fromtimestamp(START_MS / 1000, UTC)
PATIENCE_S = 60 + 180 + 1
"""How long after its last event a call closes."""

Message = tuple[str, dict[str, Any] | None]


def said(at_s: float, users: tuple[str, str] = ("ann", "bob"), **payload: object) -> Raw:
    record = {"user1": users[0], "user2": users[1], "timestamp": START_MS + round(at_s * 1000), **payload}
    return Raw(json.dumps(record).encode(), key="-".join(users).encode())


def key(at_s: float, pair: str = "ann-bob") -> str:
    return f"{pair}:{START_MS + round(at_s * 1000)}"


def message(at_s: float, *, analytics: object = None, metrics: object = None) -> Message:
    ts = START_MS + round(at_s * 1000)
    return key(at_s), {"user1": "ann", "user2": "bob", "ts": ts, "analytics": analytics, "metrics": metrics}


def by_key(messages: Iterable[Message]) -> list[Message]:
    return sorted(messages, key=lambda one: one[0])


class Line:
    """A lake of calls, run with every layer at a time of the test's choosing."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self.spark = spark
        self.settings = settings

    def take(
        self, now_s: float, analytics: tuple[Raw, ...] = (), metrics: tuple[Raw, ...] = ()
    ) -> list[BatchDone]:
        for source, records in ((ANALYTICS, analytics), (METRICS, metrics)):
            pipeline.send(self.settings, records, source)
        now = START + timedelta(seconds=now_s)
        return pipeline.run_layers(self.spark, self.settings, *LAYERS, stream=CALLS, now=now)

    def sent(self) -> list[Message]:
        topic = self.settings.topic("outputTopic")
        records = pipeline.read_topic(self.settings.kafka_bootstrap_servers, topic)
        return [(one.key.decode(), None if one.value is None else json.loads(one.value)) for one in records]

    def rows(self) -> Mapping[float, Row]:
        """The table's rows by their beginning."""
        rows = pipeline.rows_of(self.spark, self.settings, "gold.call_records")
        return {row["ts"] / 1e6 - START_MS / 1000: row for row in rows}


@pytest.fixture
def line(spark: SparkSession, make_settings: MakeSettings) -> Line:
    return Line(spark, make_settings())


def test_calls_are_registered_with_their_topics() -> None:
    assert CALLS in STREAMS
    assert {"analyticsTopic", "metricsTopic", "outputTopic"} <= set(CALLS.topics)


def test_both_sides_of_a_pair_are_one_call_which_leaves_once_and_when_it_is_due(line: Line) -> None:
    due_s = 30 + PATIENCE_S

    line.take(40, (said(0, analytics={"mood": ["good", None]}),), (said(30, metrics=12.5),))
    (row,) = line.rows().values()
    assert (row["status"], row["closed_at"], row["analytics_events"], row["metrics_events"]) == (
        "open",
        None,
        1,
        1,
    )
    line.take(due_s - 0.001)
    assert line.sent() == []
    line.take(due_s)
    assert line.sent() == [message(0, analytics={"mood": ["good", None]}, metrics=12.5)]
    line.take(due_s + 3600)

    (row,) = line.rows().values()
    assert (row["status"], row["closed_at"]) == ("closed", pipeline.micros(START) + due_s * 1_000_000)
    assert json.loads(row["analytics"]) == {"mood": ["good", None]}
    assert len(line.sent()) == 1


def test_a_call_of_one_side_closes_by_the_clock_though_no_record_comes(line: Line) -> None:
    line.take(1, (said(0, analytics="busy"),))
    assert line.sent() == []

    done = line.take(PATIENCE_S)

    assert [one.query for one in done if one.query.startswith(("bronze", "silver"))] == []
    assert line.sent() == [message(0, analytics="busy")]
    assert line.take(PATIENCE_S + 60) == []


def test_payloads_leave_as_the_json_that_they_were(line: Line) -> None:
    kept = {
        "a string": ("busy", "busy"),
        "a string like a number": ("12", '"12"'),
        "a string like null": ("null", '"null"'),
        "an empty string": ("", ""),
        "a number": (12, "12"),
        "a boolean": (False, "false"),
        "an array": ([{}], "[{}]"),
        "null": (None, None),
    }

    line.take(PATIENCE_S, tuple(said(0, ("ann", name), analytics=one) for name, (one, _) in kept.items()))

    rows = pipeline.rows_of(line.spark, line.settings, "gold.call_records")
    assert {row["user2"]: row["analytics"] for row in rows} == {
        name: text for name, (_, text) in kept.items()
    }
    assert {value["user2"]: value["analytics"] for _, value in line.sent() if value} == {
        name: payload for name, (payload, _) in kept.items()
    }


def test_an_event_exactly_the_gap_after_belongs_to_the_call_and_a_millisecond_later_does_not(
    line: Line,
) -> None:
    line.take(1000, (said(0), said(60), said(120.001)), (said(0, ("bob", "ann")), said(0, ("ann-bob", ""))))

    counts = {
        (row["user1"], row["ts"] // 1000 - START_MS): (row["analytics_events"], row["metrics_events"])
        for row in pipeline.rows_of(line.spark, line.settings, "gold.call_records")
    }
    assert counts == {("ann", 0): (2, 0), ("ann", 120_001): (1, 0), ("bob", 0): (0, 1)}
    (dead,) = pipeline.rows_of(line.spark, line.settings, DEAD_LETTERS)
    assert [(reason["rule"], reason["column"]) for reason in dead["reasons"]] == [("empty_string", "user2")]


def test_an_event_that_comes_after_closing_corrects_what_has_left(line: Line) -> None:
    line.take(1000, (said(0, analytics="first"),))

    line.take(1001, metrics=(said(20, metrics=7),))

    assert line.sent() == [message(0, analytics="first"), message(0, analytics="first", metrics=7)]
    (row,) = line.rows().values()
    assert (row["status"], row["analytics_events"], row["metrics_events"]) == ("closed", 1, 1)


def test_a_call_that_turns_out_to_have_begun_earlier_leaves_a_tombstone_under_its_old_key(line: Line) -> None:
    line.take(1000, (said(30, analytics="first"),))

    line.take(1001, metrics=(said(0, metrics=7),))

    first, *then = line.sent()
    assert first == message(30, analytics="first")
    assert by_key(then) == [
        message(0, analytics="first", metrics=7),
        (key(30), None),
    ]
    assert list(line.rows()) == [0]


def test_two_calls_become_one_by_an_event_between_them(line: Line) -> None:
    r"""Two calls more than the gap apart, and what bridges it.

    0        50        100
    |a-------(m)-------a
    """
    line.take(1000, (said(0, analytics="a"), said(100, analytics="b")))
    assert sorted(line.rows()) == [0, 100]
    assert by_key(line.sent()) == [message(0, analytics="a"), message(100, analytics="b")]

    line.take(1001, metrics=(said(50, metrics="m"),))

    assert by_key(line.sent()[2:]) == [
        message(0, analytics="a", metrics="m"),
        (key(100), None),
    ]
    (row,) = line.rows().values()
    assert (row["analytics_events"], row["metrics_events"], row["status"]) == (2, 1, "closed")
    assert row["last_event_time"] == pipeline.micros(START) + 100 * 1_000_000


def test_a_call_whose_end_moves_while_it_is_open_closes_later(line: Line) -> None:
    line.take(100, (said(0, analytics="a"),))

    line.take(PATIENCE_S - 1, metrics=(said(60, metrics="m"),))
    line.take(PATIENCE_S)
    assert line.sent() == []
    line.take(60 + PATIENCE_S)

    assert line.sent() == [message(0, analytics="a", metrics="m")]


def test_other_gaps_and_graces_are_obeyed(spark: SparkSession, make_settings: MakeSettings) -> None:
    line = Line(spark, make_settings(call_gap_s=5, call_grace_s=2))

    line.take(6 + 5 + 2 + 1, (said(0, analytics="a"), said(6, analytics="b")))

    assert by_key(line.sent()) == [
        message(0, analytics="a"),
        message(6, analytics="b"),
    ]
