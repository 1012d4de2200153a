"""The next run repairs what a crash leaves behind.

A micro-batch is one commit or two: dead letters, then clean rows; or a side table, then the main table. The
last commit completes it. A crash may come before, between or after them. Most tests here run the steps
themselves, creating them anew each time, as a restart does; one test kills real processes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import accumulate
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from lakehouse.common.quantities import show_size
from lakehouse.engine.layers import LayerName, bronze
from lakehouse.engine.layers.step import Step
from lakehouse.engine.runtime.runner import BatchDone, RunOptions, run
from lakehouse.engine.runtime.signals import Stop
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake
from lakehouse.testing.kills import CrashError, crash_at
from tests.oracles.judging import Judged
from tests.oracles.metrics import Metric
from tests.support import pipeline, verdicts
from tests.support.batches import bronze_of, gold_of, silver_of, take_next
from tests.support.pipeline import BRONZE, DEAD_LETTERS, GOLD, SILVER, Raw
from tests.support.processes import QUICK_JVM
from tests.support.settings import MakeSettings

START = pipeline.utc("2026-03-01T00:00:00")
LANDED = pipeline.utc("2026-04-29T01:00:00")
DAY = timedelta(days=1)
ONE_CUT_A_BATCH = {"run.max_bytes": 1}


def event(at: datetime, service: str = "s", value: float = 1.0) -> Raw:
    record = {
        "serviceId": service,
        "metricName": "m",
        "value": value,
        "timestamp": int(at.timestamp() * 1000),
    }
    return Raw(json.dumps(record).encode())


REFUSED = Raw(b"not JSON")

# The watermark is seven days behind the newest event before the cut, so every cut after the first moves it
# past some of its own records: judged again under the new watermark, they would be late. The first cut has no
# dead letters, and so notes nothing with them.
CUTS = (
    (event(START), event(START - 9 * DAY, "no watermark yet")),
    *(
        (
            event(at + 10 * DAY),
            event(at + DAY, "late from then on"),
            event(at - 8 * DAY, "late"),
            REFUSED,
        )
        for at in (START + number * 10 * DAY for number in range(3))
    ),
)


def offsets_of(cut: int) -> tuple[int, int]:
    """Return the first offset of a cut and the one after its last."""
    first = sum(map(len, CUTS[:cut]))
    return first, first + len(CUTS[cut])


def judged(settings: Settings, cuts: Sequence[Sequence[Raw]]) -> dict[pipeline.Coordinates, Judged]:
    """Return the oracle's verdicts on bronze, with each cut as a micro-batch."""
    rows = sorted(pipeline.rows_of(settings, BRONZE), key=pipeline.coordinates_of)
    ends = list(accumulate(map(len, cuts)))
    assert ends[-1] == len(rows)
    batches = [rows[first:end] for first, end in zip([0, *ends], ends, strict=False)]
    return verdicts.judge_batches(batches, settings)


def silver_differences(settings: Settings, cuts: Sequence[Sequence[Raw]]) -> list[str]:
    """Return how silver and its dead letters differ from those of an undisturbed run of the cuts."""
    expected = judged(settings, cuts)
    silver, dead = (pipeline.rows_of(settings, table) for table in (SILVER, DEAD_LETTERS))
    seen = Counter(pipeline.coordinates_of(row) for row in [*silver, *dead])
    differences = [f"{at} {seen[at]} times" for at in seen.keys() | expected.keys() if seen[at] != 1]
    if not verdicts.same_silver(silver, expected):
        differences.append("silver differs")
    if not verdicts.same_dead_letters(dead, expected):
        differences.append("dead letters differ")
    return differences


def gold_differences(settings: Settings, cuts: Sequence[Sequence[Raw]]) -> list[str]:
    """Return how gold differs from that of an undisturbed run of the cuts."""
    clean = verdicts.accepted(judged(settings, cuts), Metric)
    return verdicts.window_differences(pipeline.rows_of(settings, GOLD), clean, settings)


# A crash before, between and after the writes.


