"""The age of events in gold, in Redis and in output topics under a live load, and the resources used.

python -m benchmarks.live --rate 10000 --seconds 120 --rounds 3 --peer --json live.json --plot live.png
python -m benchmarks.live --stream metrics --stream calls --stream sales --stream transactions --rate 2500
python -m benchmarks.live --kill-after 30
python -m benchmarks.live --rate 5000 --s3-wait-ms 30

`lakehouse run all` runs in one process, and a second process sends events. For metrics, a third process reads
Redis and the output topic. An event is in gold at the first commit that contains an event with the same or a
later time. It is sent when the export reports that it has sent that commit; streams other than metrics are
measured this way. With `--peer`, a Kafka Streams application for the same streams takes turns with the
pipeline, and its topics are read. With `--s3-wait-ms`, the lake is on a SeaweedFS behind a proxy that delays
requests, and gold is not measured.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import typer
from pydantic import SecretStr

from benchmarks import peer
from benchmarks.ages import Ages, Places, Watcher, watching
from benchmarks.applications import Pipeline, environment, pipeline, sampled
from benchmarks.bench import bench_services, console
from benchmarks.figures import KAFKA_STREAMS, PIPELINE, Measured, draw, show, write
from lakehouse.common.errors import LakehouseError
from lakehouse.engine.layers import LAYERS
from lakehouse.settings import Settings, load_settings
from lakehouse.storage.kafka.topics import create_topics
from lakehouse.streams.definition import GoldTable
from lakehouse.streams.registry import choose
from tests.support import s3_proxy as proxy
from tests.support import seaweed

_SHARES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
_DRAIN_TIMEOUT_S = 60.0
_DRAIN_S = 30.0  # how long to wait if nothing observes that all events have arrived
_LAYERS: Sequence[str] = LAYERS

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Plan:
    """The plan for each round. `rate` is the number of events per second in each stream."""

    streams: Sequence[str]
    rate: float
    seconds: float
    warmup_seconds: float
    arguments: Sequence[str] = ()
    kill_after_s: float | None = None
    s3_wait_ms: float | None = None

    @property
    def events(self) -> float:
        """The number of measured events in all streams."""
        return self.rate * self.seconds * len(self.streams)


@dataclass
class Round:
    """The results of a round: ages by place, and the resources that the application used."""

    ages: dict[str, Ages] = field(default_factory=dict)
    cores: float = 0.0
    cpu_s_per_million: float = 0.0
    peak_mb: float = 0.0
    steps: dict[str, list[float]] = field(default_factory=dict)
    killed_at_s: float | None = None

    def figures(self) -> dict[str, float]:
        """Return all figures by name."""
        found = {
            f"{name} to {place}, s": ages.percentile_s(share)
            for place, ages in sorted(self.ages.items())
            for name, share in _SHARES
        }
        found |= {f"worst to {place} in half-minute {n}, s": worst for place, n, worst in self._worst()}
        found |= {"cores busy": self.cores, "CPU-s per million events": self.cpu_s_per_million}
        found |= {"peak memory, MB": self.peak_mb}
        for query, (per_minute, mean_s) in self.steps.items():
            found[f"{query}, steps per minute"] = per_minute
            found[f"{query}, mean s"] = mean_s
        return found

    def _worst(self) -> Iterator[tuple[str, int, float]]:
        for place, ages in sorted(self.ages.items()):
            for number, worst in enumerate(ages.worst_s(), start=1):
                yield place, number, worst


@app.command()
def live(
    *,
    stream: Annotated[list[str] | None, typer.Option(help="Streams that run; by default metrics.")] = None,
    rate: Annotated[float, typer.Option(min=1, help="Events per second for each stream.")] = 10_000,
    seconds: Annotated[float, typer.Option(min=1, help="How long to measure.")] = 120,
    warmup_seconds: Annotated[float, typer.Option(min=0, help="How long to send warm-up events first.")] = 60,
    rounds: Annotated[
        int, typer.Option(min=1, help="How often to measure, with a fresh start each time.")
    ] = 1,
    with_peer: Annotated[bool, typer.Option("--peer", help="Alternate with Kafka Streams.")] = False,
    gate: Annotated[bool, typer.Option("--gate", help="Export gold only while its suites pass.")] = False,
    kill_after: Annotated[
        float | None, typer.Option(min=0, help="Kill the pipeline this long into the measurement.")
    ] = None,
    s3_wait_ms: Annotated[
        float | None,
        typer.Option(min=0, help="Put the lake on a SeaweedFS that delays each request by this long."),
    ] = None,
    json_: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot the figures to this PNG.")] = None,
) -> None:
    """Measure the age of events in applications that are freshly started and warmed up."""
    names = [one.name for one in choose(stream or ["metrics"], load_settings())]
    if with_peer and kill_after is not None:
        raise typer.BadParameter("--kill-after cannot be used with --peer: the peer is not killed")
    plan = Plan(names, rate, seconds, warmup_seconds, ["--gate"] if gate else [], kill_after, s3_wait_ms)
    if with_peer:
        peer.build()
    found = []
    for number in range(1, rounds + 1):
        order = [PIPELINE, *([KAFKA_STREAMS] if with_peer else [])]
        for who in order if number % 2 else reversed(order):
            one = _measure(plan) if who == PIPELINE else _measure_peer(plan)
            found.append(Measured(who, number, one.figures()))
            _print_round(who, number, one)
    title = f"{' and '.join(names)}: {rate:,.0f} events/s for {seconds:.0f} s after {warmup_seconds:.0f} s"
    show(console, title, found)
    write(json_, found)
    ages = [name for name in found[0].figures if name.endswith((" topic, s", " sent, s"))]
    draw(plot, title, found, [name for name in ages if len(names) == 1 or name.startswith("p50")])


def _print_round(who: str, number: int, one: Round) -> None:
    ages = ", ".join(f"p99 to {place} {ages.percentile_s(0.99):.2f} s" for place, ages in one.ages.items())
    console.print(f"round {number}, {who}: {ages}")
    if one.killed_at_s is None:
        return
    for place, row_ages in one.ages.items():
        wait_s = row_ages.first_seen_s(one.killed_at_s) - one.killed_at_s
        console.print(f"first new row in {place} {wait_s:.1f} s after the kill")


def _measure(plan: Plan) -> Round:
    with bench_services() as on_disk, ExitStack() as stack:
        is_on_disk = plan.s3_wait_ms is None
        settings = on_disk if is_on_disk else stack.enter_context(_on_s3(on_disk, plan.s3_wait_ms or 0.0))
        one = stack.enter_context(pipeline(settings, *_streams_of(plan), *plan.arguments))
        one.await_start()
        watcher = _watcher_of(plan, settings, stack)
        Producers(plan, settings, plan.warmup_seconds, seed=1).wait()
        began, said, found = time.time(), len(one.lines()), Round()
        with sampled(lambda: one.processes) as used:
            producers = Producers(plan, settings, plan.seconds, seed=2)
            if plan.kill_after_s is not None:
                time.sleep(plan.kill_after_s)
                found.killed_at_s = time.time()
                one.kill_and_start_again()
            producers.wait()
        steps = one.lines()[said:]
        seen = _seen(plan, watcher, one)
        one.stop()
        if is_on_disk:
            seen |= _ages_in_lake(settings, plan.streams, None if watcher is not None else one.lines())
        found.ages = {place: ages.since(began) for place, ages in seen.items()}
        found.cores, found.cpu_s_per_million = used.cpu_s / used.wall_s, used.cpu_s / plan.events * 1e6
        found.peak_mb, found.steps = used.peak_mb, _steps(steps, used.wall_s)
        return found


@contextmanager
def _on_s3(settings: Settings, wait_ms: float) -> Iterator[Settings]:
    """Run an S3 store behind a proxy that delays requests, and yield settings for a lake there."""
    with seaweed.running(settings.home / "weed") as store, proxy.before(store) as between:
        between.wait_s = wait_ms / 1000
        access = {"s3.endpoint": between.endpoint, "s3.access_key": seaweed.WRITER[0]}
        secret = {"s3.secret_key": SecretStr(seaweed.WRITER[1])}
        yield settings.changed({"lake": f"s3a://{seaweed.BUCKET}/live", **access, **secret})
        console.print(f"requests: {dict(sorted(between.counts().items()))}")


def _measure_peer(plan: Plan) -> Round:
    several = len(plan.streams) > 1
    places = {f"{name}: sent" if several else "topic": peer.OUTPUTS[name][0] for name in plan.streams}
    with bench_services() as settings, ExitStack() as stack:
        outputs = [topic for name in plan.streams for topic in peer.OUTPUTS[name]]
        inputs = [topic for one in choose(plan.streams, settings) for topic in one.topics]
        topics = dict.fromkeys([*inputs, *outputs], settings.kafka.topic_partitions)
        create_topics(settings.kafka.access, topics)
        one = stack.enter_context(peer.running(settings, plan.streams, threads=2))
        watcher = stack.enter_context(watching(Places(settings.kafka.bootstrap_servers, places)))
        Producers(plan, settings, plan.warmup_seconds, seed=1).wait()
        began, found = time.time(), Round()
        with sampled(lambda: [one.process]) as used:
            Producers(plan, settings, plan.seconds, seed=2).wait()
        if several:
            time.sleep(_DRAIN_S)  # as long as for the pipeline
        else:
            _await_events(plan, watcher)
        found.ages = {place: ages.since(began) for place, ages in watcher.end().items()}
        found.cores = used.cpu_s / used.wall_s
        found.cpu_s_per_million = used.cpu_s / plan.events * 1e6
        found.peak_mb = used.peak_mb
        return found


def _streams_of(plan: Plan) -> Iterator[str]:
    for name in plan.streams:
        yield from ("--stream", name)


def _watcher_of(plan: Plan, settings: Settings, stack: ExitStack) -> Watcher | None:
    if list(plan.streams) != ["metrics"]:
        return None
    return stack.enter_context(watching(places_of_metrics(settings)))


def places_of_metrics(settings: Settings) -> Places:
    """Return the places to which the pipeline exports metrics per minute."""
    url = settings.redis.url.get_secret_value()
    topic = settings.topic("metrics-aggregated-1m")
    return Places(settings.kafka.bootstrap_servers, {"topic": topic}, url, "metrics_1m")


def _seen(plan: Plan, watcher: Watcher | None, one: Pipeline) -> dict[str, Ages]:
    if watcher is None:
        time.sleep(_DRAIN_S)  # events that become visible later are not counted
        return {}
    _await_events(plan, watcher, one)
    return watcher.end()


def _await_events(plan: Plan, watcher: Watcher, one: Pipeline | None = None) -> None:
    """Wait until every event has been seen in every place. Raises LakehouseError after a minute."""
    total = round(plan.rate * plan.warmup_seconds) + round(plan.rate * plan.seconds)
    deadline = time.monotonic() + _DRAIN_TIMEOUT_S
    while set(found := watcher.events().values()) != {total}:
        if time.monotonic() > deadline:
            last = [line["message"] for line in one.lines()[-3:]] if one is not None else ""
            raise LakehouseError(
                f"only {sorted(found)} of {total:,} events were seen within a minute; the last output: {last}"
            )
        time.sleep(0.1)


class Producers:
    """Processes that send events, with one process for each stream.

    A driver calls the JVM thousands of times a second. If it also sent the events, both would slow each other
    down.
    """

    def __init__(self, plan: Plan, settings: Settings, seconds: float, seed: int) -> None:
        load = ["--rate", str(plan.rate), "--seconds", str(seconds), "--seed", str(seed)]
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "lakehouse", "produce", stream, *load],
                env=os.environ | environment(settings),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for stream in plan.streams
            if seconds
        ]

    def are_done(self) -> bool:
        """Whether all processes have ended, successfully or not."""
        return all(one.poll() is not None for one in self._processes)

    def stop(self) -> None:
        """Stop sending, and wait until all events that were sent are acknowledged."""
        for one in self._processes:
            one.terminate()
            one.wait()

    def wait(self) -> None:
        """Wait until all events are sent. Raises LakehouseError if a process fails."""
        if any(one.wait() for one in self._processes):
            raise LakehouseError("a producer has failed")


def _ages_in_lake(
    settings: Settings, streams: Sequence[str], lines: Sequence[dict[str, Any]] | None
) -> dict[str, Ages]:
    """Return the ages in gold and, given the pipeline's output lines, of the events that it has sent."""
    lake, found = Path(settings.lake), {}
    for stream in choose(streams, settings):
        table = stream.gold[0]
        prefix = f"{stream.name}: " if len(streams) > 1 else ""
        if "last_event_time" in table.schema.names:
            commits = list(_commits(lake / "gold" / table.name, "last_event_time"))
        else:
            commits = list(_commits_by_silver(lake, table))
        found[f"{prefix}gold"] = _ages_by([(one.at_s, one.last_s) for one in commits])
        if lines is not None:
            sent = _sent(lines, table.name)
            lasts = [
                (at_s, max((one.last_s for one in commits if one.version <= last), default=0.0))
                for at_s, last in sent
            ]
            found[f"{prefix}sent"] = _ages_by(lasts)
    return found


