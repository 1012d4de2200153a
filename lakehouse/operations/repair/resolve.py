"""Resolve dead letters whose records were sent again, so silver contains the record at another offset.

A letter is resolved by a silver row. The user either names the row, or names contract columns in which the
row matches the letter's record. The match must be unique on both sides. The letter's status becomes `resent`,
and the row's record is added as the letter's last reason. A row resolves at most one letter. Bronze contains
both records, and silver contains only the second record, so the counts still add up: bronze = silver +
letters. A rerun finds only letters that are still open. The layers can run at the same time. Like a replay,
resolving locks the source's letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.common.errors import QueryError
from lakehouse.engine.formats.decode import decoded
from lakehouse.engine.layers import silver
from lakehouse.engine.layers.holding import holding
from lakehouse.engine.layers.letters import are_processed
from lakehouse.engine.records.dead_letters import (
    DEAD_LETTERS,
    OPEN,
    RESENT,
    SENT_AGAIN_AS,
    Selection,
    attempted,
    place,
    resent_as,
)
from lakehouse.engine.records.validation import judge
from lakehouse.operations.repair.replay import Counted
from lakehouse.storage import tables
from lakehouse.storage.spark.offset_ranges import OffsetRange, ranges_of, within
from lakehouse.storage.tables import Lake
from lakehouse.streams.contract import COORDINATES
from lakehouse.streams.definition import Source, Stream

_KEYS = list(COORDINATES)


@dataclass(frozen=True)
class Resolved(Counted):
    """How many dead letters were selected (`asked`), and how many of them are now `resent`.

    The others are counted in `unmatched`, if they match no silver row, or in `ambiguous`, if they match
    several rows or a row that another letter also matches.
    """

    asked: int = 0
    resent: int = 0
    unmatched: int = 0
    ambiguous: int = 0


def resolve_by_record(
    lake: Lake, streams: Sequence[Stream], selection: Selection, record: OffsetRange, now: datetime
) -> Resolved:
    """Mark the one selected open dead letter as resent, and note the coordinates of the replacement record.

    `record` is a range with one offset, in a topic of the same source. Raises QueryError unless exactly one
    letter is selected, silver has finished its micro-batch and has a row for `record`, and this row resolves
    no other letter.
    """
    selected = _open(lake, selection)
    count = len(selected.limit(2).collect())
    if count != 1:
        raise QueryError(
            f"{'several open dead letters are' if count else 'no open dead letter is'} selected; a record "
            "resolves exactly one dead letter. Select it with --id"
        )
    sources = _sources(lake, streams, selection)
    if not sources:
        raise QueryError("the dead letter has just been closed, or no configured stream reads its topic")
    (source,) = sources
    name = silver.query_name(source)
    place = f"{record.topic}/{record.partition}/{record.first}"
    with _holding(lake, source):
        clean = silver.paths_of(lake, source).clean
        if selected.where(are_processed(lake.spark, name, clean)).isEmpty():
            raise QueryError(f"{name} has not finished the letter's micro-batch; try again once it has")
        rows = tables.read(lake.spark, clean).where(within([record]))
        if rows.isEmpty():
            raise QueryError(f"{name} has no row for {place}, so that record cannot resolve the letter")
        if _free(lake, rows.select(*_KEYS)).isEmpty():
            raise QueryError(f"{place} already resolves another letter, or has an open letter itself")
        pairs = selected.select("id", F.lit(place).alias("place"))
        return Resolved(asked=1, resent=_close(lake, pairs, ranges_of(selected), now))


def resolve_by_columns(
    lake: Lake, streams: Sequence[Stream], selection: Selection, columns: Sequence[str], now: datetime
) -> Resolved:
    """Mark each selected open dead letter as resent if it matches exactly one silver row in all `columns`.

    The columns of a dead letter's record are parsed as in silver, even if the record has other errors. Null
    matches nothing. Raises QueryError for a column that the contract of a selected letter's source does not
    contain.
    """
    sources = _sources(lake, streams, selection)
    for source in sources:
        name, known = silver.query_name(source), [field.column for field in source.contract.fields]
        if unknown := [column for column in columns if column not in (*known, "event_time")]:
            raise QueryError(
                f"the contract of {name} has no column {', '.join(unknown)}; it has {', '.join(known)} and "
                "event_time"
            )
    done = (_by_columns(lake, source, selection, columns, now) for source in sources)
    return reduce(Resolved.__add__, done, Resolved())


def _by_columns(
    lake: Lake, source: Source, selection: Selection, columns: Sequence[str], now: datetime
) -> Resolved:
    spark, paths = lake.spark, silver.paths_of(lake, source)
    with _holding(lake, source):
        finished = are_processed(spark, silver.query_name(source), paths.clean)
        letters = _open(lake, selection).where(finished).persist()
        try:
            ranges = ranges_of(letters)
            bronze = tables.read(spark, paths.bronze).where(within(ranges))
            came = bronze.join(letters.select(*_KEYS), _KEYS, "left_semi").dropDuplicates(_KEYS)
            said = (
                judge(decoded(came, source, lake.root), source, None)
                .select(*_KEYS, *columns)
                .join(letters.select("id", *_KEYS), _KEYS)
            )
            rows = _free(lake, tables.read(spark, paths.clean).select(*_KEYS, *columns))
            pairs = said.drop(*_KEYS).join(rows, list(columns)).select("id", place().alias("place"))
            counted = _times(_times(pairs, "id"), "place").persist()
            try:
                matched = counted.select("id").distinct().count()
                only = counted.where("times_id = 1 AND times_place = 1").select("id", "place")
                asked, resent = letters.count(), _close(lake, only, ranges, now)
                return Resolved(asked, resent, asked - matched, matched - resent)
            finally:
                counted.unpersist()
        finally:
            letters.unpersist()


def _sources(lake: Lake, streams: Sequence[Stream], selection: Selection) -> list[Source]:
    """Return the sources that have selected open dead letters."""
    jobs = {row.job for row in _open(lake, selection).select("job").distinct().collect()}
    sources = (source for stream in streams for source in stream.sources)
    return [source for source in sources if silver.query_name(source) in jobs]


def _holding(lake: Lake, source: Source) -> AbstractContextManager[None]:
    """Lock the source's dead letters. Without the lock, two resolves could use the same row."""
    silver.ensure(lake, source)
    return holding(lake, source, "resolve")


