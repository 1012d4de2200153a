"""The fixed cost of starts.

    python -m benchmarks.fixed starts            a cold catch-up, a restarted layer, commands
    python -m benchmarks.fixed starts --tree ..  the same, alternating with another checkout

The other checkout runs in the environment of this checkout.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from rich.table import Table

from benchmarks.bench import bench_services, console
from benchmarks.measuring import Usage
from lakehouse.dev.samples.loads import Load, send
from lakehouse.settings import Settings
from lakehouse.streams.registry import BY_DEFAULT

app = typer.Typer(help=__doc__, add_completion=False, no_args_is_help=True)
METRICS = BY_DEFAULT[0]
ROOT = Path(__file__).parents[1]
_COMMANDS = (
    ("audit",),
    ("expect", "gold"),
    ("rebuild", "gold"),
    ("dead-letters", "replay", "--all"),
)


@app.command()
def starts(
    tree: Annotated[list[Path] | None, typer.Option(help="Another checkout; may be repeated.")] = None,
    events: Annotated[int, typer.Option(min=1, help="Events of each stream.")] = 3_000,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each tree.")] = 1,
) -> None:
    """Print the cost of a cold catch-up, a restarted layer and commands, from process start to end."""
    found: dict[str, dict[Path, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    trees = [ROOT, *(one.resolve() for one in tree or [])]
    for number in range(rounds):
        for root in trees if number % 2 == 0 else trees[::-1]:
            for step, usage in _starts_of(root, events):
                console.print(f"{root.name}: {step} {usage.wall_s:.1f} s, {usage.cpu_s:.1f} CPU-s")
                found[step][root].append((usage.wall_s, usage.cpu_s))
    table = Table("from process start to end", title=f"starts, medians of {rounds}")
    for root in trees:
        table.add_column(f"{root.name}: wall s", justify="right")
        table.add_column("CPU-s", justify="right")
    for step, by_tree in found.items():
        cells = (
            f"{statistics.median(costs):.1f}" for root in trees for costs in zip(*by_tree[root], strict=True)
        )
        table.add_row(step, *cells)
    console.print(table)


def _starts_of(root: Path, events: int) -> Iterator[tuple[str, Usage]]:
    with bench_services() as settings:
        for stream in BY_DEFAULT:
            send(Load(stream.name, events), settings)
        environment = {
            **os.environ,
            "PYTHONPATH": str(root),
            "LAKEHOUSE_HOME": str(settings.home),
            "LAKEHOUSE_LAKE": settings.lake,
            "LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS": settings.kafka.bootstrap_servers,
            "LAKEHOUSE_REDIS_URL": settings.redis.url.get_secret_value(),
        }
        run = ("run", "all", "--trigger", "available-now")
        yield f"cold catch-up of 4 x {events:,} events", timed(root, run, environment)
        yield "the same lake, caught up", timed(root, run, environment)
        for layer in ("bronze", "silver", "gold"):
            send(Load("metrics", 1, seed=9), settings)
            yield (
                f"{layer}: from start to one record's commit",
                _to_commit(root, layer, settings, environment),
            )
        count = "SELECT count(*) FROM gold.metrics_1m"
        yield "sql, a count", timed(root, ("sql", count), environment)
        for arguments in _COMMANDS:
            name = " ".join(arguments)
            first, whole = _to_first_line(root, arguments, environment)
            yield f"{name}: to its first line", first
            yield f"{name}: to its end", whole


def timed(root: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> Usage:
    """Measure a command from a checkout, from its start to its end."""
    process = _started(root, arguments, environment)
    usage = _used_until(process, lambda: False)
    if process.returncode not in (0, 1):  # 1: for example, the samples are too old for an expectation
        console.print(f"{root.name}: {arguments[0]} ended with {process.returncode}", style="red")
        raise typer.Exit(1)
    return usage


def _to_commit(root: Path, layer: str, settings: Settings, environment: Mapping[str, str]) -> Usage:
    """Measure a layer until it has committed the waiting micro-batch, then let it finish."""
    table = "metrics_1m" if layer == "gold" else "metrics_events"
    log = Path(settings.lake, layer, table, "_delta_log")
    before = set(log.glob("*.json"))
    arguments = ("run", layer, "--stream", "metrics", "--trigger", "available-now")
    process = _started(root, arguments, environment)
    usage = _used_until(process, lambda: set(log.glob("*.json")) != before)
    process.wait()
    return usage


def _to_first_line(
    root: Path, arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[Usage, Usage]:
    """Measure a command until its first output, except JVM warnings, and until its end."""
    with tempfile.NamedTemporaryFile() as said:

        def has_spoken() -> bool:
            lines = Path(said.name).read_text(encoding="utf-8", errors="replace").splitlines()
            return any(not line.upper().startswith("WARNING") for line in lines)

        process = _started(root, arguments, environment, said)
        first = _used_until(process, has_spoken)
        rest = _used_until(process, lambda: False)
    return first, Usage(first.wall_s + rest.wall_s, max(first.cpu_s, rest.cpu_s))


def _started(
    root: Path, arguments: Sequence[str], environment: Mapping[str, str], out: Any = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from lakehouse.cli.main import main; main()", *arguments]
    return subprocess.Popen(
        command, cwd=root, env=dict(environment), stdout=out, stderr=out, start_new_session=True
    )


def _used_until(process: subprocess.Popen[bytes], is_reached: Callable[[], bool]) -> Usage:
    """Return the resources that a session's processes use until a condition holds or the leader ends."""
    began, cpu_s = time.monotonic(), dict[int, float]()
    while process.poll() is None and not is_reached():
        for pid in psutil.pids():
            with suppress(psutil.Error, OSError):  # the process has ended, or belongs to another user
                if os.getsid(pid) == process.pid:
                    times = psutil.Process(pid).cpu_times()
                    cpu_s[pid] = times.user + times.system
        time.sleep(0.1)
    return Usage(time.monotonic() - began, sum(cpu_s.values()))


if __name__ == "__main__":
    app()