@dataclass(frozen=True)
class _Commit:
    """A table version, the time when it was written, and the greatest event time that it added (epoch s)."""

    version: int
    at_s: float
    last_s: float


def _sent(lines: Sequence[dict[str, Any]], table: str) -> Iterator[tuple[float, int]]:
    """Yield the end of each micro-batch of a table's export, and the last version that it sent."""
    for line in lines:
        is_export = line["kind"] == "batch" and (line["layer"], line["table"]) == ("export", table)
        if is_export and line["batch"] is not None:  # None: the export restored rows that Redis had lost
            yield datetime.fromisoformat(line["at"]).timestamp(), line["batch"]


def _commits(table: Path, column: str) -> Iterator[_Commit]:
    """Yield each version of a table with the greatest time in its new files."""
    for log, actions in _log(table):
        files = [one["add"]["path"] for one in actions if one.get("add", {}).get("dataChange")]
        columns = (pq.read_table(table / name, columns=[column]) for name in files)
        lasts = [pc.max(one.column(0)).as_py() for one in columns]
        last_s = max((one.timestamp() for one in lasts if one is not None), default=0.0)
        yield _Commit(int(log.stem), log.stat().st_mtime, last_s)


def _commits_by_silver(lake: Path, table: GoldTable) -> Iterator[_Commit]:
    """Yield each version of a gold table without event times, with the greatest time in the merged silver."""
    (name,) = table.reads
    silver, last_s = list(_commits(lake / "silver" / name, "event_time")), 0.0
    for log, actions in _log(lake / "gold" / table.name):
        for note in (one["txn"] for one in actions if "txn" in one):
            last_s = max((one.last_s for one in silver if one.version < note["version"]), default=0.0)
        yield _Commit(int(log.stem), log.stat().st_mtime, last_s)


def _log(table: Path) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """Yield the log file of each commit to a table, and its actions."""
    for log in sorted((table / "_delta_log").glob("*.json")):
        yield log, [json.loads(line) for line in log.read_text().split("\n") if line]


def _ages_by(lasts: Sequence[tuple[float, float]]) -> Ages:
    """Return the ages of evenly spaced events, given the latest event time at each moment."""
    ages, before = Ages(), 0.0
    for at_s, last_s in lasts:
        if before and last_s > before:
            ages.add_between(before, last_s, at_s, last_s - before)
        before = max(before, last_s)
    return ages


def _steps(lines: Sequence[dict[str, Any]], wall_s: float) -> dict[str, list[float]]:
    """Return the number of steps per minute and their mean seconds, by query."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        if line["kind"] == "batch":
            seconds[f"{line['layer']}.{line['table']}"].append(line["seconds"])
    names = sorted(seconds, key=lambda name: _LAYERS.index(name.partition(".")[0]))
    return {name: [len(seconds[name]) / wall_s * 60, statistics.mean(seconds[name])] for name in names}


if __name__ == "__main__":
    try:
        app()
    except LakehouseError as error:
        raise SystemExit(f"error: {error}") from error
