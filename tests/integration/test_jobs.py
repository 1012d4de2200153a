"""What a user runs, as processes: the four spark-submit jobs, `lakehouse run`, `sql` and `demo`.

The jobs run once over a few thousand produced events; most tests look at what they left behind.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pytest
import redis
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from lakehouse.commands import sql
from lakehouse.layer import LAYERS
from lakehouse.local.services import Endpoints
from lakehouse.producing import produce
from lakehouse.samples import Sample, paced_times, spread_times
from lakehouse.samples.metrics import MALFORMED_KINDS, samples
from lakehouse.sinks import row_key
from tests.pipeline import read_topic
from tests.processes import LAKEHOUSE, NOISE, QUICK_JVM, Place, finish, place, running, submit

EVENTS = 2000
DEMO_TIMEOUT_S = 600.0
DEMO_EVENTS = 1_000
FEWER = (
    f"from lakehouse import cli, demo; demo.EVENTS = dict.fromkeys(demo.EVENTS, {DEMO_EVENTS}); cli.main()"
)
DEMO = [sys.executable, "-c", FEWER, "demo"]


@dataclass(frozen=True)
class Done:
    """A place where the four jobs have run, what was produced there and what each job printed."""

    place: Place
    sent: list[Sample]
    jobs: Mapping[str, subprocess.CompletedProcess[str]]

    @property
    def malformed(self) -> int:
        return sum(sample.kind in MALFORMED_KINDS for sample in self.sent)


@pytest.fixture(scope="module")
def done(services: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    with place(tmp_path_factory.mktemp("jobs") / "höme [1]", services, database=6) as here:
        times = spread_times(EVENTS, end_ms=int(time.time() * 1000), span_s=600)
        sent = list(samples(EVENTS, times, seed=5, malformed=0.05, late=0.02, duplicates=0.02))
        assert produce(services.kafka, here.topic_in, sent).acknowledged == EVENTS
        arguments = ["--stream", "metrics", "--trigger", "available-now"]
        jobs = {str(layer): finish(submit(layer, *arguments), here.environment) for layer in LAYERS}
        yield Done(here, sent, jobs)


# The jobs.


@pytest.mark.parametrize("layer", LAYERS)
def test_a_job_catches_up_and_says_so_without_noise(done: Done, layer: str) -> None:
    job = done.jobs[layer]

    assert job.returncode == 0, job.stdout + job.stderr
    first, *batches, last = job.stdout.splitlines()
    assert first == f"{layer} of metrics, trigger available-now, lake {done.place.home / 'lake'}"
    assert last == "caught up"
    assert len(batches) == (2 if layer in {"gold", "export"} else 1)  # metrics have two gold tables
    assert not NOISE.search(job.stdout + job.stderr), job.stderr
    assert len(job.stderr.splitlines()) <= 2, job.stderr  # Java's own, on the vector module


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
    assert shown["bronze"].startswith("bronze.metrics_events batch 0: 2,000 rows")
    assert shown["bronze"].endswith(": 2,000 metrics_events")
    assert shown["silver"].endswith(f" {clean:,} metrics_events, {done.malformed} dead_letters")
    assert shown["gold"].endswith(f" {len(windows):,} metrics_1m")
    assert shown["export"].endswith(f" {len(windows):,} {done.place.topic_out}, {len(windows):,} redis")


def test_every_window_left_once_for_kafka_and_stands_in_redis(done: Done) -> None:
    windows = {row_id(row): row["count"] for row in done.place.rows("gold.metrics_1m")}

    messages = [json.loads(value) for _, value in read_committed(done.place, done.place.topic_out)]
    assert len(messages) == len(windows)
    assert {message_id(message): message["count"] for message in messages} == windows
    with redis.Redis.from_url(done.place.redis_url, decode_responses=True) as client:
        keys = [row_key("metrics_1m", name) for name in windows]
        in_redis = [json.loads(str(row)) for row in client.mget(keys)]
    assert [row["count"] for row in in_redis] == list(windows.values())


def row_id(window: Mapping[str, Any]) -> str:
    start_ms = int(window["window_start"].timestamp() * 1000)
    return f"{window['service_id']}:{window['metric_name']}:{start_ms}"


def message_id(message: Mapping[str, Any]) -> str:
    return f"{message['serviceId']}:{message['metricName']}:{message['windowStart']}"


def read_committed(here: Place, topic: str) -> list[tuple[bytes, bytes]]:
    return [(message.key, message.value) for message in read_topic(here.services.kafka, topic)]


# The tables, opened without Spark.


def test_deltalake_reads_bronze_as_the_bytes_that_were_sent(done: Done) -> None:
    landed = done.place.rows("bronze.metrics_events")

    assert Counter((row["key"], row["value"]) for row in landed) == Counter(
        (sample.key, sample.value) for sample in done.sent
    )
    assert {row["topic"] for row in landed} == {done.place.topic_in}
    assert {row["partition"] for row in landed} == {0, 1, 2, 3}


def test_deltalake_reads_silver_as_the_values_that_were_sent(done: Done) -> None:
    clean = done.place.rows("silver.metrics_events")
    dead = done.place.rows("silver.dead_letters")

    sent = [json.loads(s.value or b"") for s in done.sent if s.kind not in MALFORMED_KINDS]
    assert Counter(
        (row["service_id"], row["metric_name"], row["value"], row["environment"], row["event_time"])
        for row in clean
    ) == Counter(
        (event["serviceId"], event["metricName"], event["value"], event.get("environment"), instant(event))
        for event in sent
    )
    assert Counter((row["key"], row["value"]) for row in dead) == Counter(
        (sample.key, sample.value) for sample in done.sent if sample.kind in MALFORMED_KINDS
    )
    assert all(row["reasons"] and row["status"] == "open" for row in dead)


def instant(event: Mapping[str, Any]) -> datetime:
    stamp = event["timestamp"]
    if isinstance(stamp, str):
        return datetime.fromisoformat(stamp).astimezone(UTC)
    return datetime.fromtimestamp(stamp // 1000, UTC).replace(microsecond=stamp % 1000 * 1000)


def test_deltalake_reads_gold_as_plain_arithmetic_over_silver_has_it(done: Done) -> None:
    values: dict[tuple[str, str, datetime], list[float]] = defaultdict(list)
    for row in done.place.rows("silver.metrics_events"):
        minute = row["event_time"].replace(second=0, microsecond=0)
        values[row["service_id"], row["metric_name"], minute].append(row["value"])
    windows = done.place.rows("gold.metrics_1m")
    found = {(row["service_id"], row["metric_name"], row["window_start"]): row for row in windows}

    assert len(windows) == len(found)
    assert found.keys() == values.keys()
    for key, seen in values.items():
        window, ordered = found[key], sorted(seen)
        nearest = ordered[math.ceil(0.9 * len(seen)) - 1]
        exact = [len(seen), ordered[0], ordered[-1], nearest]
        assert [window["count"], window["min"], window["max"], window["p90"]] == exact
        assert window["sum"] == pytest.approx(math.fsum(seen))
        assert window["avg"] == pytest.approx(math.fsum(seen) / len(seen))
        assert (window["variance"] is None) == (len(seen) == 1)


def test_duckdb_queries_what_deltalake_hands_it(done: Done) -> None:
    gold, silver = done.place.table("gold.metrics_1m"), done.place.table("silver.metrics_events")

    with duckdb.connect() as connection:
        connection.register("gold", gold)
        connection.register("silver", silver)
        connection.execute("SET TimeZone = 'UTC'")
        different = connection.execute(
            """
            SELECT count(*) FROM (SELECT service_id, metric_name, window_start, count, max FROM gold) g
            FULL OUTER JOIN (
                SELECT service_id, metric_name, date_trunc('minute', event_time) AS window_start,
                       count(*) AS count, max(value) AS max
                FROM silver GROUP BY ALL
            ) s USING (service_id, metric_name, window_start)
            WHERE g.count IS DISTINCT FROM s.count OR g.max IS DISTINCT FROM s.max
            """
        ).fetchone()
        total = connection.execute("SELECT sum(count)::BIGINT FROM gold").fetchone()

    assert different == (0,)
    assert total == (EVENTS - done.malformed,)


# Stopping.


@contextmanager
def arriving(here: Place, rate: float) -> Iterator[None]:
    """Have metrics events arrive at a steady rate inside the block; one in fifty is malformed."""
    leave = threading.Event()
    times = paced_times(rate)
    endless = samples(10**9, times, seed=7, malformed=0.02, late=0.01)
    thread = threading.Thread(
        target=produce,
        args=(here.services.kafka, here.topic_in, endless),
        kwargs={"rate": rate, "stop": leave.is_set},
    )
    thread.start()
    try:
        yield
    finally:
        leave.set()
        thread.join()


def test_signals_finish_the_micro_batch_and_the_next_run_loses_and_doubles_nothing(
    services: Endpoints, tmp_path: Path
) -> None:
    with place(tmp_path / "home", services, database=7) as here:
        live = ["--stream", "metrics", "--trigger", "1 second"]
        with arriving(here, rate=300):
            with running(submit("bronze", *live), here.environment, tmp_path / "one") as job:
                job.await_output("bronze.metrics_events batch 1:")
                os.kill(job.pid, signal.SIGTERM)
                assert job.wait() == 0, job.everything()
                assert job.left_behind() == []
                assert job.output.splitlines()[-1] == "stopped"
                assert not NOISE.search(job.everything()), job.everything()
            everything = [LAKEHOUSE, "run", "all", *live]
            for number, (send, name) in enumerate([(os.killpg, signal.SIGINT), (os.kill, signal.SIGTERM)]):
                directory = tmp_path / f"all-{number}"
                with running(everything, here.environment, directory) as layers:
                    layers.await_output("\nexport.metrics_1m batch ")
                    send(layers.pid, name)
                    assert layers.wait() == 0, layers.everything()
                    assert layers.left_behind() == []
                    assert layers.output.splitlines()[-1] == "stopped"
                    assert not NOISE.search(layers.everything()), layers.everything()
        catch_up = [LAKEHOUSE, "run", "all", "--stream", "metrics", "--trigger", "available-now"]
        rest = finish(catch_up, here.environment)

        assert rest.returncode == 0, rest.stdout + rest.stderr
        assert rest.stdout.splitlines()[-1] == "caught up"
        landed = here.rows("bronze.metrics_events")
        clean, dead = here.rows("silver.metrics_events"), here.rows("silver.dead_letters")
        windows = here.rows("gold.metrics_1m")
        sent = read_committed(here, here.topic_in)
        assert Counter((row["key"], row["value"]) for row in landed) == Counter(sent)
        assert len(clean) + len(dead) == len(landed)
        assert len(places(clean) | places(dead)) == len(landed)
        assert sum(window["count"] for window in windows) == len(clean)
        newest = {}
        for _, value in read_committed(here, here.topic_out):
            message = json.loads(value)
            newest[message_id(message)] = message["count"]
        assert newest == {row_id(window): window["count"] for window in windows}


def places(rows: list[dict[str, Any]]) -> set[tuple[int, int]]:
    return {(row["partition"], row["offset"]) for row in rows}


# What users get wrong.


@dataclass(frozen=True)
class Mistake:
    """Arguments and environment that cannot work, and what is to be said about them."""

    arguments: list[str]
    environment: dict[str, str]
    exit_code: int
    says: list[str]


MISTAKES = {
    "unknown stream": Mistake(
        ["run", "bronze", "--stream", "metrix"],
        {},
        2,
        ["unknown stream metrix", "known: calls, metrics, sales, transactions"],
    ),
    "bad trigger": Mistake(
        ["run", "all", "--trigger", "sometimes"], {}, 2, ['unknown trigger "sometimes"', "available-now"]
    ),
    "no broker": Mistake(
        ["run", "bronze"],
        {"LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:{closed}"},
        1,
        ["no Kafka broker at 127.0.0.1:{closed}", "lakehouse services up"],
    ),
    "no Redis": Mistake(
        ["run", "export"],
        {"LAKEHOUSE_REDIS_URL": "redis://user:secret@127.0.0.1:{closed}/0"},
        1,
        ["no Redis at 127.0.0.1:{closed}", "LAKEHOUSE_REDIS_URL"],
    ),
    "not a Redis URL": Mistake(
        ["run", "export"], {"LAKEHOUSE_REDIS_URL": "localhost:6379"}, 1, ["LAKEHOUSE_REDIS_URL"]
    ),
    "unknown variable": Mistake(
        ["run", "bronze"],
        {"LAKEHOUSE_KAFKA_SERVERS": "x"},
        2,
        ["LAKEHOUSE_KAFKA_SERVERS", "known: ", "LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS"],
    ),
    "unknown key in the file": Mistake(
        ["run", "bronze"], {"LAKEHOUSE_CONFIG": "{file}"}, 2, ["unknown key grace", "{file}"]
    ),
    "missing file": Mistake(
        ["run", "bronze"], {"LAKEHOUSE_CONFIG": "nowhere.toml"}, 2, ["nowhere.toml, which does not exist"]
    ),
}


@pytest.fixture
def mistake(request: pytest.FixtureRequest, tmp_path: Path) -> Mistake:
    """A mistake with a closed port and a configuration file of this test's."""
    (tmp_path / "lakehouse.toml").write_text("grace = 5\n")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        facts = {"closed": probe.getsockname()[1], "file": tmp_path / "lakehouse.toml"}
    raw: Mistake = request.param
    return Mistake(
        raw.arguments,
        {name: value.format(**facts) for name, value in raw.environment.items()},
        raw.exit_code,
        [text.format(**facts) for text in raw.says],
    )


