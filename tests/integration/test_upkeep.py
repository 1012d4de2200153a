"""Upkeep beside layers that write: no run fails, no row is lost or doubled, and the audit stays clean."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from threading import Event

import pytest
from pyspark.sql import SparkSession

from lakehouse.audit import audit
from lakehouse.layers.query import LAYERS
from lakehouse.repair.rounds import Rounds
from lakehouse.repair.upkeep import Keeper, tasks
from lakehouse.runtime.runner import RunOptions, run, utc_now
from lakehouse.runtime.signals import Stop
from lakehouse.tables import Lake
from lakehouse.tables import upkeep as files
from tests import pipeline, verdicts
from tests.conftest import MakeSettings
from tests.integration.test_beside import beside, event
from tests.oracles.metrics import Metric
from tests.pipeline import BRONZE, GOLD, SILVER, STREAM, await_

NOW = pipeline.utc("2026-03-01T00:00:00")
ROUNDS = 50


@pytest.mark.slow
@pytest.mark.soak
def test_fifty_rounds_beside_live_trips(
    spark: SparkSession, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds of the run itself, between its trips, and as many under leases as a process beside it takes."""
    settings = make_settings(topic_partitions=1, files_kept_h=1)
    lake, sent, notices, optimized = Lake(spark, settings.lake), list[int](), list[str](), Counter[str]()
    monkeypatch.setattr(files, "_FEW_SMALL_FILES", 1)
    optimize = files.optimize

    def counted(session: SparkSession, path: str, cluster_by: str | None, target_bytes: int) -> bool:
        done = optimize(session, path, cluster_by, target_bytes)
        optimized[path] += done
        return done

    monkeypatch.setattr(files, "optimize", counted)
    todo, every = tasks([STREAM], settings), timedelta(seconds=1)
    rounds = Rounds(lake, todo, settings, every=every, clock=utc_now, on_notice=notices.append)

    def layers(over: Event) -> None:
        options = RunOptions(
            "100 milliseconds", stop=Stop(over), trips=True, upkeep=rounds, on_notice=notices.append
        )
        run(lake, [STREAM], LAYERS, settings, options)

    def sending(over: Event) -> None:
        while not over.wait(0.5):
            at = NOW + timedelta(seconds=7 * len(sent))
            pipeline.send(settings, [event(at, len(sent)), event(at, 0.5)])
            sent.append(len(sent))

    def from_outside(over: Event) -> None:
        keeper = Keeper(lake, settings)
        while not over.wait(1):
            for task in todo:
                keeper.keep(task, utc_now())

    paths = [str(pipeline.path_of(settings, table)) for table in (BRONZE, SILVER, GOLD)]
    with beside(layers):
        with beside(sending), beside(from_outside):
            await_(lambda: min(optimized[path] for path in paths) >= ROUNDS, timeout_s=1800)
        await_(lambda: sum(row["count"] for row in pipeline.rows_of(settings, GOLD)) == 2 * len(sent))

    assert [line for line in notices if "fail" in line] == []
    judged = verdicts.judge_batches([pipeline.rows_of(settings, BRONZE)], settings)
    assert verdicts.same_silver(pipeline.rows_of(settings, SILVER), judged)
    rows = pipeline.rows_of(settings, GOLD)
    assert verdicts.window_differences(rows, verdicts.accepted(judged, Metric), settings) == []
    report = audit(lake, [STREAM], settings, utc_now())
    assert [check for check in report.checks if check.differences] == []
    assert report.is_clean
    topic = settings.topic("metrics-aggregated-1m")
    last: dict[tuple[bytes, int], int] = {}
    for message in pipeline.read_topic(settings.kafka_bootstrap_servers, topic):
        value = json.loads(message.value)
        last[message.key, value["windowStart"]] = value["count"]
    assert sum(last.values()) == 2 * len(sent)
