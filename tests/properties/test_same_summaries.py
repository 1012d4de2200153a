"""Ten-minute summaries are a function of silver: neither order nor cuts affect them.

103 cases (102 from Hypothesis, 1 by hand), each in two orders and three cuts; see tests/properties/copies.py.
Several services per environment, and environments that are absent, null, empty or called default.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from lakehouse.settings import Settings
from tests.oracles import metrics as oracle
from tests.properties.copies import Copy, Outcome, copies_of, fold_copies, generated
from tests.properties.strategies import DOUBLES, NAMES, around_windows
from tests.support import pipeline, verdicts
from tests.support.chance import chance
from tests.support.pipeline import DEAD_LETTERS, SOURCE, Raw
from tests.support.streams import METRICS, METRICS_SUMMARY_10M

pytestmark = [pytest.mark.cases, pytest.mark.soak]

START_MS = int(pipeline.utc("2026-03-28T22:50:00").timestamp() * 1000)
LANDED = pipeline.utc("2026-03-29T12:00:00")
STREAM = replace(METRICS, gold=(METRICS_SUMMARY_10M,))
GOLD = "gold.metrics_summary_10m"


class Measured(NamedTuple):
    """An event; its environment is JSON, or empty if the record has none."""

    service: str
    metric: str
    environment: str
    at_ms: int
    value: float


ENVIRONMENTS = ("", "null", '""', '"default"', '"prod"', '"größe"', '"検索-🚚"')
_AT = around_windows(300_000).map(lambda ms: START_MS + ms)
_MEASURED = st.builds(
    Measured, NAMES, st.sampled_from(["cpu", "Zeit µs"]), st.sampled_from(ENVIRONMENTS), _AT, DOUBLES
)
_IN_ONE_WINDOW = st.builds(
    Measured,
    NAMES,
    st.just("cpu"),
    st.sampled_from(["", '"default"']),
    st.sampled_from([START_MS, START_MS + 299_999, START_MS + 300_000, START_MS + 599_999]),
    DOUBLES,
)
CASES = st.lists(_MEASURED, min_size=1, max_size=12) | st.lists(_IN_ONE_WINDOW, min_size=2, max_size=12)


def by_hand() -> list[Measured]:
    """Return more values for one summary than a sketch keeps, of three services, and one per environment."""
    rng = chance(5)
    everywhere = [Measured("s0", "cpu", environment, START_MS, 1.0) for environment in ENVIRONMENTS]
    return everywhere + [
        Measured(f"s{n % 3}", "tail", '"prod"', START_MS + n * 1000, rng.lognormvariate(0, 3))
        for n in range(450)
    ]


def to_raw(copy: str, measured: Measured) -> tuple[str, Raw]:
    record = {
        "serviceId": measured.service,
        "metricName": f"{copy}/{measured.metric}",
        "value": measured.value,
        "timestamp": measured.at_ms,
    }
    if measured.environment:
        record["environment"] = json.loads(measured.environment)
    return SOURCE.table, Raw(json.dumps(record).encode())


@pytest.fixture(scope="module")
def copies() -> Sequence[Copy[Measured]]:
    return copies_of([*generated(CASES, 102), by_hand()], seed=6)


@pytest.fixture(scope="module")
def outcome(spark: SparkSession, session_settings: Settings, copies: Sequence[Copy[Measured]]) -> Outcome:
    return fold_copies(spark, session_settings, STREAM, copies, to_raw, landed_at=LANDED)


def test_the_cases_are_many_and_of_every_kind(outcome: Outcome, copies: Sequence[Copy[Measured]]) -> None:
    assert len(copies) == 618
    assert {reason["rule"] for row in outcome.rows[DEAD_LETTERS] for reason in row["reasons"]} == {"late"}
    assert {row["environment"] for row in outcome.rows[GOLD]} == {"default", "", "prod", "größe", "検索-🚚"}
    assert max(row["count"] for row in outcome.rows[GOLD]) == 450
    assert {row["is_final"] for row in outcome.rows[GOLD]} == {True, False}


def test_silver_and_the_dead_letters_are_the_oracles(outcome: Outcome) -> None:
    assert list(outcome.silver_differences()) == []


def test_the_summaries_of_every_copy_are_the_oracles(outcome: Outcome) -> None:
    clean = outcome.accepted(SOURCE.table, oracle.Metric)
    rows, grain = outcome.rows[GOLD], oracle.METRICS_SUMMARY_10M

    assert verdicts.window_differences(rows, clean, outcome.settings, grain) == []