def test_a_jvm_that_does_not_come_up_is_given_up_in_one_line(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexec sleep 600\n")
    java.chmod(0o755)
    environment = {**os.environ, "JAVA_HOME": str(tmp_path), "LAKEHOUSE_HOME": str(tmp_path / "home")}
    hasty = "from lakehouse import cli, session; session._JVM_TIMEOUT_S = 5; cli.main()"

    ended = finish([sys.executable, "-c", hasty, "sql", "SELECT 1"], environment)

    assert ended.returncode != 0
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: Spark's JVM did not come up in 5 s")
    assert not [process for process in psutil.process_iter(["environ"]) if is_of(process, tmp_path)]


def is_of(process: psutil.Process, java_home: Path) -> bool:
    return bool(process.info["environ"] and process.info["environ"].get("JAVA_HOME") == str(java_home))


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys(), indirect=True)
def test_a_mistake_is_one_line_with_its_exit_code(
    services: Endpoints, tmp_path: Path, mistake: Mistake
) -> None:
    here = Place(tmp_path / "home", services, services.redis, uuid.uuid4().hex[:8])

    ended = finish([LAKEHOUSE, *mistake.arguments], here.environment | mistake.environment)

    assert ended.returncode == mistake.exit_code, ended.stderr
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.count("\n") == 1
    assert ended.stdout == ""
    for text in mistake.says:
        assert text in ended.stderr
    assert "secret" not in ended.stderr


