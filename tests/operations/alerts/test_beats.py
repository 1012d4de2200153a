"""Whether anybody evaluates the rules, by the beat in the state topic."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry

from lakehouse.common.errors import ServiceError
from lakehouse.operations.alerts import beats
from lakehouse.operations.alerts.beats import BeatCollector, Beats, Evaluated
from lakehouse.operations.alerts.publishing import Beat
from lakehouse.operations.telemetry import Observation
from lakehouse.settings import load_settings
from tests.support import pipeline

NOW = pipeline.utc("2026-11-22T09:00:00")
NOBODY = "alerts are not evaluated: `lakehouse alert` is not running"


class Topic:
    """A state topic with a beat, or an error, and the number of times it has been read."""

    def __init__(self) -> None:
        self.beat: Beat | ServiceError | None = None
        self.is_there = True
        self.reads = 0
        self.clock_s = 100.0
        self.beats = Beats(load_settings().kafka.access, "alerts", clock=lambda: self.clock_s)

    def describe(self, *_: object) -> object:
        return object() if self.is_there else None

    def read(self, *_: object) -> tuple[dict[object, object], Beat | None]:
        self.reads += 1
        if isinstance(self.beat, ServiceError):
            raise self.beat
        return {}, self.beat

    def at(self, now: datetime = NOW, broker_reason: str | None = None) -> Evaluated:
        return self.beats.at(Observation(now, (), broker_reason=broker_reason))


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    made = Topic()
    monkeypatch.setattr(beats, "describe_topic", made.describe)
    monkeypatch.setattr(beats, "read_whole_state", made.read)
    return made


def test_rules_are_evaluated_while_the_beat_is_fresh(topic: Topic) -> None:
    topic.beat = Beat(NOW, 5.0)
    assert topic.at(NOW + timedelta(seconds=100)) == Evaluated(is_evaluated=True)
    late = NOW + timedelta(seconds=101)
    last = "the last evaluation was at 2026-11-22 09:00:00 UTC"
    assert topic.at(late) == Evaluated(is_evaluated=False, reason=f"{NOBODY}; {last}")


def test_without_a_beat_or_its_topic_nobody_evaluates_them(topic: Topic) -> None:
    assert topic.at() == Evaluated(is_evaluated=False, reason=NOBODY)
    topic.is_there, topic.clock_s = False, 120.0
    assert topic.at() == Evaluated(is_evaluated=False, reason=NOBODY)
    assert topic.reads == 1


def test_the_topic_is_read_at_most_every_twenty_seconds(topic: Topic) -> None:
    for topic.clock_s in (100.0, 101.0, 119.9, 120.0, 139.9):
        topic.at()
    assert topic.reads == 2


def test_a_broker_that_is_away_is_not_asked(topic: Topic) -> None:
    assert topic.at(broker_reason="away") == Evaluated(is_evaluated=None)
    assert topic.reads == 0


def test_what_cannot_be_read_is_unknown_with_its_reason(topic: Topic) -> None:
    topic.beat = ServiceError("User:ada may not Read topic alerts-state")
    said = f"whether alerts are evaluated is unknown: {topic.beat}"
    assert topic.at() == Evaluated(is_evaluated=None, reason=said)


def test_the_metric_has_no_sample_while_the_answer_is_unknown(topic: Topic) -> None:
    found = []
    for broker_reason, beat in (("away", None), (None, None), (None, Beat(NOW, 5.0))):
        topic.beat, topic.clock_s = beat, topic.clock_s + 20.0
        registry, seen = CollectorRegistry(), Observation(NOW, (), broker_reason=broker_reason)
        registry.register(BeatCollector(topic.beats, lambda seen=seen: seen))  # type: ignore[misc]
        found.append(registry.get_sample_value("lakehouse_alerts_evaluated"))
    assert found == [None, 0.0, 1.0]
