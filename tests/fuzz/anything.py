"""Anything that a record can be, through all layers: each becomes a row or a letter, and nothing stops.

    python -m tests.fuzz.anything --seed 1 --minutes 10 --heap 768m

A round is one commit of bronze in one format. Its records, schemas and framing depend only on the seed and
the round's number; a registry with all schemas answers as Confluent's does. Silver, gold and, with services,
the export process the round. Then every offset must be in silver or in the dead letters, once, and letters
must have the bytes that were sent.

Whatever stops a step is a finding, with the record that the step names; that record is skipped, and the next
round begins. A round that exceeds the deadline ends the process: nothing can interrupt a task that hangs.
Each finding says how to repeat it (`--round`). At the end, the slowest rounds are halved until one record is
left, which is measured by itself.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from random import Random
from typing import Annotated, Any

import pytest
import typer
from pydantic import SecretStr
from pyspark.sql import SparkSession

from lakehouse.cli.options import skipped
from lakehouse.common.errors import LakehouseError
from lakehouse.common.record_lines import RecordFormat
from lakehouse.dev.services.services import local_services
from lakehouse.engine.formats.contracts import schema_of_contract
from lakehouse.engine.formats.decode import decoded
from lakehouse.engine.formats.encoding import Encode, encoder
from lakehouse.engine.layers import Allow, LayerName, bronze
from lakehouse.engine.records.validation import judge
from lakehouse.engine.runtime import troubles
from lakehouse.engine.runtime.runner import RunOptions, run
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.settings import Settings, load_settings
from lakehouse.storage.kafka.topics import create_topics
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.spark.session import build_session
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Field, FieldType, Source, Stream
from lakehouse.streams.registry import load
from tests.fuzz import schemas
from tests.fuzz.schemas import Body
from tests.support import pipeline, poison, postgres_servers
from tests.support.pipeline import DEAD_LETTERS, Raw
from tests.support.streams import STREAMS, under, with_streams

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
FORMATS: tuple[RecordFormat, ...] = ("avro", "protobuf", "json-schema", "json")
KINDS = {"avro": "AVRO", "protobuf": "PROTOBUF", "json-schema": "JSON", "json": "JSON"}
MORE = (
    Field("whole", "whole", FieldType.LONG, required=False),
    Field("flag", "flag", FieldType.BOOLEAN, required=False),
    Field("money", "money", FieldType.DECIMAL, required=False, scale=2),
    Field("any", "anything", FieldType.JSON, required=False),
    Field("in.text", "inner", FieldType.STRING, required=False, accepts_numbers=True),
)
"""Fields of the other types, which every record may have in addition to those of its contract."""

_IDS_A_ROUND = 100
_MOST_TRIES = 6  # per round, each after skipping some records
_HEADERS: tuple[tuple[str, bytes | None], ...] = (
    ("", b""),
    ("a", None),
    ("a", b"\xff"),
    ("é:{}", b"x" * 999),
)
_TIMES_MS = (NOW_MS, NOW_MS, NOW_MS, None, 0, -1, 1, 253_402_300_799_999, NOW_MS + 10**12)


@dataclass(frozen=True)
class Round:
    """The records of a round, the schemas by id, and the rules that must refuse each record, if known.

    `rules` has the names of a record's rules by its place; for other records, nothing is known.
    """

    number: int
    format: RecordFormat
    stream: Stream
    records: Sequence[Raw]
    texts: Mapping[int, str]
    rules: Mapping[int, frozenset[str]]

    @property
    def source(self) -> Source:
        return self.stream.sources[0]

    def shown(self, place: int) -> str:
        """Return a record and its schema, as findings show them."""
        value = self.records[place].value or b""
        text = "" if self.format == "json" else self.texts.get(int.from_bytes(value[1:5], "big"), "")
        shown = f"{value[:200].hex()} ({len(value):,} bytes), schema {text[:400]!r}"
        return f"{self.format} of {self.stream.name}: {shown}"


@dataclass
class Tally:
    """The results of all rounds."""

    records: int = 0
    letters: int = 0
    rows: int = 0
    seconds: dict[int, float] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)


def _read_as(format_: str, stream: Stream) -> dict[str, Any]:
    """Return the settings with which a stream's first source has a format."""
    own = {"format": format_}
    return own if len(stream.sources) == 1 else {"sources": {stream.sources[0].table: own}}