def test_a_file_that_is_not_toml_is_named_wherever_the_command_is_run(
    services: Endpoints, tmp_path: Path
) -> None:
    here = Place(tmp_path / "home", services, services.redis, "unused")
    (tmp_path / "lakehouse.toml").write_text("grace_s == 5\n")

    ended = subprocess.run(
        [LAKEHOUSE, "run", "bronze"],
        env=here.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert ended.returncode == 2
    assert ended.stderr.startswith("error: lakehouse.toml could not be read: ")
    assert ended.stderr.count("\n") == 1


def test_a_mistake_under_spark_submit_is_one_line_too(services: Endpoints, tmp_path: Path) -> None:
    here = Place(tmp_path / "home", services, services.redis, "unused")

    ended = finish(submit("silver", "--stream", "metrix"), here.environment)

    assert ended.returncode == 2
    # spark-submit passes both of Python's outputs on as its standard output.
    assert ended.stdout == "error: unknown stream metrix; known: calls, metrics, sales, transactions\n"
    assert not NOISE.search(ended.stderr), ended.stderr


# Questions in SQL.


@pytest.fixture
def ask(
    done: Done,
    spark: SparkSession,
    no_names: None,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Result]:
    """Run `lakehouse sql` in this process, on the session's Spark rather than one of its own."""
    for name, value in done.place.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sql, "start_session", lambda *_: nullcontext(spark))
    return lambda *arguments: CliRunner().invoke(sql.app, [*arguments])


