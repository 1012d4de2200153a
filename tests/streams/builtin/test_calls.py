"""calls: what makes a call, when it closes, and how it is corrected afterwards.

Times are seconds after START. The tests set the clock, so nothing waits. One lake with a real Kafka takes
pairs of users through a story; tests that need neither clock nor topic use plain frames.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.engine.layers import LAYERS
from lakehouse.engine.records.validation import clean_schema
from lakehouse.engine.runtime.runner import BatchDone
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.tables import leases
from lakehouse.testing import Case
from tests.support import pipeline
from tests.support.batches import gold_of, rows_between, silver_of, take, take_next
from tests.support.pipeline import Raw, Row, await_
from tests.support.streams import CALLS, under, with_streams

SOURCES = {source.topic: source for source in CALLS.sources}
ANALYTICS, METRICS = SOURCES["analyticsTopic"], SOURCES["metricsTopic"]
GOLD = "gold.call_records"
START_MS = (int(time.time()) - 7200) * 1000
START = datetime.fromtimestamp(START_MS / 1000, UTC)
PATIENCE_S = 60 + 180 + 1
"""Seconds from a call's last event until it closes."""

Message = tuple[str, dict[str, Any] | None]

PAYLOADS = {
    "a string": ("busy", "busy"),
    "a string like a number": ("12", '"12"'),
    "a string like null": ("null", '"null"'),
    "an empty string": ("", ""),
    "a number": (12, "12"),
    "a boolean": (False, "false"),
    "an array": ([{}], "[{}]"),
    "null": (None, None),
}
"""Payloads by the user who sends them: as received and sent, and as stored in the table."""


def said(at_s: float, users: tuple[str, str] = ("ann", "bob"), **payload: object) -> Raw:
    record = {"user1": users[0], "user2": users[1], "timestamp": START_MS + round(at_s * 1000), **payload}
    return Raw(json.dumps(record).encode(), key="-".join(users).encode())


def key(user1: str, at_s: float) -> str:
    return f"{user1}-bob:{START_MS + round(at_s * 1000)}"


def message(user1: str, at_s: float, *, analytics: object = None, metrics: object = None) -> Message:
    ts = START_MS + round(at_s * 1000)
    value = {"user1": user1, "user2": "bob", "ts": ts, "analytics": analytics, "metrics": metrics}
    return key(user1, at_s), value


def by_user(rows: list[Row]) -> dict[str, dict[float, Row]]:
    """Return the table's rows by first user and start."""
    found: dict[str, dict[float, Row]] = defaultdict(dict)
    for row in rows:
        found[row["user1"]][row["ts"] / 1e6 - START_MS / 1000] = row
    return found


@dataclass(frozen=True)
class Chapter:
    """A run of every layer: its micro-batches, its messages by first user, and the table after it."""

    done: list[BatchDone]
    sent: Mapping[str, list[Message]]
    rows: dict[str, dict[float, Row]]
    version: int


class Line:
    """A lake of calls; every layer is run at times that the story chooses."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self.spark = spark
        self.settings = settings
        self._sent: dict[str, list[Message]] = {}

    def take(self, now_s: float, analytics: tuple[Raw, ...] = (), metrics: tuple[Raw, ...] = ()) -> Chapter:
        for source, records in ((ANALYTICS, analytics), (METRICS, metrics)):
            pipeline.send(self.settings, records, source)
        now = START + timedelta(seconds=now_s)
        done = pipeline.run_layers(self.spark, self.settings, *LAYERS, stream=CALLS, now=now)
        rows = by_user(pipeline.rows_of(self.settings, GOLD))
        return Chapter(done, self._newly_sent(), rows, pipeline.version_of(self.settings, GOLD))

    def _newly_sent(self) -> dict[str, list[Message]]:
        """Return the new messages by user. Each user's are in order, because they share a partition."""
        topic = self.settings.topic("outputTopic")
        records = pipeline.read_topic(self.settings.kafka.bootstrap_servers, topic)
        sent: dict[str, list[Message]] = defaultdict(list)
        for one in records:
            name = one.key.decode()
            sent[name.split("-")[0]].append((name, None if one.value is None else json.loads(one.value)))
        new = {user: messages[len(self._sent.get(user, [])) :] for user, messages in sent.items()}
        self._sent = sent
        return {user: messages for user, messages in new.items() if messages}


