"""Facts are read from a lake, and whatever cannot be read is reported."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakehouse.engine.layers import bronze
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.operations.alerts.facts import LandedCounts, Window
from lakehouse.operations.alerts.gathering import gather
from lakehouse.operations.alerts.rules import DeadLetterRule, MetricRule
from lakehouse.operations.telemetry import Observation
from lakehouse.settings import Settings
from tests.support.served_lakes import NOON_MS, ServedLake, letter, minute
from tests.support.served_lakes import at as at_ms
from tests.support.streams import METRICS_1M, STREAMS

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
CENTURY_S = 36_525 * 24 * 3600
LETTERS = DeadLetterRule(name="letters", kind="dead_letter_rate", over=0.1, within_s=CENTURY_S)
RECENT = LETTERS.model_copy(update={"name": "recent", "within_s": 60})
LANDED_S_AGO = {
    "metrics_events": (3600, 61, 60, 1),
    "call_analytics": (3600, 3600),
    "call_metrics": (3600, 30, 20),
    "transactions": (61,),
}
"""Bronze records; sales has no table yet."""
LETTERS_S_AGO = {"metrics": (3600, 60), "calls": (61,)}


def now() -> Observation:
    return Observation(datetime.now(UTC), ())


def ago(seconds: int) -> datetime:
    return NOON - timedelta(seconds=seconds)


@pytest.fixture
def lake(lake_settings: Settings) -> str:
    """Return a lake with some records, dead letters, and windows of two metrics."""
    made = ServedLake(lake_settings)
    for source in (one for stream in STREAMS for one in stream.sources):
        landed = [{"ingested_at": ago(seconds)} for seconds in LANDED_S_AGO.get(source.table, ())]
        if landed:
            made.write_spec(bronze.spec(source), landed)
    letters = [
        letter(seconds, stream=stream, first_seen=ago(seconds))
        for stream, ages in LETTERS_S_AGO.items()
        for seconds in ages
    ]
    made.write_spec(DEAD_LETTERS, letters)
    minutes = [minute(start_ms=NOON_MS + 60_000 * n, avg=float(n)) for n in range(5)]
    others = [minute("checkout"), minute(metric="latency"), minute("old", start_ms=NOON_MS - 7_200_000)]
    made.write(METRICS_1M, [*minutes, *others])
    return lake_settings.lake


def test_landed_records_and_dead_letters_are_counted_by_stream(lake: str) -> None:
    said: list[str] = []
    facts = gather(Observation(NOON, ()), lake, STREAMS, [LETTERS, RECENT], warn=said.append)
    assert facts.landed == {
        "letters": {
            "metrics": LandedCounts(4, 2),
            "calls": LandedCounts(5, 1),
            "sales": LandedCounts(0, 0),
            "transactions": LandedCounts(1, 0),
        },
        "recent": {
            "metrics": LandedCounts(2, 1),
            "calls": LandedCounts(2, 0),
            "sales": LandedCounts(0, 0),
            "transactions": LandedCounts(0, 0),
        },
    }
    assert said == []


def test_windows_are_those_of_the_metric_that_are_over_and_young_enough(lake: str) -> None:
    """The third of five minutes has just ended; the window from two hours ago is too old."""
    rule = MetricRule(name="m", kind="metric", metric="cpu", statistic="p99", over=1)
    end = Observation(at_ms(NOON_MS + 3 * 60_000), ())
    facts = gather(end, lake, STREAMS, [rule], warn=pytest.fail)
    found = sorted(facts.windows["m"], key=lambda one: (one.service, one.start))
    assert found == [
        Window("auth", at_ms(NOON_MS), 1.5),
        Window("auth", at_ms(NOON_MS + 60_000), 2.5),
        Window("auth", at_ms(NOON_MS + 120_000), 3.5),
        Window("checkout", at_ms(NOON_MS), 4.0),
    ]
    of_checkout = rule.model_copy(update={"service": "checkout"})
    service = gather(end, lake, STREAMS, [of_checkout], warn=pytest.fail)
    assert service.windows["m"] == [Window("checkout", at_ms(NOON_MS), 4.0)]


def test_what_cannot_be_read_is_said_and_left_out(lake: str) -> None:
    said: list[str] = []
    for path in Path(lake, "gold", "metrics_1m", "_delta_log").glob("*.json"):
        path.write_bytes(b"{")
    rule = MetricRule(name="m", kind="metric", metric="cpu", over=1, stale_s=CENTURY_S)
    facts = gather(now(), lake, STREAMS, [rule], warn=said.append)
    assert facts.windows == {}
    assert [text.split(":")[0] for text in said] == ["gold.metrics_1m could not be read"]
    shutil.rmtree(lake)
    assert gather(now(), lake, STREAMS, [rule], warn=said.append).windows == {"m": []}