def test_sql_prints_json_in_utc_whatever_the_time_zone(done: Done) -> None:
    statement = "SELECT service_id, window_start, count FROM gold.metrics_1m ORDER BY 2, 1, metric_name"
    ended = finish([LAKEHOUSE, "sql", statement, "--format", "json", "--limit", "3"], done.place.environment)

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
    assert "only the first 3 rows are shown; --limit N shows more" in ended.stderr
    assert not NOISE.search(ended.stderr), ended.stderr


def test_sql_of_an_unknown_table_is_one_line_that_lists_the_tables(done: Done) -> None:
    ended = finish([LAKEHOUSE, "sql", "SELECT * FROM gold.metrics_1h"], done.place.environment)

    assert ended.returncode == 1
    said = [line for line in ended.stderr.splitlines() if not line.lower().startswith("warning: ")]
    assert len(said) == 1
    assert said[0].startswith("error: [TABLE_OR_VIEW_NOT_FOUND]")
    assert "metrics_1h" in said[0]
    gold = "gold.metrics_1m, gold.metrics_summary_10m"
    tables = f"bronze.metrics_events, silver.metrics_events, silver.dead_letters, {gold}"
    assert said[0].endswith(f"(tables here: {tables})")
    assert ended.stdout == ""


TRICKY = """
    SELECT * FROM VALUES
        ('plain', 1, TIMESTAMP'2026-11-01 04:00:00Z', ARRAY(1, 2)),
        ('a "quoted", [bold]one[/] [/nothing]', NULL, TIMESTAMP'2026-11-01 05:00:00Z', NULL)
    AS t(name, number, at, list) ORDER BY at
"""
"""Half past one in the night when St. John's clocks are set back, twice."""


