"""The cost of the guarantees: the same backlog in all layers, with and without each guarantee.

    python -m benchmarks.guarantees --events 300000 --rounds 2

Every variant has its own lake and output topics, and an empty Redis. The variants take turns, so that other
load on the machine affects all of them. The product has no switch for a guarantee; instead, its functions are
replaced. Micro-batches are a tenth of the backlog. No micro-batch is sent in slices, because slices use a
separate producer.
"""

from __future__ import annotations

import statistics
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any
from unittest.mock import patch

import redis
import typer
from kafka import KafkaProducer
from pyspark.sql import SparkSession

from benchmarks.bench import bench_services, console
from benchmarks.measuring import Usage, application, used_by
from lakehouse.common.errors import LakehouseError
from lakehouse.dev.samples.loads import Load, send
from lakehouse.engine.layers import LAYERS, LayerName, export
from lakehouse.engine.runtime.runner import RunOptions, run
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.settings import Settings
from lakehouse.sinks.change import Change, Span
from lakehouse.sinks.kafka.rows import KafkaSink, partition_of
from lakehouse.sinks.redis.rows import CALL_ROWS, Put, RedisSink, as_stored, latest_key, row_key
from lakehouse.storage import tables
from lakehouse.storage.spark.session import start_session
from lakehouse.storage.tables import Commit, Lake, Move
from lakehouse.streams.registry import BY_DEFAULT

app = typer.Typer(add_completion=False)
STREAMS = [one for one in BY_DEFAULT if one.name in ("metrics", "transactions")]


@contextmanager
def no_delta_transactions() -> Iterator[None]:
    """Write to Delta without transactions. Only this process knows how far queries have read."""
    noted, finish = defaultdict[str, dict[str, int]](dict), Commit.finish

    def finish_without(commit: Commit, moves: Sequence[Move] = ()) -> int:
        version = finish(commit)
        noted[tables.id_of(commit.snapshot)] |= {
            move.application: move.after for move in moves if move.after is not None
        }
        return version

    def transactions(spark: SparkSession, path: str) -> dict[str, int]:
        return noted[tables.table_id(spark, path)]

    def transactions_in(_spark: SparkSession, snapshot: Any) -> dict[str, int]:
        return noted[tables.id_of(snapshot)]

    with (
        _replaced(Commit, expect=lambda _commit, _moves: None, finish=finish_without),
        _replaced(tables, transactions=transactions, transactions_in=transactions_in),
    ):
        yield


@contextmanager
def no_kafka_transactions() -> Iterator[None]:
    """Send rows with acks=all and wait for them, without idempotence, transactions or positions in Kafka."""

    def connected(sink: Any) -> KafkaProducer:
        if sink._producer is None:
            sink._producer = KafkaProducer(
                bootstrap_servers=sink._bootstrap_servers,
                acks="all",
                enable_idempotence=False,
                linger_ms=20,
                batch_size=128 * 1024,
            )
        return sink._producer

    def write(sink: Any, changes: Sequence[Change], _span: Span) -> int:
        producer = connected(sink)
        partitions = sorted(producer.partitions_for(sink.topic))
        for change in changes:
            value = None if change.value is None else change.value.encode()
            partition = partition_of(change, partitions)
            producer.send(sink.topic, key=change.key.encode(), value=value, partition=partition)
        producer.flush()
        return len(changes)

    with _replaced(KafkaSink, _write=write, _connected=connected, sent=lambda _sink: None):
        yield


@contextmanager
def no_redis_guard() -> Iterator[None]:
    """Set rows and each group's latest row unconditionally, and do not check if Redis has lost rows."""

    def write(sink: Any, changes: Sequence[Change], *, after: Put) -> Put:
        for first in range(0, len(changes), CALL_ROWS):
            with sink._client.pipeline(transaction=False) as pipeline:
                for change in changes[first : first + CALL_ROWS]:
                    row = as_stored(change, sink._generation)
                    pipeline.set(row_key(sink._table, change.row_key), row, ex=sink._ttl_s)
                    pipeline.hset(latest_key(sink._table, change.group), change.member, row)
                pipeline.execute()
        return Put(after.rows + len(changes))

    with _replaced(RedisSink, write=write, is_filled=lambda _sink: True, seems_filled=lambda _sink: True):
        yield


@contextmanager
def no_guarantee() -> Iterator[None]:
    """Switch off all three guarantees."""
    with no_delta_transactions(), no_kafka_transactions(), no_redis_guard():
        yield


