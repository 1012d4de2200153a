"""Send malformed records of every kind to a real broker, and check that each becomes the right dead letter.

python -m benchmarks.poison --records 10000

Good records are mixed in. Bronze and silver catch up. Then every dead letter is looked up by its Kafka
coordinates, and compared with the rules that tests/support/poison.py lists for its kind. The exit code is 1
if there is a difference: a wrong rule, a lost or duplicated record, or bytes that were not sent.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Annotated, Any

import typer
from confluent_kafka import KafkaError, Message, Producer
from rich.table import Table

from benchmarks.bench import bench_services, console
from lakehouse.common.errors import LakehouseError
from lakehouse.engine.runtime.runner import BatchDone, RunOptions, run
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.settings import Settings
from lakehouse.storage.tables import open_lake
from lakehouse.streams.registry import BY_DEFAULT, load
from tests.support.pipeline import DEAD_LETTERS, Coordinates, coordinates_of, rows_of
from tests.support.poison import KINDS, Bytes, Kind, endless, valid

GOOD_SHARE = 0.2
_IN_FLIGHT = 500
_MAX_BYTES = 1_048_588  # the most that a broker accepts by default
TOPICS = {source.table: source.topic for stream in BY_DEFAULT for source in stream.sources}

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Sent:
    """A record that the broker has acknowledged: its table, kind (None for a good record) and bytes."""

    table: str
    kind: Kind | None
    bytes: Bytes


@app.command()
def poison(
    records: Annotated[int, typer.Option(min=1, help="Malformed records to send.")] = 10_000,
    seed: Annotated[
        int, typer.Option(help="The same seed produces the same records, except for their times.")
    ] = 1,
) -> None:
    """Send records, catch up, and compare every dead letter's rules with the rules for its kind."""
    with bench_services() as settings, open_lake(settings, "poison", brief=False) as lake:
        sent = _send(settings, _mixed(Random(seed), records))
        size = sum(len(one.bytes.value or b"") for one in sent.values())
        console.print(f"{len(sent):,} records sent, {size / 1e6:,.0f} MB, {records:,} of them malformed")
        began, done = time.monotonic(), list[BatchDone]()
        run(
            lake,
            load(settings),
            ["bronze", "silver"],
            settings,
            RunOptions(AVAILABLE_NOW, on_batch=done.append),
        )
        console.print(f"caught up in {time.monotonic() - began:.1f} s and {len(done)} micro-batches")
        differences = list(_differences(settings, sent))
    _report(sent.values())
    for difference in differences[:20]:
        console.print(f"DIFFERENT: {difference}", style="red", markup=False)
    console.print(f"{len(differences)} differences")
    if differences:
        raise typer.Exit(1)


def _mixed(rng: Random, records: int) -> Iterator[Sent]:
    def clock_ms() -> int:
        return int(time.time() * 1000)

    tables = list(KINDS)
    for one in islice(endless(rng, clock_ms), records):
        while rng.random() < GOOD_SHARE:
            table = rng.choice(tables)
            yield Sent(table, None, valid(table, rng, clock_ms()))
        yield Sent(one.table, one.kind, one.bytes)


def _send(settings: Settings, records: Iterable[Sent]) -> dict[Coordinates, Sent]:
    """Send the records, and return them by their coordinates.

    Raises LakehouseError unless every record is acknowledged.
    """
    sent: dict[Coordinates, Sent] = {}

    def noting(one: Sent) -> Callable[[KafkaError | None, Message], None]:
        def note(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                raise LakehouseError(f"the broker did not accept a record: {error.str()}")
            sent[message.topic() or "", message.partition() or 0, message.offset() or 0] = one

        return note

    producer = Producer(
        {
            "bootstrap.servers": settings.kafka.bootstrap_servers,
            "enable.idempotence": True,
            "message.max.bytes": _MAX_BYTES,
            "log_level": 2,
        }
    )
    for one in records:
        producer.produce(TOPICS[one.table], one.bytes.value, one.bytes.key, on_delivery=noting(one))
        while len(producer) > _IN_FLIGHT:
            producer.poll(0.1)
        producer.poll(0)
    if producer.flush(60):
        raise LakehouseError("the broker did not acknowledge every record within a minute")
    return sent


def _differences(settings: Settings, sent: Mapping[Coordinates, Sent]) -> Iterator[str]:
    dead = _by_coordinates(rows_of(settings, DEAD_LETTERS))
    silver = _by_coordinates(row for table in KINDS for row in rows_of(settings, f"silver.{table}"))
    for at in (dead.keys() | silver.keys()) - sent.keys():
        yield f"{at} was never sent"
    for at, one in sent.items():
        name = "good" if one.kind is None else one.kind.name
        what = f"{one.table}, {name}, {at}"
        letters, clean = dead.get(at, []), silver.get(at, [])
        if len(letters) + len(clean) != 1:
            yield f"{what}: {len(letters)} dead letters and {len(clean)} clean rows"
        for letter in letters:
            rules = {reason["rule"] for reason in letter["reasons"]}
            if one.kind is None or rules != one.kind.rules or len(letter["reasons"]) < len(rules):
                yield f"{what}: refused by {sorted(rules)}, not {sorted(one.kind.rules if one.kind else [])}"
            if (letter["value"], letter["key"]) != one.bytes:
                yield f"{what}: the dead letter's bytes differ from those that were sent"
        if clean and one.kind is not None:
            yield f"{what}: accepted"


def _by_coordinates(rows: Iterable[dict[str, Any]]) -> dict[Coordinates, list[dict[str, Any]]]:
    found: dict[Coordinates, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(coordinates_of(row), []).append(row)
    return found


def _report(sent: Iterable[Sent]) -> None:
    kinds = [one.kind for one in sent if one.kind is not None]
    counts = Counter(kind.family for kind in kinds)
    rules = {
        family: sorted({rule for kind in kinds if kind.family == family for rule in kind.rules})
        for family in counts
    }
    table = Table(title=f"{len(counts)} kinds of poison, {len(set(map(id, kinds)))} variants of all tables")
    for heading in ("kind", "records", "refused by"):
        table.add_column(heading, justify="right" if heading == "records" else "left")
    for family, count in sorted(counts.items()):
        table.add_row(family, f"{count:,}", ", ".join(rules[family]))
    console.print(table)


if __name__ == "__main__":
    try:
        app()
    except LakehouseError as error:
        raise SystemExit(f"error: {error}") from error
