"""Calls are a function of silver and the present time: neither order nor cuts affect them.

110 cases, each in two orders and three cuts, and with all of one side before all of the other; see
tests/properties/copies.py. Events that are the gap apart to the microsecond, chains, ties, payloads of every
JSON type, late and malformed records.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from lakehouse.settings import Settings
from tests.oracles.calls import SIDES, CallEvent, call_records
from tests.properties.copies import BATCHES, Copy, Outcome, copies_of, fold_copies, generated
from tests.properties.strategies import LATE_MS
from tests.support import pipeline, verdicts
from tests.support.pipeline import DEAD_LETTERS, Raw, Row
from tests.support.streams import CALLS, with_streams

pytestmark = [pytest.mark.cases, pytest.mark.soak]

START = pipeline.utc("2026-03-28T23:58:00")
LANDED = START + timedelta(minutes=30)
NOW = START + timedelta(minutes=5)
LATER = {
    START + timedelta(minutes=7, microseconds=1): {"open", "closed"},
    START + timedelta(hours=1): {"closed"},
}
GOLD = "gold.call_records"
KEYS = ("user1", "user2", "ts")
GAP_S, GRACE_S = 60, 30


class Said(NamedTuple):
    """An event of one side, `at_us` after START; its payload is JSON, or empty if the record has none."""

    side: str
    users: tuple[str, str]
    at_us: int
    payload: str
    partition: int


_USERS = st.sampled_from([("a", "b"), ("b", "a"), ("a-b", "c"), ("a", "b-c"), ("größe", "検索-🚚")])
_AT_GAPS = st.builds(
    lambda gaps, offset: gaps * GAP_S * 1_000_000 + offset,
    st.integers(min_value=0, max_value=6),
    st.sampled_from([-1, 0, 0, 0, 1, 30_000_000]),
)
_AT = st.one_of(_AT_GAPS, _AT_GAPS, st.integers(0, 360_000_000), st.just(LATE_MS * 1000))
_TEXTS = ["", "null", '""', '"busy"', '"größe \\"x\\""', '"12"', '"true"', '"null"', '"{}"']
_OTHERS = ["0", "-12.50", "1e3", "true", "{}", "[]", '{"a":[1,null,"ü"],"b":{"c":0.1}}', "[[1,2],{}]", "NaN"]
_PAYLOADS = st.sampled_from(_TEXTS + _OTHERS)
_SAID = st.builds(Said, st.sampled_from(SIDES), _USERS, _AT, _PAYLOADS, st.sampled_from([0, 1]))
_OF_ONE_PAIR = st.builds(
    Said, st.sampled_from(SIDES), st.just(("a", "b")), _AT_GAPS, _PAYLOADS, st.sampled_from([0, 1])
)
CASES = st.lists(_SAID, min_size=1, max_size=12) | st.lists(_OF_ONE_PAIR, min_size=2, max_size=12)


def chain() -> list[Said]:
    """Return events of both sides that follow one another in one long call."""
    return [Said(SIDES[n % 2], ("a", "b"), n * GAP_S * 1_000_000, str(n), n % 2) for n in range(9)]


def one_side_first(cases: Sequence[Sequence[Said]]) -> list[Copy[Said]]:
    """Return every case twice, all of one side in the first micro-batch and all of the other in the last."""
    copies = []
    for number, case in enumerate(cases):
        for side in SIDES:
            batches: list[list[tuple[int, Said]]] = [[] for _ in range(BATCHES)]
            for place, said in enumerate(case):
                batches[0 if said.side == side else -1].append((place, said))
            copies.append(Copy(number, f"{number}.{side}", batches))
    return copies


def to_raw(copy: str, said: Said) -> tuple[str, Raw]:
    user1, user2 = said.users
    at = (START + timedelta(microseconds=said.at_us)).isoformat()
    payload = f',"{said.side}":{said.payload}' if said.payload else ""
    record = (
        f'{{"user1":{json.dumps(f"{copy}/{user1}")},"user2":{json.dumps(user2)},"timestamp":"{at}"{payload}}}'
    )
    return f"call_{said.side}", Raw(record.encode(), partition=said.partition)


@pytest.fixture(scope="module")
def copies() -> Sequence[Copy[Said]]:
    cases = [*generated(CASES, 109), chain()]
    return [*copies_of(cases, seed=7), *one_side_first(cases)]


@pytest.fixture(scope="module")
def outcome(spark: SparkSession, session_settings: Settings, copies: Sequence[Copy[Said]]) -> Outcome:
    settings = with_streams(session_settings, calls={"gap": f"{GAP_S}s", "grace": f"{GRACE_S}s"})
    return fold_copies(spark, settings, CALLS, copies, to_raw, landed_at=LANDED, now=NOW)


def expected_at(outcome: Outcome, now: datetime) -> list[Row]:
    events = [
        event for side in SIDES for event in outcome.accepted(f"call_{side}", partial(CallEvent, side=side))
    ]
    return call_records(events, pipeline.micros(now), gap_s=GAP_S, grace_s=GRACE_S)


def test_the_cases_are_many_and_of_every_kind(outcome: Outcome, copies: Sequence[Copy[Said]]) -> None:
    rows = outcome.rows[GOLD]

    assert len(copies) == 880
    assert {reason["rule"] for row in outcome.rows[DEAD_LETTERS] for reason in row["reasons"]} == {
        "late",
        "not_json",
    }
    assert min(sum(row["status"] == status for row in rows) for status in ("open", "closed")) > 200
    assert sum(row["analytics_events"] > 0 and row["metrics_events"] > 0 for row in rows) > 200
    assert max(row["analytics_events"] + row["metrics_events"] for row in rows) >= 8


def test_silver_and_the_dead_letters_are_the_oracles(outcome: Outcome) -> None:
    assert list(outcome.silver_differences()) == []


def test_the_calls_of_every_copy_are_the_oracles(outcome: Outcome) -> None:
    assert verdicts.row_differences(outcome.rows[GOLD], expected_at(outcome, NOW), KEYS) == []


def test_the_clock_alone_closes_what_is_due(outcome: Outcome) -> None:
    for now, statuses in LATER.items():
        rows = outcome.at(now)[GOLD]
        assert verdicts.row_differences(rows, expected_at(outcome, now), KEYS) == []
        assert {row["status"] for row in rows} == statuses