VARIANTS: Mapping[str, Callable[[], Any]] = {
    "unchanged": nullcontext,
    "no Delta transactions": no_delta_transactions,
    "no Kafka transactions": no_kafka_transactions,
    "no Redis guard": no_redis_guard,
    "none of the three": no_guarantee,
}


@dataclass(frozen=True)
class Figures:
    """Mean seconds of a layer, and mean CPU-seconds of the application."""

    wall_s: float
    cpu_s: float


@app.command()
def guarantees(
    events: Annotated[int, typer.Option(min=10, help="Events of both streams together.")] = 300_000,
    rounds: Annotated[int, typer.Option(min=1, help="How often each variant is measured.")] = 2,
) -> None:
    """Run metrics and transactions with and without each guarantee, and print the costs."""
    found: dict[tuple[str, LayerName], list[Usage]] = defaultdict(list)
    with (
        bench_services() as settings,
        start_session(settings, "guarantees", brief=False) as spark,
        _replaced(export, LARGE_FROM_ROWS=events + 1),
    ):
        for seed, stream in enumerate(STREAMS, start=1):
            send(Load(stream.name, events // len(STREAMS), seed=seed), settings)
        _catch_up(spark, settings, events)
        for number in range(rounds):
            # Each round begins with a different variant, so that no variant is always first or last.
            names = list(VARIANTS)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                with VARIANTS[name]():
                    usages = _catch_up(spark, settings, events)
                for layer, usage in usages.items():
                    found[name, layer].append(usage)
                cpu_s = sum(usage.cpu_s for usage in usages.values())
                console.print(f"round {number + 1}, {name}: {cpu_s:.1f} CPU-s")
    _report(events, rounds, {key: _mean(usages) for key, usages in found.items()})


def _catch_up(spark: SparkSession, settings: Settings, events: int) -> dict[LayerName, Usage]:
    """Run all layers in a separate lake, and return the resources that each layer used."""
    name = uuid.uuid4().hex[:8]
    topics_out = [table.export.topic for stream in STREAMS for table in stream.tables if table.export.topic]
    own = settings.changed(
        {
            "lake": f"{settings.lake}-{name}",
            "topics": {topic: f"{topic}-{name}" for topic in topics_out},
            "run.max_records": max(1, events // 20),
            "run.max_bytes": 1048576,
        }
    )
    with redis.Redis.from_url(own.redis.url.get_secret_value()) as client:
        client.flushdb()
    usages = {}
    for layer in LAYERS:
        with used_by(*application()) as usage:
            run(Lake(spark, own.lake), STREAMS, [layer], own, RunOptions(AVAILABLE_NOW))
        usages[layer] = usage
    return usages


def _mean(usages: Sequence[Usage]) -> Figures:
    return Figures(
        statistics.mean(usage.wall_s for usage in usages), statistics.mean(usage.cpu_s for usage in usages)
    )


def _report(events: int, rounds: int, found: Mapping[tuple[str, LayerName], Figures]) -> None:
    """Print a line for each variant. The last figure is the product's cost divided by the variant's."""
    whole = {name: _total([found[name, layer] for layer in LAYERS]) for name in VARIANTS}
    base = whole["unchanged"]
    console.print(
        f"{events:,} events of metrics and transactions: seconds / CPU-s, mean of {rounds} rounds; last "
        "column: the product's cost divided by the variant's"
    )
    _line("", [*LAYERS, "all", "times"])
    for name in VARIANTS:
        times = Figures(base.wall_s / whole[name].wall_s, base.cpu_s / whole[name].cpu_s)
        layers = [_shown(found[name, layer]) for layer in LAYERS]
        _line(name, [*layers, _shown(whole[name]), _shown(times, digits=2)])


def _line(name: str, cells: Sequence[str]) -> None:
    console.print(f"{name:>22}" + "".join(f"{cell:>16}" for cell in cells))


def _total(figures: Sequence[Figures]) -> Figures:
    return Figures(sum(one.wall_s for one in figures), sum(one.cpu_s for one in figures))


def _shown(figures: Figures, digits: int = 1) -> str:
    return f"{figures.wall_s:.{digits}f} / {figures.cpu_s:.{digits}f}"


@contextmanager
def _replaced(target: object, **attributes: object) -> Iterator[None]:
    with ExitStack() as stack:
        for name, value in attributes.items():
            stack.enter_context(patch.object(target, name, value))
        yield


if __name__ == "__main__":
    try:
        app()
    except LakehouseError as error:
        raise SystemExit(f"error: {error}") from error