@pytest.fixture(scope="module")
def story(spark: SparkSession, module_settings: Settings) -> dict[str, Chapter]:
    """Return six runs; each user's calls are a separate tale.

    first       ann on both sides; one, and all kinds of payloads, on one side; late, early, two and long
    longer      long continues exactly the gap later, before it would have closed
    almost      no record; a millisecond before ann's call is due
    due         no record
    corrected   events after closing: late's other side, early's beginning, one between two's calls
    nothing     no record, and nothing due
    """
    line = Line(spark, module_settings)
    return {
        "first": line.take(
            40,
            (
                said(0, analytics={"mood": ["good", None]}),
                said(0, ("one", "bob"), analytics="busy"),
                said(0, ("long", "bob"), analytics="a"),
                said(0, ("late", "bob"), analytics="first"),
                said(0, ("early", "bob"), analytics="first"),
                said(-100, ("two", "bob"), analytics="a"),
                said(0, ("two", "bob"), analytics="b"),
                *(said(0, (name, "bob"), analytics=payload) for name, (payload, _) in PAYLOADS.items()),
            ),
            (said(30, metrics=12.5),),
        ),
        "longer": line.take(PATIENCE_S - 1, metrics=(said(60, ("long", "bob"), metrics="m"),)),
        "almost": line.take(30 + PATIENCE_S - 0.001),
        "due": line.take(30 + PATIENCE_S),
        "corrected": line.take(
            1000,
            metrics=(
                said(20, ("late", "bob"), metrics=7),
                said(-30, ("early", "bob"), metrics=7),
                said(-50, ("two", "bob"), metrics="m"),
            ),
        ),
        "nothing": line.take(5000),
    }


def test_both_sides_of_a_pair_are_one_call_which_leaves_once_and_when_it_is_due(
    story: dict[str, Chapter],
) -> None:
    (row,) = story["first"].rows["ann"].values()
    assert (row["status"], row["closed_at"], row["analytics_events"], row["metrics_events"]) == (
        "open",
        None,
        1,
        1,
    )
    assert {name: chapter.sent["ann"] for name, chapter in story.items() if "ann" in chapter.sent} == {
        "due": [message("ann", 0, analytics={"mood": ["good", None]}, metrics=12.5)]
    }
    (row,) = story["nothing"].rows["ann"].values()
    due_us = pipeline.micros(START) + (30 + PATIENCE_S) * 1_000_000
    assert (row["status"], row["closed_at"]) == ("closed", due_us)
    assert json.loads(row["analytics"]) == {"mood": ["good", None]}


def test_a_call_of_one_side_closes_by_the_clock_though_no_record_comes(story: dict[str, Chapter]) -> None:
    chapter = story["almost"]

    assert [one.query for one in chapter.done if one.query.startswith(("bronze", "silver"))] == []
    assert chapter.sent["one"] == [message("one", 0, analytics="busy")]


def test_a_clock_that_has_nothing_left_to_close_writes_nothing(story: dict[str, Chapter]) -> None:
    assert story["nothing"].done == []
    assert story["nothing"].sent == {}
    assert story["nothing"].version == story["corrected"].version


def test_payloads_leave_as_the_json_that_they_were(story: dict[str, Chapter]) -> None:
    chapter = story["almost"]

    assert {name: chapter.rows[name][0]["analytics"] for name in PAYLOADS} == {
        name: text for name, (_, text) in PAYLOADS.items()
    }
    assert {name: chapter.sent[name] for name in PAYLOADS} == {
        name: [message(name, 0, analytics=payload)] for name, (payload, _) in PAYLOADS.items()
    }


def test_a_call_whose_end_moves_while_it_is_open_closes_later(story: dict[str, Chapter]) -> None:
    assert {name: chapter.sent["long"] for name, chapter in story.items() if "long" in chapter.sent} == {
        "corrected": [message("long", 0, analytics="a", metrics="m")]
    }
    assert [row["status"] for row in story["due"].rows["long"].values()] == ["open"]


def test_an_event_that_comes_after_closing_corrects_what_has_left(story: dict[str, Chapter]) -> None:
    assert story["almost"].sent["late"] == [message("late", 0, analytics="first")]

    assert story["corrected"].sent["late"] == [message("late", 0, analytics="first", metrics=7)]
    (row,) = story["corrected"].rows["late"].values()
    assert (row["status"], row["analytics_events"], row["metrics_events"]) == ("closed", 1, 1)


def test_a_call_that_turns_out_to_have_begun_earlier_leaves_a_tombstone_under_its_old_key(
    story: dict[str, Chapter],
) -> None:
    assert story["almost"].sent["early"] == [message("early", 0, analytics="first")]

    assert sorted(story["corrected"].sent["early"], key=str) == [
        message("early", -30, analytics="first", metrics=7),
        (key("early", 0), None),
    ]
    assert list(story["corrected"].rows["early"]) == [-30]


def test_two_calls_become_one_by_an_event_between_them(story: dict[str, Chapter]) -> None:
    r"""Two calls more than the gap apart, and an event that connects them.

    -100     -50       0
    |a-------(m)-------a
    """
    assert sorted(story["almost"].rows["two"]) == [-100, 0]

    assert story["longer"].sent["two"] == [message("two", -100, analytics="a")]
    assert story["almost"].sent["two"] == [message("two", 0, analytics="b")]
    assert sorted(story["corrected"].sent["two"], key=str) == [
        message("two", -100, analytics="a", metrics="m"),
        (key("two", 0), None),
    ]
    (row,) = story["corrected"].rows["two"].values()
    assert (row["analytics_events"], row["metrics_events"], row["status"]) == (2, 1, "closed")
    assert row["last_event_time"] == pipeline.micros(START)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_an_event_exactly_the_gap_after_belongs_to_the_call_and_a_millisecond_later_does_not(
    case: Case,
) -> None:
    case(
        CALLS,
        {
            "analyticsTopic": (said(0), said(60), said(120.001)),
            "metricsTopic": (said(0, ("bob", "ann")), said(0, ("ann-bob", ""))),
        },
        now=at(1000),
        dead=[{"record": 4, "rule": "empty_string", "column": "user2"}],
        gold=[
            {"user1": "ann", "ts": at(0), "analytics_events": 2, "metrics_events": 0},
            {"user1": "ann", "ts": at(120.001), "analytics_events": 1, "metrics_events": 0},
            {"user1": "bob", "ts": at(0), "analytics_events": 0, "metrics_events": 1},
        ],
    )


