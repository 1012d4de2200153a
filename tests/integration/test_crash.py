"""What a crash leaves behind is repaired by the next run.

A micro-batch goes: plan (checkpoint/offsets/N), write the tables, note it (checkpoint/commits/N). A crash may
come between any two of these. Most tests here hand the micro-batches to the layers themselves, twice where
Spark would do so after a crash; one process is killed for real.
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
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import accumulate
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from lakehouse import tables
from lakehouse.errors import StreamError
from lakehouse.layers import bronze
from lakehouse.layers.query import LayerName
from lakehouse.runtime.runner import BatchDone, RunOptions, run
from lakehouse.runtime.signals import Stop
from lakehouse.settings import Settings
from lakehouse.tables import Lake
from tests import batches, pipeline, verdicts
from tests.batches import bronze_of, gold_of, rows_between, silver_of, take
from tests.conftest import MakeSettings
from tests.crashing import CrashError, crash_at
from tests.oracles.judging import Judged
from tests.oracles.metrics import Metric
from tests.pipeline import BRONZE, DEAD_LETTERS, GOLD, SILVER, Raw
from tests.processes import QUICK_JVM

START = pipeline.utc("2026-03-01T00:00:00")
LANDED = pipeline.utc("2026-04-29T01:00:00")
DAY = timedelta(days=1)
QUERIES: dict[LayerName, str] = {"bronze": BRONZE, "silver": SILVER, "gold": GOLD}
ONE_CUT_A_BATCH = {"max_bytes_per_batch": "1"}


def event(at: datetime, service: str = "s", value: float = 1.0) -> Raw:
    record = {
        "serviceId": service,
        "metricName": "m",
        "value": value,
        "timestamp": int(at.timestamp() * 1000),
    }
    return Raw(json.dumps(record).encode())


REFUSED = Raw(b"not JSON")

# The watermark lies seven days behind the newest event before the cut. So every cut after the first moves it
# to where some of its own records lie before it: judged again under it, they would be late. The first has no
# dead letter, and so leaves no transaction with them.
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
    """The first offset of a cut and the one after its last."""
    first = sum(map(len, CUTS[:cut]))
    return first, first + len(CUTS[cut])


def judged(settings: Settings, cuts: Sequence[Sequence[Raw]]) -> dict[pipeline.Coordinates, Judged]:
    """The oracle's verdicts on bronze, each cut being a micro-batch."""
    rows = sorted(pipeline.rows_of(settings, BRONZE), key=pipeline.coordinates_of)
    ends = list(accumulate(map(len, cuts)))
    assert ends[-1] == len(rows)
    batches = [rows[first:end] for first, end in zip([0, *ends], ends, strict=False)]
    return verdicts.judge_batches(batches, settings)


def silver_differences(settings: Settings, cuts: Sequence[Sequence[Raw]]) -> list[str]:
    """In what silver and its dead letters are not what an undisturbed run of the cuts makes of bronze."""
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
    """In what gold is not what an undisturbed run of the cuts makes of bronze."""
    clean = verdicts.accepted(judged(settings, cuts), Metric)
    return verdicts.window_differences(pipeline.rows_of(settings, GOLD), clean, settings)


# A crash before, between and after the writes.


