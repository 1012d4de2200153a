"""What may run at any time: rebuild, audit, expectations, maintenance and replay beside running layers.

The layers run in one thread while another sends records; meanwhile each operation takes its turn. At the end,
gold matches the oracle, and an audit of the lake at rest finds nothing.
"""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from pyspark.sql import SparkSession

from lakehouse.engine.records.dead_letters import Selection
from lakehouse.engine.runtime.runner import RunOptions, run, utc_now
from lakehouse.engine.runtime.signals import Stop
from lakehouse.operations.audit import Check, Report, audit
from lakehouse.operations.catalog.spark_sql import ask
from lakehouse.operations.maintenance.fold_state import clear_state
from lakehouse.operations.quality.checking import check, make_context, suite_of
from lakehouse.operations.quality.subjects import PinnedTables, subjects
from lakehouse.operations.repair.rebuild_gold import WindowSpan, rebuild_gold
from lakehouse.operations.repair.replay import replay
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from tests.oracles.metrics import Metric
from tests.support import pipeline, verdicts
from tests.support.beside import beside, event
from tests.support.pipeline import BRONZE, DEAD_LETTERS, GOLD, SILVER, STREAM, Raw, await_
from tests.support.settings import MakeSettings
from tests.support.streams import METRICS_1M

LONG_AGO = pipeline.utc("2026-03-01T00:00:00")
NOW = LONG_AGO + timedelta(days=8)  # a day more than a record may be late


@pytest.mark.slow
@pytest.mark.soak
def test_what_may_run_at_any_time_leaves_running_layers_as_they_are(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    settings = make_settings({"kafka.topic_partitions": 1})
    lake, sent = Lake(spark, settings.lake), list[int]()

    def layers(over: threading.Event) -> None:
        trigger = "3 seconds"
        run(lake, [STREAM], ["bronze", "silver", "gold"], settings, RunOptions(trigger, stop=Stop(over)))

    def sending(over: threading.Event) -> None:
        while not over.wait(3):
            at = NOW + timedelta(seconds=7 * len(sent))
            pipeline.send(settings, [event(at, len(sent)), event(at, 0.5), Raw(b"not JSON")])
            sent.append(len(sent))

    def merged() -> int:
        """Return how many micro-batches gold has done: the commits in its log that note what it has read."""
        log = pipeline.path_of(settings, GOLD) / "_delta_log"
        return sum(f"{GOLD} reads " in file.read_text() for file in log.glob("0*.json"))

    pipeline.send(settings, [event(LONG_AGO), event(LONG_AGO)])
    with beside(layers):
        await_(lambda: merged() == 1)
        with beside(sending):
            await_(lambda: merged() >= 2)
            gold = f"delta.`{pipeline.path_of(settings, GOLD)}`"
            ask(spark, f"UPDATE {gold} SET count = count + 100 WHERE min = 1.0", limit=1, write=True)
            (rebuilt,) = rebuild_gold(lake, METRICS_1M, WindowSpan())
            assert rebuilt.changed >= 1
            assert differences(audit(lake, [STREAM], settings, utc_now())) == []
            assert broken_expectations(spark, settings, GOLD) == []

            await_(lambda: clear_state(lake, [STREAM])[0].rows == 1)
            pipeline.send(settings, [event(LONG_AGO, 7.0)])
            await_(lambda: late_letters(settings))
            late = Selection(rule="late")
            assert replay(lake, [STREAM], late, utc_now(), allow_late=True).passed == 1
            before = merged()
            await_(lambda: merged() > before + 1)
        clean = 2 + 2 * len(sent) + 1
        await_(lambda: sum(row["count"] for row in pipeline.rows_of(settings, GOLD)) == clean)

    judged = verdicts.judge_batches([pipeline.rows_of(settings, BRONZE)], settings)
    minutes = pipeline.rows_of(settings, GOLD)
    assert verdicts.same_silver(pipeline.rows_of(settings, SILVER), judged)
    assert verdicts.window_differences(minutes, verdicts.accepted(judged, Metric), settings) == []
    report = audit(lake, [STREAM], settings, utc_now())
    assert differences(report) == []
    assert report.is_clean


def differences(report: Report) -> list[Check]:
    return [check for check in report.checks if check.differences]


def late_letters(settings: Settings) -> list[pipeline.Row]:
    letters = pipeline.rows_of(settings, DEAD_LETTERS)
    return [row for row in letters if row["reasons"][0]["rule"] == "late"]


def broken_expectations(spark: SparkSession, settings: Settings, name: str) -> list[str]:
    every = {one.name: one for one in subjects([STREAM])}
    suite = suite_of(every[name])
    assert suite is not None
    pinned = PinnedTables(Lake(spark, settings.lake), list(every.values()), settings, utc_now())
    findings = check(every[name], suite, pinned, make_context()).findings
    return [one.expectation for one in findings if one.severity == "fail" and not one.success]