def crash(step: Step, name: str, number: int, *, after: bool) -> None:
    """Have a step plan a micro-batch, and fail before or after its write of this name and number."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, name, crash_at(getattr(tables, name), number, after=after))
        with pytest.raises(CrashError):
            take_next(step, now=LANDED)


def take_all(make: Callable[[], Step]) -> list[int]:
    """Have new steps take what is waiting, and return how many rows each has read."""
    found = []
    while (done := take_next(make(), now=LANDED)) is not None:
        found.append(done.rows)
    return found


@pytest.fixture(scope="module")
def crashed(
    spark: SparkSession, session_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Settings:
    """Return a lake whose silver has taken each cut in a micro-batch, with a crash in all but the first."""
    lake = {"lake": str(tmp_path_factory.mktemp("crash"))}
    settings = session_settings.changed(ONE_CUT_A_BATCH | lake)
    pipeline.land(spark, settings, CUTS[:1], landed_at=LANDED)
    again = [take_all(partial(silver_of, spark, settings))]
    for cut, (number, after) in enumerate(((1, False), (1, True), (2, True)), start=1):
        pipeline.land(spark, settings, CUTS[cut : cut + 1], landed_at=LANDED, first_offset=offsets_of(cut)[0])
        crash(silver_of(spark, settings), "append", number, after=after)
        again.append(take_all(partial(silver_of, spark, settings)))
    # No crash; nothing written, so all are judged; only letters written, so all again; all written, so none.
    assert again == [[2], [4], [4], []]
    return settings


def test_silver_gives_the_verdicts_of_an_undisturbed_run_wherever_it_has_crashed(
    spark: SparkSession, crashed: Settings
) -> None:
    """It has crashed before, between and after its writes; what is done is not taken again."""
    assert silver_differences(crashed, CUTS) == []
    versions = pipeline.versions(crashed)
    assert (versions[SILVER], versions[DEAD_LETTERS]) == (4, 3)

    assert take_all(partial(silver_of, spark, crashed)) == []

    assert pipeline.versions(crashed) == versions


def test_gold_counts_every_row_once_though_it_has_crashed_before_and_after_a_merge(
    spark: SparkSession, crashed: Settings
) -> None:
    done = take_next(gold_of(spark, crashed), now=LANDED)
    assert done is not None
    assert done.rows == 2
    crash(gold_of(spark, crashed), "upsert", 1, after=False)
    assert pipeline.version_of(crashed, GOLD) == 1
    crash(gold_of(spark, crashed), "upsert", 1, after=True)
    assert pipeline.version_of(crashed, GOLD) == 2

    assert take_all(partial(gold_of, spark, crashed)) == [2, 2]

    assert pipeline.version_of(crashed, GOLD) == 4
    assert gold_differences(crashed, CUTS) == []


def test_records_of_bronze_are_landed_once_however_often_their_micro_batch_runs(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    settings = make_settings({"kafka.topic_partitions": 1, "run.max_records": 2})
    pipeline.send(settings, [Raw(str(number).encode()) for number in range(3)])

    crash(bronze_of(spark, settings), "append", 1, after=False)
    assert pipeline.rows_of(settings, BRONZE) == []
    crash(bronze_of(spark, settings), "append", 1, after=True)
    assert take_all(partial(bronze_of, spark, settings)) == [1]
    pipeline.send(settings, [Raw(b"3")])
    assert take_all(partial(bronze_of, spark, settings)) == [1]

    assert pipeline.version_of(settings, BRONZE) == 3
    rows = pipeline.rows_of(settings, BRONZE)
    assert sorted((row["offset"], row["value"]) for row in rows) == [(n, b"%d" % n) for n in range(4)]
    assert {row["ingested_at"] - pipeline.micros(LANDED) for row in rows} == {0, 1, 2}  # in microseconds
    assert tables.read(spark, str(pipeline.path_of(settings, BRONZE))).schema == bronze.SCHEMA


# A process that is killed.


def start_silver(settings: Settings) -> subprocess.Popen[bytes]:
    environment = {
        "LAKEHOUSE_HOME": str(settings.home),
        "LAKEHOUSE_LAKE": settings.lake,
        "LAKEHOUSE_RUN_MAX_BYTES": show_size(settings.run.max_bytes),
        "LAKEHOUSE_SPARK_MASTER": "local[2]",
        "LAKEHOUSE_SPARK_DRIVER_MEMORY": "1g",
        **QUICK_JVM,
    }
    lakehouse = str(Path(sys.executable).with_name("lakehouse"))
    return subprocess.Popen(
        [lakehouse, "run", "silver", "--trigger", "available-now"],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def wait_for(
    condition: Callable[[], bool], process: subprocess.Popen[bytes], timeout_s: float = 120.0
) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, "the layer caught up before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)


def busy_cuts(seed: int, cuts: int) -> list[list[Raw]]:
    rng = random.Random(seed)
    services = [f"s{n}" for n in range(20)]
    return [
        [
            event(START + timedelta(seconds=rng.randrange(3600)), rng.choice(services), rng.random())
            for _ in range(100)
        ]
        + [REFUSED] * 5
        for _ in range(cuts)
    ]


@pytest.mark.soak
def test_a_killed_run_costs_nothing_but_time_and_leaves_no_jvm_behind(
    spark: SparkSession, lake_settings: Settings
) -> None:
    """It is killed once it has written dead letters, wherever the process itself is by then."""
    settings = lake_settings.changed(ONE_CUT_A_BATCH)
    cuts = busy_cuts(7, 4)
    pipeline.land(spark, settings, cuts, landed_at=LANDED)

    process = start_silver(settings)
    try:
        wait_for(lambda: pipeline.version_of(settings, DEAD_LETTERS) > 1, process)  # 0 is the empty table
        jvms = psutil.Process(process.pid).children()
        assert [jvm.name() for jvm in jvms] == ["java"]
    finally:
        process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    assert psutil.wait_procs(jvms, timeout=60)[1] == []
    assert pipeline.version_of(settings, SILVER) < len(cuts)  # the kill came in time
    pipeline.run_layers(spark, settings, "silver", "gold")

    assert pipeline.version_of(settings, SILVER) == len(cuts)
    assert silver_differences(settings, cuts) == []
    assert gold_differences(settings, cuts) == []


# Runs with an interval.


class SeenStop(Stop):
    """A stop that records when the run has noticed it."""

    def __init__(self) -> None:
        super().__init__()
        self._noticed = threading.Event()

    @property
    def requested(self) -> bool:
        if is_requested := super().requested:
            self._noticed.set()
        return is_requested

    def request_and_await(self) -> None:
        """Request the stop, and return once the run has noticed it: the caller is still in a micro-batch."""
        self.request()
        assert self._noticed.wait(300)


@pytest.mark.soak
def test_a_stop_lets_every_query_note_what_it_has_written(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    """It comes in a micro-batch of gold while bronze has more to do, then in one of bronze running alone."""
    settings = make_settings()
    written: dict[str, list[int | None]] = {BRONZE: [], SILVER: [], GOLD: []}

    def run_until(layers: list[LayerName], is_time: Callable[[BatchDone], bool]) -> None:
        stop = SeenStop()

        def on_batch(done: BatchDone) -> None:
            written[done.query].append(done.batch)
            if done.query == BRONZE and len(written[BRONZE]) < 8:  # keep data coming
                pipeline.send(settings, [event(START + timedelta(minutes=len(written[BRONZE])))])
            if is_time(done):
                stop.request_and_await()

        run(
            Lake(spark, settings.lake),
            [pipeline.STREAM],
            layers,
            settings,
            RunOptions("50 ms", on_batch=on_batch, stop=stop),
        )
        for table, versions in written.items():
            assert versions == list(range(1, len(versions) + 1))
            assert pipeline.version_of(settings, table) == len(versions)

    pipeline.send(settings, [event(START), REFUSED])
    run_until(["bronze", "silver", "gold"], lambda done: done.query == GOLD)
    assert all(written.values())
    pipeline.send(settings, [event(START)])
    run_until(["bronze"], lambda _done: True)

    pipeline.run_layers(spark, settings, "bronze", "silver", "gold")
    verdict = verdicts.judge_batches([pipeline.rows_of(settings, BRONZE)], settings)
    gold = pipeline.rows_of(settings, GOLD)
    assert verdicts.window_differences(gold, verdicts.accepted(verdict, Metric), settings) == []
    assert verdicts.same_dead_letters(pipeline.rows_of(settings, DEAD_LETTERS), verdict)
