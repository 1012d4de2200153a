"""What a crash leaves behind is repaired by the next run, and what cannot be repaired is refused.

A micro-batch goes: plan (checkpoint/offsets/N), write the tables, note it (checkpoint/commits/N). A crash may
come between any two of these; each test puts one there, or kills the process for real.

Cuts are bronze commits; with `max_bytes_per_batch` of a byte each is a micro-batch of its own.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from lakehouse import tables
from lakehouse.errors import CheckpointError, StreamError, TableError
from lakehouse.layer import LayerName
from lakehouse.runner import BatchDone, run
from lakehouse.settings import Settings
from lakehouse.stopping import Stop
from tests import pipeline, verdicts
from tests.conftest import MakeSettings
from tests.oracles.metrics import Metric
from tests.pipeline import BRONZE, DEAD_LETTERS, GOLD, SILVER, Raw
from tests.processes import QUICK_JVM

START = pipeline.utc("2026-03-01T00:00:00")
LANDED = pipeline.utc("2026-03-29T01:00:00")
DAY = timedelta(days=1)
QUERIES: dict[LayerName, str] = {"bronze": BRONZE, "silver": SILVER, "gold": GOLD}
ONE_CUT_A_BATCH = {"max_bytes_per_batch": "1"}


class CrashError(Exception):
    """What stands in for the end of the process."""


def event(at: datetime, service: str = "s", value: float = 1.0) -> Raw:
    record = {
        "serviceId": service,
        "metricName": "m",
        "value": value,
        "timestamp": int(at.timestamp() * 1000),
    }
    return Raw(json.dumps(record).encode())


REFUSED = Raw(b"not JSON")

# The watermark lies seven days behind the newest event before the cut. So the second cut moves it to where
# some of its own records lie before it: judged again under it, they would be late.
CUTS = (
    (event(START), event(START - 9 * DAY, "no watermark yet")),
    (
        event(START + 10 * DAY),
        event(START + DAY, "late from then on"),
        event(START - 8 * DAY, "late"),
        REFUSED,
    ),
    (event(START + 2 * DAY, "late"), event(START + 4 * DAY, "in time"), event(START + 12 * DAY), REFUSED),
)


def caught_up_differences(
    spark: SparkSession, settings: Settings, cuts: Sequence[Sequence[Raw]]
) -> list[str]:
    """In what the tables are not what an undisturbed run of the cuts makes of them."""
    bronze = sorted(pipeline.rows_of(spark, settings, BRONZE), key=pipeline.coordinates_of)
    batches, start = [], 0
    for cut in cuts:
        batches.append(bronze[start : start + len(cut)])
        start += len(cut)
    judged = verdicts.judge_batches(batches, settings)
    silver, dead, gold = (pipeline.rows_of(spark, settings, table) for table in (SILVER, DEAD_LETTERS, GOLD))
    differences = verdicts.window_differences(gold, verdicts.accepted(judged, Metric), settings)
    seen = Counter(pipeline.coordinates_of(row) for row in [*silver, *dead])
    if seen != Counter(map(pipeline.coordinates_of, bronze)):
        differences.append(f"not in exactly one table: {[at for at, times in seen.items() if times != 1]}")
    if not verdicts.same_silver(silver, judged):
        differences.append("silver differs")
    if not verdicts.same_dead_letters(dead, judged):
        differences.append("dead letters differ")
    return differences


# A crash after the tables were written and before the checkpoint took note.


@pytest.fixture(scope="module")
def lake(
    spark: SparkSession, session_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Settings, dict[str, int]]:
    """A lake of silver and gold that has caught up with all cuts, and the versions of its tables."""
    settings = session_settings.model_copy(
        update={"lake": str(tmp_path_factory.mktemp("crash")), **ONE_CUT_A_BATCH}
    )
    pipeline.land(spark, settings, CUTS, landed_at=LANDED)
    done = pipeline.run_layers(spark, settings, "silver", "gold")
    assert [(one.query, one.batch) for one in done] == [
        (query, n) for query in (SILVER, GOLD) for n in range(3)
    ]
    assert caught_up_differences(spark, settings, CUTS) == []
    return settings, pipeline.versions(settings)


@pytest.mark.parametrize("layer", ["silver", "gold"])
def test_a_micro_batch_that_only_its_checkpoint_has_forgotten_is_not_written_again(
    spark: SparkSession, lake: tuple[Settings, dict[str, int]], layer: LayerName
) -> None:
    settings, versions = lake

    batch = pipeline.forget_last_commit(settings, QUERIES[layer])
    done = pipeline.run_layers(spark, settings, layer)

    assert [(one.query, one.batch) for one in done] == [(QUERIES[layer], batch)]
    assert pipeline.versions(settings) == versions
    assert caught_up_differences(spark, settings, CUTS) == []


def test_records_of_bronze_are_not_landed_again_by_a_checkpoint_that_forgot(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    settings = make_settings()
    pipeline.send(settings, [event(START), event(START + DAY)])
    pipeline.run_layers(spark, settings, "bronze")
    before, version = pipeline.rows_of(spark, settings, BRONZE), pipeline.version_of(settings, BRONZE)

    batch = pipeline.forget_last_commit(settings, BRONZE)
    done = pipeline.run_layers(spark, settings, "bronze")

    assert [(one.batch, one.result.rows) for one in done] == [(batch, 0)]
    assert pipeline.version_of(settings, BRONZE) == version
    assert sorted(map(repr, pipeline.rows_of(spark, settings, BRONZE))) == sorted(map(repr, before))


def test_a_first_micro_batch_without_dead_letters_gets_the_same_verdicts_when_it_runs_again(
    spark: SparkSession, lake_settings: Settings
) -> None:
    """Its own rows put a watermark behind which some of them lie; nothing of that existed the first time."""
    cuts = [[event(START), event(START - 8 * DAY)]]
    pipeline.land(spark, lake_settings, cuts, landed_at=LANDED)
    pipeline.run_layers(spark, lake_settings, "silver", "gold")
    versions = pipeline.versions(lake_settings)

    pipeline.forget_last_commit(lake_settings, SILVER)
    pipeline.run_layers(spark, lake_settings, "silver", "gold")

    assert pipeline.versions(lake_settings) == versions
    assert caught_up_differences(spark, lake_settings, cuts) == []


# A crash before, between and after the writes, with more data waiting than the micro-batch had.


def crash_at(write: Callable[..., None], number: int, *, after: bool) -> Callable[..., None]:
    """A write that works as it does, but for one that fails: before it does anything, or once it is done."""
    calls = 0

    def crashing(*arguments: object, **named: object) -> None:
        nonlocal calls
        calls += 1
        if calls != number:
            write(*arguments, **named)
            return
        if after:
            write(*arguments, **named)
        raise CrashError

    return crashing


@pytest.mark.parametrize(
    ("number", "after"),
    [
        pytest.param(1, False, id="before the dead letters"),
        pytest.param(1, True, id="between the two"),
        pytest.param(2, True, id="after the clean rows"),
    ],
)
def test_silver_gives_the_verdicts_of_an_undisturbed_run_after_a_crash(
    spark: SparkSession, lake_settings: Settings, monkeypatch: pytest.MonkeyPatch, number: int, after: bool
) -> None:
    settings = lake_settings.model_copy(update={"max_bytes_per_batch": "1g"})  # as much as there is
    pipeline.land(spark, settings, CUTS[:1], landed_at=LANDED)
    pipeline.run_layers(spark, settings, "silver")
    pipeline.land(spark, settings, CUTS[1:2], landed_at=LANDED, first_offset=len(CUTS[0]))

    with monkeypatch.context() as patch:
        patch.setattr(tables, "append", crash_at(tables.append, number, after=after))
        with pytest.raises(StreamError, match=rf"^{SILVER} failed: CrashError"):
            pipeline.run_layers(spark, settings, "silver")
    pipeline.land(spark, settings, CUTS[2:], landed_at=LANDED, first_offset=len(CUTS[0]) + len(CUTS[1]))
    done = pipeline.run_layers(spark, settings, "silver", "gold")

    assert [(one.query, one.batch) for one in done] == [(SILVER, 1), (SILVER, 2), (GOLD, 0)]
    assert caught_up_differences(spark, settings, CUTS) == []


@pytest.mark.parametrize("after", [False, True], ids=["before the merge", "after the merge"])
def test_gold_counts_every_row_once_after_a_crash(
    spark: SparkSession, lake_settings: Settings, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    settings = lake_settings.model_copy(update=ONE_CUT_A_BATCH)
    pipeline.land(spark, settings, CUTS, landed_at=LANDED)
    pipeline.run_layers(spark, settings, "silver")

    with monkeypatch.context() as patch:
        patch.setattr(tables, "upsert", crash_at(tables.upsert, 2, after=after))
        with pytest.raises(StreamError, match=rf"^{GOLD} failed: CrashError"):
            pipeline.run_layers(spark, settings, "gold")
    assert pipeline.version_of(settings, GOLD) == (2 if after else 1)
    done = pipeline.run_layers(spark, settings, "gold")

    assert [one.batch for one in done] == [1, 2]
    assert pipeline.version_of(settings, GOLD) == 3
    assert caught_up_differences(spark, settings, CUTS) == []


# A process that is killed.


def start_layer(layer: LayerName, settings: Settings) -> subprocess.Popen[bytes]:
    environment = {
        "LAKEHOUSE_HOME": str(settings.home),
        "LAKEHOUSE_LAKE": settings.lake,
        "LAKEHOUSE_MAX_BYTES_PER_BATCH": settings.max_bytes_per_batch,
        "LAKEHOUSE_SPARK_MASTER": "local[2]",
        "LAKEHOUSE_DRIVER_MEMORY": "1g",
        **QUICK_JVM,
    }
    command = [str(Path(sys.executable).with_name("lakehouse")), "run", layer, "--trigger", "available-now"]
    return subprocess.Popen(
        command, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )


def wait_for(
    condition: Callable[[], bool], process: subprocess.Popen[bytes], timeout_s: float = 120.0
) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, "the layer caught up before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)


def busy_cuts(seed: int) -> list[list[Raw]]:
    rng = random.Random(seed)  # noqa: S311 - meant to be repeatable
    services = [f"s{n}" for n in range(20)]
    return [
        [
            event(START + timedelta(seconds=rng.randrange(3600)), rng.choice(services), rng.random())
            for _ in range(400)
        ]
        + [REFUSED] * 5
        for _ in range(5)
    ]


def planned_batch(number: int, query: str) -> Callable[[Settings], bool]:
    return lambda settings: number in pipeline.planned(settings, query)


def written_batch(number: int, table: str) -> Callable[[Settings], bool]:
    return lambda settings: pipeline.version_of(settings, table) > number  # version 0 is the empty table


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "moments"),
    [
        pytest.param(
            "silver",
            [(planned_batch(0, SILVER), 0.3), (written_batch(1, DEAD_LETTERS), 0.0)],
            id="silver, in the first micro-batch and after dead letters",
        ),
        pytest.param(
            "gold",
            [(planned_batch(0, GOLD), 0.3), (written_batch(1, GOLD), 0.0), (planned_batch(3, GOLD), 0.1)],
            id="gold, in the first micro-batch, after a merge and once more",
        ),
    ],
)
def test_a_killed_run_costs_nothing_but_time_and_leaves_no_jvm_behind(
    spark: SparkSession,
    lake_settings: Settings,
    layer: LayerName,
    moments: list[tuple[Callable[[Settings], bool], float]],
) -> None:
    settings = lake_settings.model_copy(update=ONE_CUT_A_BATCH)
    cuts = busy_cuts(7)
    pipeline.land(spark, settings, cuts, landed_at=LANDED)
    if layer == "gold":
        pipeline.run_layers(spark, settings, "silver")

    for reached, pause_s in moments:
        process = start_layer(layer, settings)
        try:
            wait_for(lambda reached=reached: reached(settings), process)  # type: ignore[misc]
            time.sleep(pause_s)
            jvms = psutil.Process(process.pid).children()
            assert [jvm.name() for jvm in jvms] == ["java"]
        finally:
            process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert psutil.wait_procs(jvms, timeout=60)[1] == []
    assert len(pipeline.committed(settings, QUERIES[layer])) < len(cuts)  # the kills came in time
    pipeline.run_layers(spark, settings, "silver", "gold")

    assert caught_up_differences(spark, settings, cuts) == []


# What cannot be repaired.


@pytest.mark.parametrize("layer", ["silver", "gold"])
def test_a_lost_checkpoint_is_refused_with_the_way_out(
    spark: SparkSession, lake: tuple[Settings, dict[str, int]], layer: LayerName, tmp_path: Path
) -> None:
    settings, versions = lake
    checkpoint = pipeline.checkpoint_of(settings, QUERIES[layer])
    shutil.move(checkpoint, tmp_path / "lost")

    try:
        with pytest.raises(CheckpointError) as refusal:
            pipeline.run_layers(spark, settings, layer)
        assert not (checkpoint / "offsets").exists()
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)
        shutil.move(tmp_path / "lost", checkpoint)

    message = str(refusal.value)
    assert message.startswith(f"{QUERIES[layer]} has rows, but its checkpoint {checkpoint} is gone")
    assert "Put the checkpoint back, or delete" in message
    assert str(pipeline.path_of(settings, QUERIES[layer])) in message
    assert pipeline.versions(settings) == versions
    assert (
        pipeline.run_layers(spark, settings, "silver", "gold") == []
    )  # put back, it is as if nothing had been


def test_a_lost_checkpoint_of_bronze_is_refused_too(spark: SparkSession, make_settings: MakeSettings) -> None:
    settings = make_settings()
    pipeline.send(settings, [event(START)])
    pipeline.run_layers(spark, settings, "bronze")
    version = pipeline.version_of(settings, BRONZE)
    shutil.rmtree(pipeline.checkpoint_of(settings, BRONZE))

    with pytest.raises(CheckpointError, match=f"^{BRONZE} has rows, but its checkpoint"):
        pipeline.run_layers(spark, settings, "bronze")

    assert pipeline.version_of(settings, BRONZE) == version


def test_gold_without_table_and_checkpoint_is_made_anew_from_silver(
    spark: SparkSession, lake_settings: Settings
) -> None:
    settings = lake_settings.model_copy(update=ONE_CUT_A_BATCH)
    pipeline.land(spark, settings, CUTS, landed_at=LANDED)
    pipeline.run_layers(spark, settings, "silver", "gold")
    shutil.rmtree(pipeline.checkpoint_of(settings, GOLD))
    shutil.rmtree(pipeline.path_of(settings, GOLD))

    pipeline.run_layers(spark, settings, "gold")

    assert caught_up_differences(spark, settings, CUTS) == []


@pytest.mark.parametrize(
    ("layer", "setting", "value"),
    [("silver", "allowed_lateness_s", 60), ("gold", "quantile_k", 100), ("gold", "grace_s", 5)],
)
def test_a_setting_that_rows_depend_on_cannot_change_under_them(
    spark: SparkSession, lake: tuple[Settings, dict[str, int]], layer: LayerName, setting: str, value: int
) -> None:
    settings, versions = lake
    changed = settings.model_copy(update={setting: value})

    with pytest.raises(TableError) as refusal:
        pipeline.run_layers(spark, changed, layer)

    was = getattr(settings, setting)
    assert f"{QUERIES[layer]} was made with {setting} = {was}, the settings say {value}" in str(refusal.value)
    assert f"LAKEHOUSE_{setting.upper()}={was}" in str(refusal.value)
    assert pipeline.versions(settings) == versions


# Runs with an interval.


def test_a_failing_query_stops_the_others_and_is_named(
    spark: SparkSession, lake_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = lake_settings.model_copy(update=ONE_CUT_A_BATCH)
    pipeline.land(spark, settings, CUTS, landed_at=LANDED)
    monkeypatch.setattr(tables, "upsert", crash_at(tables.upsert, 2, after=False))

    with pytest.raises(StreamError, match=rf"^{GOLD} failed: CrashError") as failure:
        run(spark, [pipeline.STREAM], ["silver", "gold"], settings, trigger="100 ms")

    assert isinstance(failure.value.__cause__, CrashError)
    assert spark.streams.active == []


def test_a_stop_lets_every_query_note_what_it_has_written(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    settings = make_settings(**ONE_CUT_A_BATCH)
    pipeline.send(settings, [event(START), REFUSED])
    stop = Stop()
    done: list[BatchDone] = []

    def on_batch(one: BatchDone) -> None:
        """Keep data coming, and ask from another thread to stop while this query is in its micro-batch."""
        done.append(one)
        if one.query == BRONZE and len(done) < 8:
            pipeline.send(settings, [event(START + timedelta(minutes=len(done)))])
        if len(done) >= 8:
            threading.Thread(target=stop.request).start()
            time.sleep(0.5)

    run(
        spark,
        [pipeline.STREAM],
        ["bronze", "silver", "gold"],
        settings,
        trigger="50 ms",
        on_batch=on_batch,
        stop=stop,
    )

    assert spark.streams.active == []
    for query in (BRONZE, SILVER, GOLD):
        written = [one.batch for one in done if one.query == query]
        assert written == list(range(len(written)))
        assert pipeline.committed(settings, query) == written
        assert pipeline.planned(settings, query) in (written, [*written, len(written)])  # one may have waited
    pipeline.run_layers(spark, settings, "bronze", "silver", "gold")
    judged = verdicts.judge_batches([pipeline.rows_of(spark, settings, BRONZE)], settings)
    gold = pipeline.rows_of(spark, settings, GOLD)
    assert verdicts.window_differences(gold, verdicts.accepted(judged, Metric), settings) == []
    assert verdicts.same_dead_letters(pipeline.rows_of(spark, settings, DEAD_LETTERS), judged)


def test_a_query_that_is_alone_is_not_stopped_between_its_write_and_its_checkpoint(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    """With no other to stop first, the stop comes the moment the micro-batch has been written."""
    settings = make_settings()
    for number in range(4):
        pipeline.send(settings, [event(START + timedelta(minutes=number))])
        stop = Stop()
        done: list[BatchDone] = []

        def on_batch(one: BatchDone, stop: Stop = stop, done: list[BatchDone] = done) -> None:
            done.append(one)
            stop.request()
            time.sleep(0.5)  # until the run is waiting for this micro-batch to end

        run(spark, [pipeline.STREAM], ["bronze"], settings, trigger="1 second", on_batch=on_batch, stop=stop)

        assert [(one.batch, one.result.rows) for one in done] == [(number, 1)]
        assert pipeline.committed(settings, BRONZE) == list(range(number + 1))
