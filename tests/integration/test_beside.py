"""What may run at any time: rebuild, audit, expectations, maintenance and replay beside layers that run on.

The layers run in a thread while another sends; each of the others has its turn meanwhile. At the end gold is
an oracle's, and an audit of the lake at rest finds nothing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import pytest
from pyspark.sql import SparkSession

from lakehouse.audit import audit
from lakehouse.dead_letters import Selection
from lakehouse.maintenance import clear_state
from lakehouse.quality.checking import check, make_context, suite_of
from lakehouse.quality.subjects import Lake, subjects
from lakehouse.query import ask
from lakehouse.rebuilding import Span, rebuild_gold
from lakehouse.replaying import replay
from lakehouse.runner import run, utc_now
from lakehouse.settings import Settings
from lakehouse.stopping import Stop
from lakehouse.streams.metrics import METRICS, METRICS_1M
from tests import pipeline, verdicts
from tests.conftest import MakeSettings
from tests.oracles.metrics import METRICS_SUMMARY_10M, Metric
from tests.pipeline import BRONZE, DEAD_LETTERS, GOLD, SILVER, Raw, await_

LONG_AGO = pipeline.utc("2026-03-01T00:00:00")
NOW = LONG_AGO + timedelta(days=8)  # a day more than a record may be late
SUMMARIES = "gold.metrics_summary_10m"


def event(at: datetime, value: float = 1.0) -> Raw:
    record = {"serviceId": "s", "metricName": "m", "value": value, "timestamp": int(at.timestamp() * 1000)}
    return Raw(json.dumps(record).encode())


@contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Let the work go on in a thread for the length of the block; its failure is the test's."""
    over, failures = threading.Event(), list[BaseException]()

    def guarded() -> None:
        try:
            work(over)
        except BaseException as failure:  # noqa: BLE001 - raised below
            failures.append(failure)

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(300)
    assert failures == []
    assert not thread.is_alive()


@pytest.mark.slow
def test_what_may_run_at_any_time_leaves_running_layers_as_they_are(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    settings = make_settings(topic_partitions=2)
    rounds: list[int] = []

    def layers(over: threading.Event) -> None:
        run(
            spark,
            [METRICS],
            ["bronze", "silver", "gold"],
            settings,
            trigger="200 milliseconds",
            stop=Stop(over),
        )

    def sending(over: threading.Event) -> None:
        while not over.wait(0.2):
            at = NOW + timedelta(seconds=7 * len(rounds))
            pipeline.send(settings, [event(at, len(rounds)), event(at, 0.5), Raw(b"not JSON")])
            rounds.append(len(rounds))

    def counted() -> int:
        if pipeline.version_of(settings, GOLD) < 0:
            return 0
        return sum(row["count"] for row in pipeline.rows_of(spark, settings, GOLD))

    def another_round_is_in_gold() -> None:
        before = counted()
        await_(lambda: counted() > before)

    pipeline.send(settings, [event(LONG_AGO), event(LONG_AGO)])
    with beside(layers):
        await_(lambda: counted() == 2)
        with beside(sending):
            another_round_is_in_gold()
            gold = f"delta.`{pipeline.path_of(settings, GOLD)}`"
            ask(spark, f"UPDATE {gold} SET count = count + 100 WHERE min = 1.0", limit=1)
            (rebuilt,) = rebuild_gold(spark, METRICS_1M, settings, Span())
            assert rebuilt.changed >= 1
            another_round_is_in_gold()

            report = audit(spark, [METRICS], settings, utc_now())
            assert [one for one in report.checks if one.differences] == []
            assert broken_expectations(spark, settings) == []
            another_round_is_in_gold()

            assert sum(one.rows for one in clear_state(spark, [METRICS], settings)) >= 2
            pipeline.send(settings, [event(LONG_AGO, 7.0)])
            late = Selection(rule="late")
            await_(lambda: late_letters(spark, settings))
            replayed = replay(spark, [METRICS], settings, late, utc_now(), allow_late=True)
            assert replayed.passed == 1
            another_round_is_in_gold()
        await_(lambda: counted() == 2 + 2 * len(rounds) + 1)

    judged = verdicts.judge_batches([pipeline.rows_of(spark, settings, BRONZE)], settings)
    clean = verdicts.accepted(judged, Metric)
    minutes, summaries = (pipeline.rows_of(spark, settings, name) for name in (GOLD, SUMMARIES))
    assert verdicts.same_silver(pipeline.rows_of(spark, settings, SILVER), judged)
    assert verdicts.window_differences(minutes, clean, settings) == []
    assert verdicts.window_differences(summaries, clean, settings, METRICS_SUMMARY_10M) == []
    report = audit(spark, [METRICS], settings, utc_now())
    assert [one for one in report.checks if one.differences] == []
    assert report.is_clean


def late_letters(spark: SparkSession, settings: Settings) -> list[pipeline.Row]:
    letters = pipeline.rows_of(spark, settings, DEAD_LETTERS)
    return [row for row in letters if row["reasons"][0]["rule"] == "late"]


def broken_expectations(spark: SparkSession, settings: Settings) -> list[str]:
    every = {one.name: one for one in subjects([METRICS], settings)}
    lake, broken = Lake(spark, list(every.values()), settings, utc_now()), []
    for name in (SILVER, GOLD):
        suite = suite_of(every[name])
        assert suite is not None
        report = check(every[name], suite, lake, make_context())
        broken += [f"{name}: {one}" for one in report.findings if one.severity == "fail" and not one.success]
    return broken
