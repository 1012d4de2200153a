"""Upkeep while layers write: no run fails, no row is lost or doubled, and the audit remains clean."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import SparkSession

from lakehouse.engine.layers import LAYERS
from lakehouse.engine.runtime.runner import RunOptions, run, utc_now
from lakehouse.engine.runtime.signals import Stop
from lakehouse.operations.audit import audit
from lakehouse.operations.maintenance.rounds import Rounds
from lakehouse.operations.maintenance.upkeep import Keeper, tasks
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from lakehouse.storage.tables import upkeep as files
from tests.oracles.metrics import Metric
from tests.support import pipeline, verdicts
from tests.support.beside import beside, event
from tests.support.pipeline import BRONZE, GOLD, SILVER, STREAM, await_
from tests.support.settings import MakeSettings

NOW = pipeline.utc("2026-03-01T00:00:00")
ROUNDS = 15
FILLED = 10_000  # gold's rows at the start; every merge rewrites a table of up to 4,000 rows in full


def left_behind(table: Path, number: int) -> Path:
    file = table / f"part-{number:05}-left-behind.snappy.parquet"
    file.write_bytes(b"")
    long_ago = time.time() - 30 * 24 * 3600
    os.utime(file, (long_ago, long_ago))
    return file


def told(settings: Settings) -> int:
    """Return how many events there are according to the last messages of all rows."""
    last: dict[tuple[bytes, int], int] = {}
    topic = settings.topic("metrics-aggregated-1m")
    for message in pipeline.read_topic(settings.kafka.bootstrap_servers, topic):
        value = json.loads(message.value)
        last[message.key, value["windowStart"]] = value["count"]
    return sum(last.values())


@pytest.mark.slow
@pytest.mark.soak
def test_rounds_beside_a_live_run(
    spark: SparkSession, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upkeep runs in the run's quiet moments, and also under leases, as in a process beside it.

    Each event is a minute earlier than the last, so that every merge adds a file to gold. If time moved
    forward, each merge would rewrite the file of the newest row, which becomes final. Some events change an
    old row instead. In every fifth round beside the run, VACUUM has something to delete: a file that a killed
    writer left a month ago. Versions are kept for longer than a round of one process takes. Otherwise, its
    VACUUM would delete files that the OPTIMIZE of the other still reads.
    """
    settings = make_settings({"kafka.topic_partitions": 1, "maintenance.keep_versions_s": 60})
    lake, sent, notices, optimized = Lake(spark, settings.lake), list[int](), list[str](), Counter[str]()
    litter = list[Path]()
    monkeypatch.setattr(files, "_FEW_SMALL_FILES", 1)
    optimize = files.optimize

    def counted(session: SparkSession, path: str, cluster_by: str | None, target_bytes: int) -> bool:
        done = optimize(session, path, cluster_by, target_bytes)
        optimized[path] += done
        return done

    monkeypatch.setattr(files, "optimize", counted)
    names = (BRONZE, SILVER, GOLD)
    todo = [task for task in tasks([STREAM], settings) if task.spec.qualified_name in names]
    every = timedelta(seconds=1)
    rounds = Rounds(lake, todo, settings, every=every, clock=utc_now, on_notice=notices.append)

    def layers(over: Event) -> None:
        options = RunOptions("100 milliseconds", stop=Stop(over), upkeep=rounds, on_notice=notices.append)
        run(lake, [STREAM], LAYERS, settings, options)

    def sending(over: Event) -> None:
        while not over.wait(0.5):
            at = NOW - timedelta(minutes=FILLED + len(sent))
            again = NOW if len(sent) % 100 == 0 else at
            pipeline.send(settings, [event(at, len(sent)), event(again, 0.5)])
            sent.append(len(sent))

    def from_outside(over: Event) -> None:
        keeper = Keeper(lake, settings)
        for number in itertools.count():
            if over.wait(1):
                return
            if number % 5 == 0:
                litter.extend(left_behind(path, number) for path in paths)
            for task in todo:
                keeper.keep(task, utc_now())

    filling = [event(NOW - timedelta(minutes=minute), minute**0.5) for minute in range(FILLED)]
    pipeline.send(settings, filling)
    paths = [pipeline.path_of(settings, table) for table in names]
    with beside(layers):
        await_(lambda: all(any(path.glob("*.parquet")) for path in paths))
        with beside(sending), beside(from_outside):
            await_(lambda: min(optimized[str(path)] for path in paths) >= ROUNDS, timeout_s=1800)
        clean = FILLED + 2 * len(sent)
        await_(lambda: sum(row["count"] for row in pipeline.rows_of(settings, GOLD)) == clean)
        await_(lambda: not any(file.exists() for file in litter))

    assert litter
    assert [line for line in notices if "fail" in line] == []
    judged = verdicts.judge_batches([pipeline.rows_of(settings, BRONZE)], settings)
    assert verdicts.same_silver(pipeline.rows_of(settings, SILVER), judged)
    rows = pipeline.rows_of(settings, GOLD)
    assert verdicts.window_differences(rows, verdicts.accepted(judged, Metric), settings) == []
    report = audit(lake, [STREAM], settings, utc_now())
    assert [check for check in report.checks if check.differences] == []
    assert report.is_clean
    assert told(settings) == clean
