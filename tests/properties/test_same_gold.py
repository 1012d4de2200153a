"""Gold is a function of silver: neither order nor micro-batch cuts nor replays show in it.

A case is a set of events. Each of the 120 cases below (117 of hypothesis, 3 by hand) goes through the
pipeline as nine copies: in three random orders, and each order cut into micro-batches in three ways: all at
once, in a few pieces, spread over all of them. A copy's services carry its number, so that one run of the
pipeline has room for all 1,080 copies; a micro-batch is what they put into one bronze commit. Half-way and
at the end the last micro-batch of silver and of gold is run again, as after a crash.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from lakehouse.settings import Settings
from tests import pipeline
from tests.oracle import Judged
from tests.pipeline import DEAD_LETTERS, GOLD, SILVER, Raw, Row

START_MS = int(pipeline.utc("2026-03-28T22:59:00").timestamp() * 1000)
LANDED = pipeline.utc("2026-03-29T09:00:00")
BATCHES = 6
ORDERS = 3
PIECES = (1, 3, BATCHES)


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
_VALUES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 0.1, 0.2, 0.3, -7.5, 1e-300, 5e-324, 1e15, 1e150, -1e150]),
    st.integers(min_value=-3, max_value=3).map(float),
    st.floats(min_value=-1e150, max_value=1e150, allow_nan=False),
)
_EVENTS = st.builds(
    Event,
    st.sampled_from(["a", "b", "größe", "検索-🚚"]),
    st.sampled_from(["cpu", "Zeit µs"]),
    st.one_of(_AT_EDGES, _ANYWHERE).map(lambda ms: START_MS + ms),
    _VALUES,
)
_CASES = st.one_of(
    st.lists(_EVENTS, min_size=1, max_size=12),
    # Many events of one window, most of them ties, and some events twice.
    st.lists(
        st.builds(
            Event, st.just("a"), st.just("cpu"), st.just(START_MS) | st.just(START_MS + 59_999), _VALUES
        ),
        min_size=2,
        max_size=12,
    ).map(lambda events: events + events[: len(events) // 2]),
)


def generated(number: int) -> list[Case]:
    """Cases that hypothesis makes up: collected first, so that Spark runs once for all of them."""
    cases: list[Case] = []

    @hypothesis.settings(
        max_examples=number,
        phases=[Phase.generate],
        database=None,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(_CASES)
    def collect(case: Case) -> None:
        cases.append(case)

    collect()
    return cases


def by_hand() -> list[Case]:
    """More values than a sketch keeps: of a kind, hardly different, and in a heavy-tailed mixture."""
    rng = random.Random(5)  # noqa: S311 - meant to be repeatable
    return [
        [Event("ties", "cpu", START_MS + n, float(n % 3)) for n in range(450)],
        [Event("offset", "cpu", START_MS + n * 100, 1e9 + n % 17 / 8) for n in range(450)],
        [Event("tail", "cpu", START_MS + n * 130, rng.lognormvariate(0, 3)) for n in range(450)],
    ]


@dataclass(frozen=True)
class Copy:
    """A case in one order and cut: its events by micro-batch."""

    case: int
    name: str
    batches: Sequence[Sequence[Event]]


def copies_of(number: int, case: Case, rng: random.Random) -> Iterator[Copy]:
    for order in range(ORDERS):
        events = rng.sample(case, len(case))
        for pieces in PIECES:
            batches = sorted(rng.sample(range(BATCHES), pieces))
            edges = sorted(rng.randint(0, len(events)) for _ in range(pieces - 1))
            cut = zip([0, *edges], [*edges, len(events)], strict=True)
            content = dict(zip(batches, (events[start:end] for start, end in cut), strict=True))
            name = f"{number}.{order}.{pieces}"
            yield Copy(number, name, [content.get(batch, []) for batch in range(BATCHES)])


def raw(copy: Copy, event: Event) -> Raw:
    record = {
        "serviceId": f"{copy.name}/{event.service}",
        "metricName": event.metric,
        "value": event.value,
        "timestamp": event.at_ms,
    }
    return Raw(json.dumps(record).encode())


@dataclass(frozen=True)
class Outcome:
    """What a run of the pipeline made of the copies."""

    settings: Settings
    cases: Sequence[Case]
    copies: Sequence[Copy]
    gold: Sequence[Row]
    silver_rows: int
    dead_letters: int
    replayed: Sequence[tuple[str, int]]


@pytest.fixture(scope="module")
def outcome(
    spark: SparkSession, session_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Outcome:
    cases = [*generated(117), *by_hand()]
    rng = random.Random(3)  # noqa: S311 - meant to be repeatable
    copies = [copy for number, case in enumerate(cases) for copy in copies_of(number, case, rng)]
    cuts = [[raw(copy, event) for copy in copies for event in copy.batches[n]] for n in range(BATCHES)]
    for cut in cuts:
        rng.shuffle(cut)  # the copies among each other; a copy's order is random already
    lake = str(tmp_path_factory.mktemp("same-gold"))
    settings = session_settings.model_copy(update={"lake": lake, "max_bytes_per_batch": "1"})
    replayed: list[tuple[str, int]] = []
    landed = 0
    for half in (cuts[: BATCHES // 2], cuts[BATCHES // 2 :]):
        pipeline.land(spark, settings, half, landed_at=LANDED, first_offset=landed)
        landed += sum(map(len, half))
        pipeline.run_layers(spark, settings, "silver", "gold")
        for query in (SILVER, GOLD):
            pipeline.forget_last_commit(settings, query)
        replayed += [(one.query, one.batch) for one in pipeline.run_layers(spark, settings, "silver", "gold")]
    return Outcome(
        settings,
        cases,
        copies,
        pipeline.rows_of(spark, settings, GOLD),
        len(pipeline.rows_of(spark, settings, SILVER)),
        len(pipeline.rows_of(spark, settings, DEAD_LETTERS)),
        replayed,
    )


def test_the_cases_are_many_and_every_layer_was_replayed_twice(outcome: Outcome) -> None:
    assert len(outcome.cases) == 120
    assert len(outcome.copies) == 1080
    assert outcome.silver_rows == 9 * sum(map(len, outcome.cases))
    assert outcome.dead_letters == 0
    last_of_half, last = BATCHES // 2 - 1, BATCHES - 1
    assert outcome.replayed == [(SILVER, last_of_half), (GOLD, last_of_half), (SILVER, last), (GOLD, last)]


def test_gold_of_every_copy_is_the_oracles(outcome: Outcome) -> None:
    clean = [
        Judged(
            reasons=frozenset(),
            service_id=f"{copy.name}/{event.service}",
            metric_name=event.metric,
            value=event.value,
            event_time_us=event.at_ms * 1000,
        )
        for copy in outcome.copies
        for batch in copy.batches
        for event in batch
    ]

    assert pipeline.gold_differences(outcome.gold, clean, outcome.settings) == []


def test_gold_of_every_copy_of_a_case_is_the_same_in_what_is_exact(outcome: Outcome) -> None:
    """The percentiles too, where the sketch has kept every value; the others are the oracle's to judge."""
    exact = ("window_end", "count", "min", "max", "last_event_time", "is_final")
    percentiles = ("p50", "p90", "p95", "p99")
    made: dict[int, dict[str, list[tuple[object, ...]]]] = defaultdict(lambda: defaultdict(list))
    for row in outcome.gold:
        name, _, service = row["service_id"].partition("/")
        names = exact + percentiles * (row["count"] <= outcome.settings.quantile_k)
        key = (service, row["metric_name"], row["window_start"])
        made[int(name.partition(".")[0])][name].append((*key, *(row[column] for column in names)))

    for number, case in enumerate(outcome.cases):
        assert len(made[number]) == 9
        assert len({tuple(sorted(rows, key=repr)) for rows in made[number].values()}) == 1, list(case)
