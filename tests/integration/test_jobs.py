"""What a user runs, as processes: the four spark-submit jobs and `lakehouse sql`.

`make soak` runs the jobs once over a few thousand produced events, and looks at what they left behind.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql import SparkSession

from lakehouse.dev.samples import Sample, spread_times
from lakehouse.dev.samples.metrics import MALFORMED_KINDS, samples
from lakehouse.dev.samples.mixing import Shares
from lakehouse.dev.samples.producing import produce
from lakehouse.dev.services.services import Endpoints
from lakehouse.engine.layers import LAYERS
from lakehouse.operations.telemetry import Run
from lakehouse.operations.telemetry.runs import read_runs
from tests.support.commands import Ended, run_command
from tests.support.pipeline import read_topic
from tests.support.processes import LAKEHOUSE, NOISE, Place, finish, place, running, submit

EVENTS = 2000


@dataclass(frozen=True)
class Done:
    """A place where the four jobs have run, what was produced there and what each job printed.

    `live` is what the live job's file said once it had written its micro-batch.
    """

    place: Place
    sent: list[Sample]
    jobs: Mapping[str, subprocess.CompletedProcess[str]]
    live: Run

    @property
    def malformed(self) -> int:
        return sum(sample.kind in MALFORMED_KINDS for sample in self.sent)


@pytest.fixture(scope="module")
def done(services: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    """Run bronze live until it is told to stop; the others catch up."""
    directory = tmp_path_factory.mktemp("jobs")
    with place(directory / "höme [1]", services, database=6) as here:
        times = spread_times(EVENTS, end_ms=int(time.time() * 1000), span_s=600)
        sent = list(samples(EVENTS, times, seed=5, shares=Shares(malformed=0.05, late=0.02, duplicates=0.02)))
        assert produce(services.access, here.topic_in, sent).acknowledged == EVENTS
        live = submit("bronze", "--stream", "metrics", "--trigger", "1 second")
        with running(live, here.environment, directory / "bronze") as job:
            job.await_output(f": {EVENTS:,} metrics_events")
            job.await_(lambda: any(run.queries for run in runs_of(here)))
            (seen,) = runs_of(here)
            os.kill(job.pid, signal.SIGTERM)
            code = job.wait()
            assert job.left_behind() == []
            jobs = {"bronze": subprocess.CompletedProcess(live, code, job.output, job.errors)}
        for layer in LAYERS[1:]:
            catching_up = submit(layer, "--stream", "metrics", "--trigger", "available-now")
            jobs[layer] = finish(catching_up, here.environment)
        yield Done(here, sent, jobs, seen)


def runs_of(here: Place) -> list[Run]:
    return read_runs(here.home, datetime.now(UTC))


# The jobs.


@pytest.mark.soak
@pytest.mark.parametrize("layer", LAYERS)
def test_a_job_says_what_it_does_without_noise(done: Done, layer: str) -> None:
    job = done.jobs[layer]

    assert job.returncode == 0, job.stdout + job.stderr
    first, *batches, last = job.stdout.splitlines()
    connected = {"bronze": "connecting to Kafka", "export": "connecting to Kafka, Redis"}
    if layer in connected:
        assert first == connected[layer]
        first = batches.pop(0)
    trigger = "1 second" if layer == "bronze" else "available-now"
    assert first == f"{layer} of metrics, trigger {trigger}, lake {done.place.home / 'lake'}"
    assert batches.pop(0) == "starting Spark"
    if layer == "bronze":
        assert batches.pop(0) == "running; Ctrl-C stops after the current micro-batch"
    assert batches.pop(0) == "creating tables"
    assert last == ("stopped" if layer == "bronze" else "caught up")
    if layer == "silver":
        *batches, refused, first_cause, second_cause, third_cause = batches
        assert refused == "silver.metrics_events: 100 of 2,000 records refused (5 %)"
        assert all(
            re.match(r"  \d+ \w+.*, such as [^/ ]+/\d+/\d+: .", cause)
            for cause in (first_cause, second_cause, third_cause)
        )
    assert len(batches) == (2 if layer in {"gold", "export"} else 1)  # metrics have two gold tables
    assert not NOISE.search(job.stdout + job.stderr), job.stderr
    assert len(job.stderr.splitlines()) <= 2, job.stderr  # Java's own, about the vector module


@pytest.mark.soak
def test_a_live_job_is_seen_to_run_and_one_that_has_stopped_is_not(done: Done) -> None:
    (query,) = done.live.queries

    assert (done.live.layers, done.live.streams, done.live.telemetry_port) == (
        ("bronze",),
        ("metrics",),
        None,
    )
    assert (query.name, query.batch, query.rows) == ("bronze.metrics_events", 1, EVENTS)
    assert query.error is None
    assert runs_of(done.place) == []
    assert list((done.place.home / "running").iterdir()) == []


@pytest.mark.soak
def test_each_job_has_noted_its_start_and_its_stop_which_sql_reads(
    done: Done, ask: Callable[..., Ended]
) -> None:
    found = ask(
        "SELECT kind, layer, stream, actor, message, at FROM ops.events ORDER BY at", "--format", "json"
    )

    rows = json.loads(found.stdout)
    assert [tuple(row.values())[:-1] for row in rows] == [
        ("start", "bronze", "metrics", "lakehouse bronze", "bronze started, trigger 1 second"),
        ("stop", "bronze", "metrics", "lakehouse bronze", "bronze stopped"),
        ("start", "silver", "metrics", "lakehouse silver", "silver started, trigger available-now"),
        ("stop", "silver", "metrics", "lakehouse silver", "silver caught up"),
        (
            *("refused", "silver", "metrics", "lakehouse silver"),
            "silver.metrics_events: 100 of 2,000 records refused (5 %)",
        ),
        ("start", "gold", "metrics", "lakehouse gold", "gold started, trigger available-now"),
        ("stop", "gold", "metrics", "lakehouse gold", "gold caught up"),
        ("start", "export", "metrics", "lakehouse export", "export started, trigger available-now"),
        ("stop", "export", "metrics", "lakehouse export", "export caught up"),
    ]
    shown = run_command(done.place.environment, "events", "--format", "json")  # without Spark
    assert [(one["kind"], one["at"]) for one in json.loads(shown.stdout)] == [
        (row["kind"], row["at"]) for row in rows
    ]


@pytest.mark.soak
def test_every_record_is_clean_or_a_dead_letter_and_every_clean_one_is_counted(done: Done) -> None:
    clean = EVENTS - done.malformed
    windows = done.place.rows("gold.metrics_1m")

    assert done.malformed == 100
    assert len(done.place.rows("bronze.metrics_events")) == EVENTS
    assert len(done.place.rows("silver.metrics_events")) == clean
    assert len(done.place.rows("silver.dead_letters")) == done.malformed
    assert sum(window["count"] for window in windows) == clean
    lines = [line for job in done.jobs.values() for line in job.stdout.splitlines()]
    queries = ("bronze.metrics_events", "silver.metrics_events", "gold.metrics_1m", "export.metrics_1m")
    shown = {q.partition(".")[0]: next(line for line in lines if line.startswith(q)) for q in queries}
    assert shown["bronze"].startswith("bronze.metrics_events batch 1: 2,000 rows")
    assert shown["bronze"].endswith(": 2,000 metrics_events")
    assert shown["silver"].endswith(f" {clean:,} metrics_events, {done.malformed} dead_letters")
    assert shown["gold"].endswith(f" {len(windows):,} metrics_1m")
    assert shown["export"].endswith(f" {len(windows):,} {done.place.topic_out}, {len(windows):,} redis")


@pytest.mark.soak
def test_every_window_left_once_for_kafka_and_stands_in_redis(done: Done) -> None:
    windows = {row_id(row): row["count"] for row in done.place.rows("gold.metrics_1m")}

    messages = [json.loads(value) for _, value in read_committed(done.place, done.place.topic_out)]
    assert len(messages) == len(windows)
    assert {message_id(message): message["count"] for message in messages} == windows
    with redis.Redis.from_url(done.place.redis_url, decode_responses=True) as client:
        keys = [f"lakehouse:metrics_1m:row:{name}" for name in windows]
        in_redis = [json.loads(str(row)) for row in client.mget(keys)]
    assert [row["count"] for row in in_redis] == list(windows.values())


def row_id(window: Mapping[str, Any]) -> str:
    start_ms = int(window["window_start"].timestamp() * 1000)
    return f"{window['service_id']}:{window['metric_name']}:{start_ms}"


def message_id(message: Mapping[str, Any]) -> str:
    return f"{message['serviceId']}:{message['metricName']}:{message['windowStart']}"


def read_committed(here: Place, topic: str) -> list[tuple[bytes, bytes]]:
    return [(message.key, message.value) for message in read_topic(here.services.kafka, topic)]


# Questions in SQL.


@pytest.fixture
def ask(done: Done, nameless: SparkSession) -> Callable[..., Ended]:
    """Run `lakehouse sql` in this process, on the session's Spark rather than one of its own."""
    return lambda *arguments: run_command(done.place.environment, "sql", *arguments, spark=nameless)


