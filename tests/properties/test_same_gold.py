"""One-minute windows are a function of silver: neither order nor micro-batch cuts affect them.

Each of the 120 cases below (117 from Hypothesis, 3 by hand) is folded as six copies: in two random orders,
each cut in three ways; see tests/properties/copies.py.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from lakehouse.settings import Settings
from tests.oracles.metrics import Metric
from tests.properties.copies import Copy, Outcome, copies_of, fold_copies, generated
from tests.properties.strategies import DOUBLES
from tests.support import pipeline, verdicts
from tests.support.chance import chance
from tests.support.pipeline import DEAD_LETTERS, GOLD, SILVER, SOURCE, STREAM, Raw
from tests.support.streams import key_of

pytestmark = [pytest.mark.cases, pytest.mark.soak]

START_MS = int(pipeline.utc("2026-03-28T22:59:00").timestamp() * 1000)
LANDED = pipeline.utc("2026-03-29T09:00:00")
LONG_AFTER = pipeline.utc("2126-03-29T09:00:00")


class Event(NamedTuple):
    service: str
    metric: str
    at_ms: int
    value: float


Case = Sequence[Event]

_AT_EDGES = st.builds(
    lambda minute, offset: minute * 60_000 + offset,
    st.sampled_from([0, 1, 2, 59, 60, 61, 240]),
    st.sampled_from([-1, 0, 1, 30_000, 59_999]),
)
_ANYWHERE = st.integers(min_value=0, max_value=9 * 3600 * 1000)
_EVENTS = st.builds(
    Event,
    st.sampled_from(["a", "b", "größe", "検索-🚚"]),
    st.sampled_from(["cpu", "Zeit µs"]),
    st.one_of(_AT_EDGES, _ANYWHERE).map(lambda ms: START_MS + ms),
    DOUBLES,
)
_CASES = st.one_of(
    st.lists(_EVENTS, min_size=1, max_size=12),
    # Many events in one window, most of them ties, and some of them twice.
    st.lists(
        st.builds(
            Event, st.just("a"), st.just("cpu"), st.just(START_MS) | st.just(START_MS + 59_999), DOUBLES
        ),
        min_size=2,
        max_size=12,
    ).map(lambda events: events + events[: len(events) // 2]),
)


def by_hand() -> list[Case]:
    """Return more values than a sketch keeps: ties, hardly different ones, and a heavy-tailed mixture."""
    rng = chance(5)
    return [
        [Event("ties", "cpu", START_MS + n, float(n % 3)) for n in range(450)],
        [Event("offset", "cpu", START_MS + n * 100, 1e9 + n % 17 / 8) for n in range(450)],
        [Event("tail", "cpu", START_MS + n * 130, rng.lognormvariate(0, 3)) for n in range(450)],
    ]


def to_raw(copy: str, event: Event) -> tuple[str, Raw]:
    record = {
        "serviceId": f"{copy}/{event.service}",
        "metricName": event.metric,
        "value": event.value,
        "timestamp": event.at_ms,
    }
    return SOURCE.table, Raw(json.dumps(record).encode())


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [*generated(_CASES, 117), *by_hand()]


@pytest.fixture(scope="module")
def copies(cases: Sequence[Case]) -> list[Copy[Event]]:
    return copies_of(cases, seed=3)


@pytest.fixture(scope="module")
def outcome(spark: SparkSession, session_settings: Settings, copies: Sequence[Copy[Event]]) -> Outcome:
    return fold_copies(spark, session_settings, STREAM, copies, to_raw, landed_at=LANDED)


def test_the_cases_are_many(cases: Sequence[Case], copies: Sequence[Copy[Event]], outcome: Outcome) -> None:
    assert len(cases) == 120
    assert len(copies) == 720
    assert len(outcome.rows[SILVER]) == 6 * sum(map(len, cases))
    assert outcome.rows[DEAD_LETTERS] == []


def test_gold_of_every_copy_is_the_oracles(copies: Sequence[Copy[Event]], outcome: Outcome) -> None:
    clean = [
        Metric(f"{copy.name}/{event.service}", event.metric, event.value, event_time_us=event.at_ms * 1000)
        for copy in copies
        for batch in copy.batches
        for _, event in batch
    ]

    assert verdicts.window_differences(outcome.rows[GOLD], clean, outcome.settings) == []


def test_gold_of_every_copy_of_a_case_is_the_same_in_what_is_exact(
    cases: Sequence[Case], outcome: Outcome
) -> None:
    """This includes percentiles if the sketch has kept every value; others are left to the oracle."""
    exact = ("window_end", "count", "min", "max", "last_event_time", "is_final")
    percentiles = ("p50", "p90", "p95", "p99")
    made: dict[int, dict[str, list[tuple[object, ...]]]] = defaultdict(lambda: defaultdict(list))
    for row in outcome.rows[GOLD]:
        name, _, service = row["service_id"].partition("/")
        names = exact + percentiles * (row["count"] <= key_of(outcome.settings, "metrics", "quantile_k"))
        key = (service, row["metric_name"], row["window_start"])
        made[int(name.partition(".")[0])][name].append((*key, *(row[column] for column in names)))

    for number, case in enumerate(cases):
        assert len(made[number]) == 6
        assert len({tuple(sorted(rows, key=repr)) for rows in made[number].values()}) == 1, list(case)


def test_once_events_have_stopped_every_window_is_final_and_nothing_else_has_changed(
    outcome: Outcome,
) -> None:
    def by_key(rows: Sequence[dict[str, object]]) -> dict[tuple[object, ...], str]:
        """Return the rows as text, because NaN equals nothing."""
        keys = ("service_id", "metric_name", "window_start")
        return {tuple(row[name] for name in keys): repr(row | {"is_final": True}) for row in rows}

    rows = outcome.at(LONG_AFTER)[GOLD]

    assert all(row["is_final"] for row in rows)
    assert by_key(rows) == by_key(outcome.rows[GOLD])
