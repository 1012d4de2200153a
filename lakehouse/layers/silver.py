"""Silver: bronze rows into clean rows and dead letters.

Grain of silver.<table>: one row per accepted record; key: topic, partition, offset. `event_time` is UTC; an
optional field that the record leaves out is null. A rerun writes nothing twice and reaches the same verdicts.

The dead letters of a micro-batch are written before its clean rows. The watermark comes from the clean rows,
so a retry after a crash between the two writes still sees the watermark of the first attempt, and every
record gets the same verdict again. Writes that were completed are skipped. If the rules or the watermark
changed in between, a record that has a dead letter keeps it, and other records that are now refused get one.
So no record can end up in both tables or in neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from importlib.metadata import version

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse import tables
from lakehouse.layers import bronze
from lakehouse.layers.query import BatchResult, LayerQuery, Passed, QueryMaker
from lakehouse.records.dead_letters import DEAD_LETTERS, Origin, to_dead_letters
from lakehouse.records.offsets import ranges_of, within
from lakehouse.records.validation import (
    COORDINATES,
    clean_schema,
    filter_clean,
    filter_dead,
    judge,
    watermark_of,
)
from lakehouse.settings import Settings
from lakehouse.spark.execution import FEW_BYTES, FEW_ROWS, are_few, execute_for, gathered, size_of
from lakehouse.stream import Source, Stream
from lakehouse.tables import HighWaterMark, Lake, TableSpec, Transaction, from_micros

STAGE = "silver"
_BYTES_A_ROW = FEW_BYTES // FEW_ROWS  # per file of bronze
_ONE_TASK_BYTES = 128 << 10  # files of bronze; a second task and file would cost more than it saves


def spec(source: Source, settings: Settings) -> TableSpec:
    """Return the silver table of a source."""
    return TableSpec(
        "silver",
        source.table,
        clean_schema(source.contract),
        stats=("event_time", "partition", "offset"),
        pinned_settings={"allowed_lateness_s": str(settings.allowed_lateness_s)},
        cluster_by="event_time",
    )


@dataclass(frozen=True)
class Paths:
    """Paths of a source's tables: records as they came, clean, and refused."""

    bronze: str
    clean: str
    dead: str


def ensure(lake: Lake, source: Source, settings: Settings) -> Paths:
    """Create the tables of a source where they are missing, and return their paths."""
    return Paths(
        lake.ensure_source(bronze.spec(source)),
        lake.ensure(spec(source, settings)),
        lake.ensure(DEAD_LETTERS),
    )


def paths_of(lake: Lake, source: Source) -> Paths:
    """Return the paths of a source's tables, whether they exist or not."""
    return Paths(
        lake.path("bronze", source.table),
        lake.path("silver", source.table),
        lake.path(DEAD_LETTERS.layer, DEAD_LETTERS.name),
    )


def query_name(source: Source) -> str:
    """Return the name of the query that fills a source's silver table; its dead letters carry it as `job`."""
    return f"silver.{source.table}"


def filter_without_letter(rows: DataFrame, dead_path: str) -> DataFrame:
    """Keep the bronze rows whose records have no dead letter, whatever its status would be."""
    letters = tables.read(rows.sparkSession, dead_path).where(within(ranges_of(rows)))
    return rows.join(letters.select(*COORDINATES), list(COORDINATES), "left_anti")


def queries(lake: Lake, stream: Stream, settings: Settings) -> list[QueryMaker]:
    """Return what makes the queries that fill the stream's silver tables."""
    return [
        QueryMaker(stream.name, query_name(source), partial(_query, lake, stream, source, settings))
        for source in stream.sources
    ]


def _query(lake: Lake, stream: Stream, source: Source, settings: Settings) -> LayerQuery:
    paths, name = ensure(lake, source, settings), query_name(source)
    cleaning = _Cleaning(stream, source, paths, settings)
    return LayerQuery(
        "silver",
        name,
        lambda: tables.read_stream(lake.spark, paths.bronze, max_bytes=settings.max_bytes_per_batch),
        cleaning.process_batch,
        target=paths.clean,
        reads=(f"bronze.{source.table}",),
        tables={
            name: paths.clean,
            DEAD_LETTERS.qualified_name: paths.dead,
            f"bronze.{source.table}": paths.bronze,
        },
        co_targets={DEAD_LETTERS.qualified_name: f"job = '{name}'"},
        pass_on=cleaning.pass_on,
    )


class _Cleaning:
    """Judges micro-batches of bronze rows, and writes dead letters and clean rows."""

    def __init__(self, stream: Stream, source: Source, paths: Paths, settings: Settings) -> None:
        self._stream = stream
        self._source = source
        self._paths = paths
        self._settings = settings
        self._reached = HighWaterMark(paths.clean, "event_time")

    def process_batch(
        self, batch: DataFrame, transaction: Transaction, now: datetime, count: int | None = None
    ) -> BatchResult:
        """Write the verdicts on the rows; a second call with the same transaction adds nothing."""
        with self.pass_on(batch, transaction, now, count) as passed:
            return passed.result

    @contextmanager
    def pass_on(
        self, batch: DataFrame, transaction: Transaction, now: datetime, count: int | None = None
    ) -> Iterator[Passed]:
        """Do the same, and keep the clean rows for the length of the block."""
        spark, paths = batch.sparkSession, self._paths
        if tables.is_written(spark, paths.clean, transaction):
            # The write is done and only its checkpoint is missing. By now the batch's own rows have moved the
            # watermark, and a batch without dead letters left no transaction that would keep new ones out.
            yield Passed(BatchResult(0), tables.read(spark, paths.clean).limit(0), 0, transaction)
            return
        watermark = watermark_of(self._reached.value(spark), self._settings.allowed_lateness_s)
        resumed = tables.is_written(spark, paths.dead, transaction)
        size = size_of(batch) if count is None else count * _BYTES_A_ROW
        execute_for(spark, few=are_few(size_bytes=size))
        undecided = filter_without_letter(batch, paths.dead) if resumed else batch
        undecided = gathered(undecided, few=size <= _ONE_TASK_BYTES)
        judged = judge(undecided, self._source, watermark, self._settings).persist()
        try:
            rows, refused, reached = judged.agg(*_facts()).first() or (0, 0, 0)
            if refused:
                self._bury(filter_dead(judged), transaction, now, resumed=resumed)
            clean = filter_clean(judged)
            if rows > refused:
                tables.append(clean, paths.clean, transaction)
                self._reached.advance(from_micros(reached))
            result = BatchResult(rows, {self._source.table: rows - refused, "dead_letters": refused})
            yield Passed(result, clean, rows - refused, transaction)
        finally:
            judged.unpersist()

    def _bury(self, dead: DataFrame, transaction: Transaction, now: datetime, *, resumed: bool) -> None:
        name = query_name(self._source)
        origin = Origin(self._stream.name, STAGE, name, transaction.version, version("lakehouse"), now)
        letters = to_dead_letters(dead, origin)
        if resumed:  # the transaction would make Delta skip it
            tables.insert_missing(letters, self._paths.dead, ("id",), within(ranges_of(letters)))
        else:
            tables.append(letters, self._paths.dead, transaction)


@cache
def _facts() -> tuple[Column, ...]:
    """Return the facts about judged rows: count, refused, and the greatest accepted event time."""
    is_clean = F.size("reasons") == 0
    accepted_time = F.max(F.when(is_clean, F.unix_micros("event_time")))
    return F.count(F.lit(1)), F.count_if(~is_clean), accepted_time