@pytest.mark.soak
def test_sql_prints_json_in_utc_whatever_the_time_zone(done: Done, ask: Callable[..., Ended]) -> None:
    statement = "SELECT service_id, window_start, count FROM gold.metrics_1m ORDER BY 2, 1, metric_name"
    ended = ask(statement, "--format", "json", "--limit", "3")

    assert os.environ["TZ"] == "America/St_Johns"
    assert ended.returncode == 0, ended.stderr
    windows = sorted(
        done.place.rows("gold.metrics_1m"),
        key=lambda row: (row["window_start"], row["service_id"], row["metric_name"]),
    )
    assert json.loads(ended.stdout) == [
        {
            "service_id": row["service_id"],
            "window_start": f"{row['window_start']:%Y-%m-%dT%H:%M:%SZ}",
            "count": row["count"],
        }
        for row in windows[:3]
    ]
    assert ended.stderr == "only the first 3 rows are shown; --limit N shows more\n"


@pytest.mark.soak
@pytest.mark.parametrize("is_process", [False, True], ids=["here", "process"])
def test_sql_of_an_unknown_table_is_one_line_that_lists_the_tables(
    done: Done, ask: Callable[..., Ended], *, is_process: bool
) -> None:
    statement = "SELECT * FROM gold.metrics_1h"
    ended = finish([LAKEHOUSE, "sql", statement], done.place.environment) if is_process else ask(statement)

    assert ended.returncode == 1
    said = [line for line in ended.stderr.splitlines() if not line.lower().startswith("warning: ")]
    assert len(said) == 1
    assert said[0].startswith("error: [TABLE_OR_VIEW_NOT_FOUND]")
    assert "metrics_1h" in said[0]
    gold = "gold.metrics_1m, gold.metrics_summary_10m"
    ops = "ops.events, ops.history"
    tables = f"bronze.metrics_events, silver.metrics_events, silver.dead_letters, {gold}, {ops}"
    assert said[0].endswith(f"(tables here: {tables})")
    assert ended.stdout == ""