@pytest.fixture(scope="module")
def crashed(
    spark: SparkSession, session_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Settings:
    """A lake whose silver has been given each cut twice, the first whole, the others first with a crash."""
    settings = session_settings.model_copy(update={"lake": str(tmp_path_factory.mktemp("crash"))})
    pipeline.land(spark, settings, CUTS, landed_at=LANDED)
    assert take_cut(spark, settings, SILVER, 0) == 2
    for cut, number, after in ((1, 1, False), (2, 1, True), (3, 2, True)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tables, "append", crash_at(tables.append, number, after=after))
            with pytest.raises(CrashError):
                take_cut(spark, settings, SILVER, cut)
        take_cut(spark, settings, SILVER, cut)
    return settings


def take_cut(spark: SparkSession, settings: Settings, table: str, cut: int) -> int:
    """Give a cut to silver or gold as if it had just been started, and return how many rows it has read."""
    layer, source = (silver_of, BRONZE) if table == SILVER else (gold_of, SILVER)
    rows = rows_between(spark, settings, source, *offsets_of(cut))
    return take(layer(spark, settings), rows, cut, now=LANDED).rows


def test_silver_gives_the_verdicts_of_an_undisturbed_run_wherever_it_has_crashed(
    spark: SparkSession, crashed: Settings
) -> None:
    """Before its writes, between them and after them; and a micro-batch that is done writes nothing again."""
    assert silver_differences(crashed, CUTS) == []
    versions = pipeline.versions(crashed)
    assert (versions[SILVER], versions[DEAD_LETTERS]) == (4, 3)

    assert [take_cut(spark, crashed, SILVER, cut) for cut in (3, 0)] == [0, 0]

    assert pipeline.versions(crashed) == versions


def test_gold_counts_every_row_once_though_it_has_crashed_before_and_after_a_merge(
    spark: SparkSession, crashed: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert take_cut(spark, crashed, GOLD, 0) == 2
    assert take_cut(spark, crashed, GOLD, 0) == 0
    for cut, after in ((1, False), (2, True)):
        with monkeypatch.context() as patch:
            patch.setattr(tables, "upsert", crash_at(tables.upsert, 1, after=after))
            with pytest.raises(CrashError):
                take_cut(spark, crashed, GOLD, cut)
        assert pipeline.version_of(crashed, GOLD) == 1 + cut - (not after)
        assert take_cut(spark, crashed, GOLD, cut) == (0 if after else 2)
    assert take_cut(spark, crashed, GOLD, 3) == 2

    assert pipeline.version_of(crashed, GOLD) == 4
    assert gold_differences(crashed, CUTS) == []


def test_records_of_bronze_are_landed_once_however_often_their_micro_batch_runs(
    spark: SparkSession, crashed: Settings, lake_settings: Settings
) -> None:
    records, other = (
        rows_between(spark, crashed, BRONZE, *span).withColumnRenamed("timestamp_type", "timestampType")
        for span in ((0, 3), (3, 5))
    )
    batches.plan(lake_settings, 1, planned_at=LANDED, ends=(3, 5))

    results = [
        take(bronze_of(spark, lake_settings), rows, number, now=LANDED)
        for number, rows in ((0, records), (0, records), (1, other), (1, records), (0, other))
    ]

    assert [one.rows for one in results] == [3, 0, 2, 0, 0]
    assert pipeline.version_of(lake_settings, BRONZE) == 2
    assert sorted(row["offset"] for row in pipeline.rows_of(lake_settings, BRONZE)) == [0, 1, 2, 3, 4]
    assert {row["ingested_at"] for row in pipeline.rows_of(lake_settings, BRONZE)} == {
        pipeline.micros(LANDED)
    }
    assert tables.read(spark, str(pipeline.path_of(lake_settings, BRONZE))).schema == bronze.SCHEMA


@pytest.mark.soak
def test_a_crash_with_more_data_waiting_than_the_micro_batch_had_changes_no_verdict(
    spark: SparkSession, lake_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The streaming query plans the same rows again, though there are more by then."""
    settings = lake_settings.model_copy(update={"max_bytes_per_batch": "1g"})  # as much as there is
    pipeline.land(spark, settings, CUTS[:2], landed_at=LANDED)

    with monkeypatch.context() as patch:
        patch.setattr(tables, "append", crash_at(tables.append, 1, after=True))
        with pytest.raises(StreamError, match=rf"^{SILVER} failed: CrashError"):
            pipeline.run_layers(spark, settings, "silver")
    pipeline.land(spark, settings, CUTS[2:], landed_at=LANDED, first_offset=offsets_of(2)[0])
    done = pipeline.run_layers(spark, settings, "silver")

    assert [(one.query, one.batch, one.result.rows) for one in done] == [(SILVER, 0, 5), (SILVER, 1, 8)]
    assert silver_differences(settings, [[*CUTS[0], *CUTS[1]], [*CUTS[2], *CUTS[3]]]) == []


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


def planned_batch(number: int, query: str) -> Callable[[Settings], bool]:
    return lambda settings: number in pipeline.planned(settings, query)


def written_batch(number: int, table: str) -> Callable[[Settings], bool]:
    return lambda settings: pipeline.version_of(settings, table) > number  # version 0 is the empty table


@pytest.mark.soak
@pytest.mark.parametrize(
    ("layer", "moments"),
    [
        pytest.param("silver", [written_batch(1, DEAD_LETTERS)], id="silver, after dead letters"),
        pytest.param(
            "gold",
            [planned_batch(0, GOLD), written_batch(1, GOLD), planned_batch(3, GOLD)],
            id="gold, in the first micro-batch, after a merge and once more",
        ),
    ],
)
def test_a_killed_run_costs_nothing_but_time_and_leaves_no_jvm_behind(
    spark: SparkSession,
    lake_settings: Settings,
    layer: LayerName,
    moments: list[Callable[[Settings], bool]],
) -> None:
    """Wherever the process is once a moment is reached, a file is all that the test goes by."""
    settings = lake_settings.model_copy(update=ONE_CUT_A_BATCH)
    cuts = busy_cuts(7, len(moments) + 2)
    pipeline.land(spark, settings, cuts, landed_at=LANDED)
    if layer == "gold":
        pipeline.run_layers(spark, settings, "silver")

    for reached in moments:
        process = start_layer(layer, settings)
        try:
            wait_for(lambda reached=reached: reached(settings), process)  # type: ignore[misc]
            jvms = psutil.Process(process.pid).children()
            assert [jvm.name() for jvm in jvms] == ["java"]
        finally:
            process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
        assert psutil.wait_procs(jvms, timeout=60)[1] == []
    assert len(pipeline.committed(settings, QUERIES[layer])) < len(cuts)  # the kills came in time
    pipeline.run_layers(spark, settings, "silver", "gold")

    assert silver_differences(settings, cuts) == []
    assert gold_differences(settings, cuts) == []


# Runs with an interval.


@pytest.mark.soak
def test_a_failing_query_stops_the_others_and_is_named(
    spark: SparkSession, lake_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = lake_settings.model_copy(update=ONE_CUT_A_BATCH)
    pipeline.land(spark, settings, CUTS, landed_at=LANDED)
    monkeypatch.setattr(tables, "upsert", crash_at(tables.upsert, 2, after=False))

    with pytest.raises(StreamError, match=rf"^{GOLD} failed: CrashError") as failure:
        run(Lake(spark, settings.lake), [pipeline.STREAM], ["silver", "gold"], settings, RunOptions("100 ms"))

    assert isinstance(failure.value.__cause__, CrashError)
    assert spark.streams.active == []


class NoticedEvent(threading.Event):
    def __init__(self) -> None:
        super().__init__()
        self.noticed = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        is_set = super().wait(timeout)
        if is_set:
            self.noticed.set()
        return is_set


@dataclass
class SeenStop(Stop):
    """A stop that tells when the run has noticed it."""

    event: NoticedEvent = field(default_factory=NoticedEvent)

    def request_and_await(self) -> None:
        """Ask, and return when the run is on its way out: whoever calls is still in a micro-batch."""
        self.request()
        assert self.event.noticed.wait(300)


@pytest.mark.soak
def test_a_stop_lets_every_query_note_what_it_has_written(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    """It comes in a micro-batch of gold while bronze has more to do, and then in one of bronze, all alone."""
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
        assert spark.streams.active == []
        for query, numbers in written.items():
            assert numbers == list(range(len(numbers)))
            assert pipeline.committed(settings, query) == numbers
            assert pipeline.planned(settings, query) in (
                numbers,
                [*numbers, len(numbers)],
            )  # one may have waited

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