def test_sql_prints_csv_that_reads_back(ask: Callable[..., Result]) -> None:
    result = ask(TRICKY, "--format", "csv")

    assert result.exit_code == 0, result.output
    assert list(csv.reader(io.StringIO(result.stdout))) == [
        ["name", "number", "at", "list"],
        ["plain", "1", "2026-11-01T04:00:00Z", "[1, 2]"],
        ['a "quoted", [bold]one[/] [/nothing]', "", "2026-11-01T05:00:00Z", ""],
    ]


def test_sql_prints_a_table_with_every_value_as_it_is(ask: Callable[..., Result]) -> None:
    result = ask(TRICKY)

    assert result.exit_code == 0, result.output
    for text in ("name", "2026-11-01T04:00:00Z", "2026-11-01T05:00:00Z", "[1, 2]", "2 rows"):
        assert text in result.stdout
    assert 'a "quoted", [bold]one[/] [/nothing]' in result.stdout


@pytest.mark.parametrize(("limit", "shown", "notice"), [(1, 1, True), (2, 2, False), (3, 2, False)])
def test_sql_says_so_only_when_it_leaves_rows_out(
    ask: Callable[..., Result], limit: int, shown: int, notice: bool
) -> None:
    result = ask(TRICKY, "--format", "json", "--limit", str(limit))

    assert len(json.loads(result.stdout)) == shown
    assert ("more" in result.stderr) == notice