TRICKY = """
    SELECT * FROM VALUES
        ('plain', 1, TIMESTAMP'2026-11-01 04:00:00Z', ARRAY(1, 2)),
        ('a "quoted", [bold]one[/] [/nothing]', NULL, TIMESTAMP'2026-11-01 05:00:00Z', NULL)
    AS t(name, number, at, list) ORDER BY at
"""
"""Half past one, twice, in the night when St. John's clocks are set back."""


@pytest.fixture
def ask_nowhere(nameless: SparkSession, tmp_path: Path) -> Callable[..., Ended]:
    """Run `lakehouse sql` in the same way, in a lake without tables."""
    environment = {"COLUMNS": "300", "LAKEHOUSE_HOME": str(tmp_path)}
    return lambda *arguments: run_command(environment, "sql", *arguments, spark=nameless)


def test_sql_prints_csv_that_reads_back(ask_nowhere: Callable[..., Ended]) -> None:
    result = ask_nowhere(TRICKY, "--format", "csv")

    assert result.returncode == 0, result.stderr
    assert list(csv.reader(io.StringIO(result.stdout))) == [
        ["name", "number", "at", "list"],
        ["plain", "1", "2026-11-01T04:00:00Z", "[1, 2]"],
        ['a "quoted", [bold]one[/] [/nothing]', "", "2026-11-01T05:00:00Z", ""],
    ]


def test_sql_prints_a_table_with_every_value_as_it_is(ask_nowhere: Callable[..., Ended]) -> None:
    result = ask_nowhere(TRICKY)

    assert result.returncode == 0, result.stderr
    for text in ("name", "2026-11-01T04:00:00Z", "2026-11-01T05:00:00Z", "[1, 2]", "2 rows"):
        assert text in result.stdout
    assert 'a "quoted", [bold]one[/] [/nothing]' in result.stdout


@pytest.mark.parametrize(("limit", "shown", "notice"), [(1, 1, True), (2, 2, False), (3, 2, False)])
def test_sql_says_so_only_when_it_leaves_rows_out(
    ask_nowhere: Callable[..., Ended], limit: int, shown: int, notice: bool
) -> None:
    result = ask_nowhere(TRICKY, "--format", "json", "--limit", str(limit))

    assert len(json.loads(result.stdout)) == shown
    assert ("more" in result.stderr) == notice


@pytest.mark.soak
def test_sql_knows_the_tables_by_name(done: Done, ask: Callable[..., Ended]) -> None:
    statement = """
        SELECT (SELECT count(*) FROM bronze.metrics_events) - (SELECT count(*) FROM silver.metrics_events)
               - (SELECT count(*) FROM silver.dead_letters) AS missing,
               (SELECT sum(count) FROM gold.metrics_1m) AS counted
    """

    result = ask(statement, "--format", "json")

    assert json.loads(result.stdout) == [{"missing": 0, "counted": EVENTS - done.malformed}]
    listed = ask("SHOW TABLES IN gold", "--format", "csv")
    assert "gold,metrics_1m,false" in listed.stdout