def _open(lake: Lake, selection: Selection) -> DataFrame:
    letters = lake.read_or_empty(DEAD_LETTERS)
    return letters.where(selection.condition() & (F.col("status") == OPEN))


def _free(lake: Lake, rows: DataFrame) -> DataFrame:
    """Return the silver rows whose records do not resolve a dead letter and have no open dead letter."""
    letters = lake.read_or_empty(DEAD_LETTERS)
    last = F.element_at("reasons.message", -1)
    said = F.when(F.col("status") == RESENT, F.substring(last, len(SENT_AGAIN_AS) + 1, 1_000))
    stands_for = F.coalesce(said, F.when(F.col("status") == OPEN, place()))
    taken = letters.select(stands_for.alias("_place"))
    return rows.withColumn("_place", place()).join(taken, "_place", "left_anti").drop("_place")


def _times(pairs: DataFrame, column: str) -> DataFrame:
    """Add a column `times_<column>` with the number of pairs that have the same value in the column."""
    counts = pairs.groupBy(column).agg(F.count(F.lit(1)).alias(f"times_{column}"))
    return pairs.join(counts, column)


def _close(lake: Lake, pairs: DataFrame, ranges: Sequence[OffsetRange], now: datetime) -> int:
    """Mark open dead letters as resent, with the new records' coordinates. Return how many were marked."""
    values = resent_as(F.col("s.place"))
    path = lake.path(DEAD_LETTERS.layer, DEAD_LETTERS.name)
    is_open = F.col("t.status") == OPEN
    return tables.update_matched(pairs, path, ("id",), is_open, attempted(values, now), within=within(ranges))