def made(seed: object, number: int, size: int, settings: Settings) -> Round:
    """Return a round: streams and formats take turns."""
    random = Random(f"{seed} {number}")
    format_ = FORMATS[number % len(FORMATS)]
    stream = STREAMS[number // len(FORMATS) % len(STREAMS)]
    given = under(with_streams(settings, **{stream.name: _read_as(format_, stream)}), stream)
    (source, *others) = given.sources
    contract = replace(source.contract, fields=(*source.contract.fields, *MORE))
    given = replace(given, sources=(replace(source, contract=contract), *others))
    maker = _Maker(random, given.sources[0], number, size)
    records = [maker.record(place) for place in range(size)]
    return Round(number, format_, given, records, maker.texts, maker.rules)


class _Maker:
    def __init__(self, random: Random, source: Source, number: int, size: int) -> None:
        self._random, self._source, self._format = random, source, source.format
        first = 1 + number * _IDS_A_ROUND
        names = sorted({field.path[0] for field in source.contract.fields} | {source.contract.event_time})
        own = None if self._format == "json" else schema_of_contract(source, self._format)
        self.texts: dict[int, str] = {} if own is None else {first: own.text}
        self.rules: dict[int, frozenset[str]] = {}
        self._own: Encode = (lambda value: value) if own is None else encoder(source, first, own)
        self._bodies: dict[int, Body] = {}
        make = schemas.avro if self._format == "avro" else schemas.protobuf
        ids = range(first + 1, first + 1 + min(size // 6, _IDS_A_ROUND - 1))
        for id_ in ids if self._format in ("avro", "protobuf") else ():
            self.texts[id_], self._bodies[id_] = make(random, names)

    def record(self, place: int) -> Raw:
        random = self._random
        key = random.choice((b"k", b"k", None, b"", b"\xff", b"\x00", random.randbytes(9)))
        value, key = self._value(place, key)
        stamp_ms = random.choice(_TIMES_MS) if place not in self.rules else NOW_MS
        headers = tuple(random.choices(_HEADERS, k=random.choice((0, 0, 0, 1, 3))))
        return Raw(value, key, headers, timestamp_ms=stamp_ms)

    def _value(self, place: int, key: bytes | None) -> tuple[bytes | None, bytes | None]:
        random, chance = self._random, self._random.random()
        if self._bodies and chance < 0.6:
            id_ = random.choice(list(self._bodies))
            return b"\x00" + id_.to_bytes(4, "big") + self._bodies[id_](random), key
        if chance < 0.75:
            good = poison.valid(self._source.table, random, NOW_MS)
            return self._own(good.value), good.key
        if chance < 0.92:
            kind = random.choice([one for one in poison.KINDS[self._source.table] if not one.huge])
            bad = kind.make(random, NOW_MS)
            if self._format == "json":
                self.rules[place] = kind.rules
            return self._own(bad.value), bad.key
        return self._junk(), key

    def _junk(self) -> bytes | None:
        random = self._random
        known = random.choice(list(self.texts) or [7])
        id_ = random.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, random.randrange(2**32), known))
        framed = b"\x00" + id_.to_bytes(4, "big") + random.randbytes(random.randint(0, 30))
        deep = random.choice((10, 900, 5_000))
        some = (
            *(
                None,
                b"",
                b"\x00",
                b"\x00\x00",
                framed,
                framed,
                framed,
                random.randbytes(50),
                b"{}",
                b"[" * deep,
            ),
            *(b'{"a":' * deep + b"1" + b"}" * deep, b"1" * 5_000, b'"\\ud800"'),
        )
        return random.choice(some)


class Registry(ThreadingHTTPServer):
    """A registry of the schemas in `texts`; it answers as Confluent's does, even to what cannot be an id."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.texts: dict[int, tuple[str, str]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def take(self, given: Round) -> None:
        self.texts |= {id_: (KINDS[given.format], text) for id_, text in given.texts.items()}


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Registry

    def do_GET(self) -> None:
        found = re.match(r"/schemas/ids/(\d+)", self.path)
        id_ = int(found[1]) if found else -1
        if id_ in self.server.texts:
            kind, text = self.server.texts[id_]
            self._send(200, json.dumps({"schema": text, "schemaType": kind}))
        elif self.path.startswith("/schemas/types"):
            self._send(200, '["JSON", "PROTOBUF", "AVRO"]')
        elif 0 <= id_ < 2**31:
            self._send(404, json.dumps({"error_code": 40403, "message": f"Schema {id_} not found"}))
        else:
            self._send(404, json.dumps({"error_code": 404, "message": "HTTP 404 Not Found"}))

    def _send(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        pass


@contextmanager
def registry() -> Iterator[Registry]:
    """Serve a registry until the end of the block."""
    with Registry() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class World:
    """Lakes in a directory, one per stream, and a registry; `settings` name the services."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        server: Registry,
        directory: Path,
        layers: Sequence[LayerName],
    ) -> None:
        self._spark, self._server, self._directory, self._layers = spark, server, directory, layers
        self.settings = settings.changed({"schema_registry.url": server.url})
        self.tally = Tally()
        self._ends: dict[str, int] = {}
        self._lakes = count()
        self._names: dict[str, str] = {}

    def go(self, given: Round, deadline_s: float = 0) -> None:
        """Take a round; if there is a deadline and it passes, the process ends."""
        self._server.take(given)
        began = time.monotonic()
        with self._limited(given, deadline_s):
            self._through(given)
        self.tally.seconds[given.number] = time.monotonic() - began
        self.tally.records += len(given.records)

    def _through(self, given: Round) -> None:
        kept = given.stream.name
        if kept not in self._names:
            self._names[kept], self._ends[kept] = f"{kept}-{next(self._lakes)}", 0
        settings = self.settings.changed({"lake": str(self._directory / self._names[kept])})
        first, self._ends[kept] = self._ends[kept], self._ends[kept] + len(given.records)
        pipeline.land(
            self._spark, settings, [given.records], landed_at=NOW, first_offset=first, source=given.source
        )
        found = self._run(given, settings, first)
        if found is not None:
            del self._names[kept]  # what stops this round would stop the next one, too
            self.tally.findings.append(found)
            return
        self._count(given, settings, first)

    def _run(self, given: Round, settings: Settings, first: int) -> str | None:
        """Run the layers, skipping what they cannot take; return what stops them even so."""
        skips: list[str] = []
        for _ in range(_MOST_TRIES):
            skip = skipped(skips, settings, load(settings))
            options = RunOptions(AVAILABLE_NOW, allow=[Allow.RESEND], skip=skip)
            try:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(troubles, "FIRST_PAUSE_S", 0.01)
                    run(Lake(self._spark, settings.lake), [given.stream], self._layers, settings, options)
            except LakehouseError as error:
                said = f"{type(error).__name__}: {error}"
            else:
                return None
            named = [place for place in re.findall(r"--skip (\S+/\d+/\d+)", said) if place not in skips]
            if not named:
                break
            skips += named
            self.tally.findings += [
                f"round {given.number}: {said[:600]}\n  {given.shown(int(place.rpartition('/')[2]) - first)}"
                for place in named
            ]
        return f"round {given.number}: {said[:1000]}"

    def _count(self, given: Round, settings: Settings, first: int) -> None:
        """Compare rows and letters with what was sent."""
        offsets = range(first, first + len(given.records))
        rows = [row["offset"] for row in pipeline.rows_of(settings, f"silver.{given.source.table}")]
        letters = {row["offset"]: row for row in pipeline.rows_of(settings, DEAD_LETTERS)}
        clean, dead = [n for n in rows if n in offsets], [n for n in letters if n in offsets]
        self.tally.rows += len(clean)
        self.tally.letters += len(dead)
        if sorted([*clean, *dead]) != list(offsets):
            lost, twice = set(offsets) - {*clean, *dead}, {*clean} & {*dead}
            self.tally.findings.append(f"round {given.number}: lost {sorted(lost)}, in both {sorted(twice)}")
        for place, offset in enumerate(offsets):
            letter = letters.get(offset)
            if letter is not None and letter["value"] != given.records[place].value:
                self.tally.findings.append(f"round {given.number}: other bytes in {given.shown(place)}")
            said = frozenset(one["rule"] for one in letter["reasons"]) if letter else frozenset()
            if place in given.rules and said - {"late"} != given.rules[place]:
                wrong = f"{sorted(said)}, not {sorted(given.rules[place])}: {given.shown(place)}"
                self.tally.findings.append(f"round {given.number}: {wrong}")

    @contextmanager
    def _limited(self, given: Round, deadline_s: float) -> Iterator[None]:
        def end() -> None:
            print(f"round {given.number} ({given.format}) took more than {deadline_s:g} s", flush=True)
            print("\n".join(self.tally.findings), flush=True)
            os._exit(3)

        timer = threading.Timer(deadline_s, end)
        if deadline_s:
            timer.daemon = True
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def singly(self, given: Round) -> tuple[str, float, float]:
        """Return the slowest record of a round, the seconds that judging it takes, and its MB of heap."""
        places = list(range(len(given.records)))
        while len(places) > 1:
            halves = places[: len(places) // 2], places[len(places) // 2 :]
            first, second = (self._judged_in(given, half)[0] for half in halves)
            places = halves[0] if first >= second else halves[1]
        took_s, used_mb = self._judged_in(given, places)
        return given.shown(places[0]), took_s, used_mb

    def _judged_in(self, given: Round, places: Sequence[int]) -> tuple[float, float]:
        """Judge some records with brand-new schemas; return the seconds and the MB of heap."""
        blanks = " " * (1 + next(_blanks()))
        fresh = {id_: next(_fresh_ids()) for id_ in given.texts}
        self._server.texts |= {
            fresh[id_]: (KINDS[given.format], text + blanks) for id_, text in given.texts.items()
        }
        records = [given.records[place] for place in places]
        if given.format != "json":
            records = [replace(one, value=_reframed(one.value, fresh)) for one in records]
        access = replace(given.source.registry, url=self._server.url)
        source = replace(given.source, registry=access)
        rows = pipeline.landed(self.settings, records, landed_at=NOW, source=source)
        heap = self._spark._jvm.java.lang.management.ManagementFactory  # type: ignore[union-attr]
        heap.getMemoryMXBean().gc()
        pools = [one for one in heap.getMemoryPoolMXBeans() if one.getType().toString() == "Heap memory"]
        for pool in pools:
            pool.resetPeakUsage()
        before = sum(pool.getUsage().getUsed() for pool in pools)
        began = time.monotonic()
        frame = local_frame(self._spark, rows, bronze.SCHEMA)
        judge(decoded(frame, source, None), source, None).write.format("noop").mode("overwrite").save()
        took_s = time.monotonic() - began
        return took_s, (sum(pool.getPeakUsage().getUsed() for pool in pools) - before) / 1e6


@cache
def _fresh_ids() -> count[int]:
    return count(10**9)


@cache
def _blanks() -> count[int]:
    return count()


def _reframed(value: bytes | None, ids: Mapping[int, int]) -> bytes | None:
    if value is None or len(value) < 5 or value[0]:
        return value
    id_ = int.from_bytes(value[1:5], "big")
    return value[:1] + ids.get(id_, id_).to_bytes(4, "big") + value[5:]


def main(
    *,
    seed: Annotated[str, typer.Option()] = "1",
    minutes: Annotated[float, typer.Option()] = 10,
    heap: Annotated[str, typer.Option(help="The driver's, such as 768m.")] = "768m",
    deadline: Annotated[float, typer.Option(help="Seconds for a round.")] = 120,
    size: Annotated[int, typer.Option(help="Records in a round.")] = 240,
    only: Annotated[int | None, typer.Option("--round", help="This round alone.")] = None,
) -> None:
    """Take rounds until the time is up, and print the results; exit with 1 if there is a finding."""
    with ExitStack() as held:
        directory = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="anything-")))
        settings = load_settings().changed({"home": directory / "home"})
        services = held.enter_context(local_services(settings, brief=True))
        postgres = held.enter_context(postgres_servers.server())
        settings = settings.changed(
            {
                "kafka.bootstrap_servers": services.kafka,
                "redis.url": SecretStr(services.redis),
                "postgres.url": SecretStr(postgres.url()),
            }
        )
        spark = build_session(settings, "anything", options={"spark.driver.memory": heap})
        held.callback(spark.stop)
        server = held.enter_context(registry())
        world = World(spark, settings, server, directory, ("silver", "gold", "export"))
        outputs = {table.export.topic for stream in STREAMS for table in stream.tables if table.export.topic}
        create_topics(settings.kafka.access, {settings.topic(topic): 2 for topic in outputs})
        until = time.monotonic() + minutes * 60
        for number in count() if only is None else [only]:
            world.go(made(seed, number, size, world.settings), deadline)
            if time.monotonic() > until:
                break
        _report(world, seed, size)


def _report(world: World, seed: str, size: int) -> None:
    tally = world.tally
    came = f"{tally.letters:,} letters, {tally.rows:,} rows"
    print(f"{tally.records:,} records in {len(tally.seconds)} rounds: {came}")
    for one in tally.findings:
        print(f"FOUND with --seed {seed}: {one}")
    slowest = sorted(tally.seconds, key=lambda number: -tally.seconds[number])[:2]
    for number in slowest:
        text, took_s, used_mb = world.singly(made(seed, number, size, world.settings))
        alone = f"{took_s:.2f} s and {used_mb:.0f} MB of heap alone: {text}"
        print(f"round {number} took {tally.seconds[number]:.1f} s; its slowest record {alone}")
    if tally.findings:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