def test_sql_knows_the_tables_by_name(done: Done, ask: Callable[..., Result]) -> None:
    statement = """
        SELECT (SELECT count(*) FROM bronze.metrics_events) - (SELECT count(*) FROM silver.metrics_events)
               - (SELECT count(*) FROM silver.dead_letters) AS missing,
               (SELECT sum(count) FROM gold.metrics_1m) AS counted
    """

    result = ask(statement, "--format", "json")

    assert json.loads(result.stdout) == [{"missing": 0, "counted": EVENTS - done.malformed}]
    listed = ask("SHOW TABLES IN gold", "--format", "csv")
    assert "gold,metrics_1m,false" in listed.stdout


# The demo.


@pytest.mark.slow
def test_the_demo_can_be_stopped_and_run_again_balances_its_books_and_leaves_nothing_running(
    tmp_path: Path,
) -> None:
    home = tmp_path / "höme [1]"
    environment = {**os.environ, **QUICK_JVM, "LAKEHOUSE_HOME": str(home), "COLUMNS": "120"}

    with running(DEMO, environment, tmp_path / "stopped") as demo:
        log = home / "demo/lake/silver/metrics_events/_delta_log"
        demo.await_path(log / "00000000000000000001.json", DEMO_TIMEOUT_S)
        os.killpg(demo.pid, signal.SIGINT)
        assert demo.wait() == 0, demo.everything()
        assert demo.left_behind() == []
        assert "stopped; the demo can be run again" in demo.output.splitlines()
        assert not NOISE.search(demo.everything()), demo.everything()
    assert processes_of(tmp_path) == []

    # What the demo proposes to try next may still be running when it is run again.
    services_up = finish([LAKEHOUSE, "services", "up"], {**environment, "LAKEHOUSE_HOME": str(home / "demo")})
    assert services_up.returncode == 0, services_up.stderr
    assert len(processes_of(tmp_path)) == 2
    with running(DEMO, environment, tmp_path / "again") as demo:
        assert demo.wait(DEMO_TIMEOUT_S) == 0, demo.everything()
        assert demo.left_behind() == []
        streams = numbers(demo.output)
        assert list(streams) == ["metrics", "calls", "sales", "transactions"]
        for name, (produced, bronze, silver, dead, gold, exported) in streams.items():
            assert produced == bronze == silver + dead == DEMO_EVENTS, name
            assert dead > 0 < gold, name
            assert exported > 0
        assert f"events that its windows count: {streams['metrics'][2]:,}" in demo.output
        for table in ("metrics_1m", "call_records", "product_sales", "user_transactions_5m"):
            assert f"gold.{table}" in demo.output
        assert not NOISE.search(demo.everything()), demo.everything()
    assert processes_of(tmp_path) == []


def numbers(output: str) -> dict[str, list[int]]:
    """The demo's table of streams: produced, bronze, silver, dead letters, gold, exported."""
    found = re.findall(r"^│ (\w+) +│" + r" +([\d,]+) │" * 6, output, re.MULTILINE)
    return {name: [int(rows.replace(",", "")) for rows in figures] for name, *figures in found}


def processes_of(home: Path) -> list[psutil.Process]:
    """Every live process that works in a directory under the home."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()).is_relative_to(home):
                found.append(process)
        except psutil.Error:
            continue
    return found