def test_other_gaps_and_graces_are_obeyed(case: Case, session_settings: Settings) -> None:
    """A call closes 5 + 2 + 1 seconds after its last event."""
    stream = under(with_streams(session_settings, calls={"gap": "5s", "grace": "2s"}), CALLS)
    first, second = ({"ts": at(0), "status": "closed"}, {"ts": at(6), "status": "open"})

    taken = case(stream, {"analyticsTopic": (said(0), said(6))}, now=at(8), gold=[first, second])
    taken.then(later=at(13.999), gold=[first, second])
    taken.then(later=at(14), gold=[first, second | {"status": "closed"}])


def test_an_event_of_the_calendars_first_moment_that_an_earlier_version_has_accepted_stops_nothing(
    spark: SparkSession, lake_settings: Settings
) -> None:
    silver, gold = (layer_of(spark, lake_settings, CALLS) for layer_of in (silver_of, gold_of))
    moment = datetime(1, 1, 1, tzinfo=UTC)
    first = (moment, moment, lake_settings.topic("analyticsTopic"), 0, 0, moment, START, None)
    accepted = local_frame(spark, [("ann", "bob", '"hello"', *first)], clean_schema(ANALYTICS.contract))
    tables.append(accepted, str(pipeline.path_of(lake_settings, silver.name)))
    pipeline.land(spark, lake_settings, [[said(0)]], landed_at=START, first_offset=1, source=ANALYTICS)

    done = take(silver, rows_between(spark, lake_settings, "bronze.call_analytics", 0, 2), 0, now=START)
    assert done.written == {"call_analytics": 1, "dead_letters": 0}
    merged = take_next(gold, now=START)
    assert merged is not None
    assert merged.rows == 2

    rows = by_user(pipeline.rows_of(lake_settings, GOLD))["ann"]
    assert sorted((row["status"], row["analytics"]) for row in rows.values()) == [
        ("closed", '"hello"'),
        ("open", None),
    ]


@pytest.mark.soak
def test_a_call_that_somebody_has_put_back_closes_though_nothing_comes(
    spark: SparkSession, lake_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing closes while the table's lease is held; calls that are due then close once it is released."""
    pipeline.land(spark, lake_settings, [[said(0)]], landed_at=START, source=ANALYTICS)
    pipeline.run_layers(spark, lake_settings, "silver", "gold", stream=CALLS, now=START)
    ticker = gold_of(spark, lake_settings, CALLS).ticker
    assert ticker is not None
    path = str(pipeline.path_of(lake_settings, GOLD))
    late = START + timedelta(seconds=PATIENCE_S)

    with leases.held(spark, path, GOLD):
        assert ticker.tick(late).rows == 0
        assert ticker.is_due(late)
    assert ticker.tick(late).rows == 1
    tables.update(spark, path, F.lit(True), {"status": F.lit("open")})
    assert not ticker.is_due(late), "it has looked just now"

    monkeypatch.setattr("lakehouse.engine.layers.gold._LOOK_EVERY_S", 0.0)
    await_(lambda: ticker.is_due(late - timedelta(hours=1)))  # the clock was set back; due after a pause
    assert ticker.tick(late).rows == 1
    assert [row["status"] for row in pipeline.rows_of(lake_settings, GOLD)] == ["closed"]


@pytest.mark.parametrize(
    ("rests", "is_due"), [(0, True), pytest.param(1_000_000, False, marks=pytest.mark.soak)]
)
def test_closing_rests_for_longer_than_it_has_worked(
    spark: SparkSession, lake_settings: Settings, monkeypatch: pytest.MonkeyPatch, rests: int, is_due: bool
) -> None:
    """Thousands of calls may end one after another, and each tick rewrites the files of all of them."""
    monkeypatch.setattr("lakehouse.engine.layers.gold._LOOK_EVERY_S", 0.0)
    monkeypatch.setattr("lakehouse.engine.layers.gold._RESTS", rests)
    calls = [said(0), said(PATIENCE_S)]
    pipeline.land(spark, lake_settings, [calls], landed_at=START, source=ANALYTICS)
    pipeline.run_layers(spark, lake_settings, "silver", "gold", stream=CALLS, now=START)
    ticker = gold_of(spark, lake_settings, CALLS).ticker
    assert ticker is not None

    first, second = (START + timedelta(seconds=seconds) for seconds in (PATIENCE_S, 2 * PATIENCE_S))
    assert ticker.tick(first).rows == 1
    assert ticker.is_due(second) == is_due
