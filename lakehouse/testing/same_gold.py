"""Test that a stream's gold depends only on its silver.

Gold must not depend on the order of records, on micro-batch boundaries or on crashes.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakehouse.common.printable import printable_json
from lakehouse.common.record_lines import Record
from lakehouse.engine.layers import bronze
from lakehouse.operations.audit.gold import check_gold
from lakehouse.operations.audit.records import check_records
from lakehouse.operations.audit.report import Check, Compared
from lakehouse.operations.repair import recompute
from lakehouse.storage import tables
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.spark.execution import executing_a_handful
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import MergedTable, Stream
from lakehouse.testing.folding import DEAD_LETTERS, Folding, landed
from lakehouse.testing.kills import crash_and_go_on
from lakehouse.testing.records import Batch, moment, records_of

_SEEDS = 2**32
_PIECES = 4
_EXAMPLES = 3

Place = tuple[str, int]
"""The location of a clean row: the name of its silver table, and its index in this table."""


@dataclass(frozen=True)
class _Way:
    """A way to split clean rows into micro-batches.

    `retried` marks the batches that crash between two writes.
    """

    batches: Sequence[Sequence[Place]]
    retried: Sequence[bool]


@dataclass(frozen=True)
class SameGold:
    """An assertion that gold does not depend on the order of records, micro-batch boundaries or retries.

    The records are validated once. The clean rows are merged in a single micro-batch, and then in `ways`
    other ways: each in a random order, in up to four random micro-batches. Some micro-batches are retried, as
    after a crash between the writes to a side table and its main table. Records keep their partitions and
    offsets but arrive in any order, as they do from lagging partitions and replays. Gold may therefore depend
    on offsets, but not on the order of arrival. With `keep_order`, each partition arrives in offset order.

    If `lake` is given, an empty directory, the records go through Delta tables instead. Silver and gold crash
    before and after each write, and restart. Finally, an audit compares all layers. This takes about a
    minute.

    `now` is the clock's time as a datetime or ISO 8601 text, by default the current time. `seed` repeats the
    ways of an earlier run; by default, it is random. Raises AssertionError if gold differs, with the seed,
    the way and the differing rows, and if no record is clean.
    """

    spark: SparkSession

    def __call__(
        self,
        stream: Stream,
        records: Batch,
        *,
        now: datetime | str | None = None,
        keep_order: bool = False,
        ways: int = 4,
        seed: int | None = None,
        lake: str | Path | None = None,
    ) -> None:
        """Check the records. Raises AssertionError if gold differs."""
        seed = secrets.randbelow(_SEEDS) if seed is None else seed
        if lake is not None:
            self._crash(stream, records, Lake(self.spark, str(lake)), moment(now), Random(seed))
            return
        with executing_a_handful(self.spark):
            clock, judging = moment(now), Folding(self.spark, stream, is_small=True)
            clean = _clean_rows(judging, records, clock)
            expected = self._merged(stream, clean, _one_batch(clean), clock)
            for number in range(ways):
                way = _way(clean, Random(f"{seed} {number}"), keep_order=keep_order)
                wrong = _differences(stream, self._merged(stream, clean, way, clock), expected)
                if wrong:
                    said = [
                        f"{stream.name}: gold differs from that of a single batch (seed={seed}, way {number})"
                    ]
                    raise AssertionError("\n".join([*said, *_described(way), *wrong]))

    def _merged(
        self, stream: Stream, clean: Mapping[str, pa.Table], way: _Way, now: datetime
    ) -> dict[str, DataFrame]:
        """Merge clean rows in the given way. Return the resulting gold and side tables, keyed by name."""
        folding = Folding(self.spark, stream, is_small=True)
        for batch, is_retried in zip(way.batches, way.retried, strict=True):
            rows = {
                table: self.spark.createDataFrame(
                    every.take(pa.array([place for name, place in batch if name == table], pa.int64())),
                    folding.frame(f"silver.{table}").schema,
                )
                for table, every in clean.items()
            }
            folding.merge(rows, now=now, twice=is_retried)
        return {table.name: folding.frame(f"gold.{table.name}") for table in stream.tables}

    def _crash(self, stream: Stream, records: Batch, lake: Lake, now: datetime, rng: Random) -> None:
        """Land the records in a lake in two halves, crash in every micro-batch, and audit the lake."""
        numbering, cuts = Folding(self.spark, stream), dict[str, list[list[Record]]]()
        sources = {source.table: source for source in stream.sources}
        for source, record in records_of(stream, records):
            cut = cuts.setdefault(source.table, [[] for _ in range(_PIECES)])
            cut[rng.randrange(_PIECES)] += numbering.numbered(source, [record])
        for half in (slice(0, _PIECES // 2), slice(_PIECES // 2, _PIECES)):
            for source in stream.sources:
                path = lake.ensure(bronze.spec(source))
                for landing in filter(None, cuts.get(source.table, [])[half]):
                    frame = local_frame(self.spark, landed(landing, now), bronze.SCHEMA)
                    tables.append(frame.coalesce(1), path)
            crash_and_go_on(lake, stream, 1, now)
        checks = [check for source in sources.values() for check in check_records(lake, stream, source)]
        checks += [check for table in stream.gold for check in check_gold(lake, stream, table)]
        if not any(lake.read("silver", table).count() for table in sources):
            raise AssertionError(f"none of the records of {stream.name} are clean, so gold is empty")
        wrong = [line for check in checks for line in _said(check)]
        if wrong:
            raise AssertionError("\n".join([f"{stream.name}: gold differs after crashes", *wrong]))


def _clean_rows(judging: Folding, records: Batch, now: datetime) -> dict[str, pa.Table]:
    """Return the clean rows, keyed by table. Raises AssertionError if there are none."""
    by_table: dict[str, list[Record]] = {}
    for source, record in records_of(judging.stream, records):
        by_table.setdefault(source.table, []).append(record)
    judged = judging.judge(by_table, landed_at=now)
    clean = {table: rows.orderBy("topic", "partition", "offset").toArrow() for table, rows in judged.items()}
    if not any(rows.num_rows for rows in clean.values()):
        letter = judging.frame(DEAD_LETTERS).select("reasons").first()
        why = "" if letter is None else f"; the first reason: {letter.reasons[0].message}"
        raise AssertionError(f"none of the records of {judging.stream.name} are clean, so gold is empty{why}")
    return clean


def _one_batch(clean: Mapping[str, pa.Table]) -> _Way:
    return _Way([_places(clean)], [False])


def _places(clean: Mapping[str, pa.Table]) -> list[Place]:
    return [(table, number) for table, rows in clean.items() for number in range(rows.num_rows)]


def _way(clean: Mapping[str, pa.Table], rng: Random, *, keep_order: bool) -> _Way:
    places = _places(clean)
    order = rng.sample(places, len(places))
    if keep_order:
        order = _within_partitions(clean, order)
    pieces = rng.randint(2, _PIECES)
    edges = sorted(rng.randint(0, len(order)) for _ in range(pieces - 1))
    batches = [order[start:end] for start, end in zip([0, *edges], [*edges, len(order)], strict=True)]
    return _Way(batches, [rng.random() < 1 / 2 for _ in batches])


def _within_partitions(clean: Mapping[str, pa.Table], order: Sequence[Place]) -> list[Place]:
    """Reorder the rows' locations so that each partition's rows are in offset order."""
    partitions = {table: rows.column("partition").to_pylist() for table, rows in clean.items()}
    of = {place: (place[0], partitions[place[0]][place[1]]) for place in order}
    ordered = {key: iter(sorted(place for place in order if of[place] == key)) for key in set(of.values())}
    return [next(ordered[of[place]]) for place in order]


def _differences(
    stream: Stream, found: Mapping[str, DataFrame], expected: Mapping[str, DataFrame]
) -> list[str]:
    wrong = []
    for table in stream.tables:
        wrong += _said(_compared(stream, table, found[table.name], expected[table.name]))
    return wrong


def _compared(stream: Stream, table: MergedTable, found: DataFrame, expected: DataFrame) -> Check:
    subject = Compared(stream.name, "gold", f"gold.{table.name}")
    return subject.compared(0, [recompute.differences(found, expected, table)])


def _said(check: Check) -> list[str]:
    """Return lines that describe the differences found by an audit's check, or no lines if there are none."""
    if not check.differences:
        return []
    shown = (f"    {printable_json(one.key)}: {one.what}" for one in check.examples[:_EXAMPLES])
    differ = "1 row differs" if check.differences == 1 else f"{check.differences} rows differ"
    return [f"  {check.subject}: {differ}", *shown]


def _described(way: _Way) -> list[str]:
    """Return a line for each micro-batch, with the indices of its rows among their table's clean rows."""
    is_one = len({table for batch in way.batches for table, _ in batch}) == 1
    lines = []
    for number, (batch, is_retried) in enumerate(zip(way.batches, way.retried, strict=True)):
        rows = ", ".join(str(place) if is_one else f"{table} {place}" for table, place in batch)
        lines.append(f"  micro-batch {number}{', retried' if is_retried else ''}: {rows or 'empty'}")
    return lines
