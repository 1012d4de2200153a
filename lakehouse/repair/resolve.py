"""Dead letters closed because their records were sent again: each is a row of silver at another place now.

A letter is resolved by a row of silver: one that a user names, or the only one that agrees with the letter's
record in some columns of the contract, where no other letter agrees with it either. Its status becomes
`resent`, and its reasons end with one that names the row's record. A row takes the place of one letter at
most. Bronze has both records, silver the second one, so the books stay exact: bronze = silver + letters. A
rerun finds what is still open. The layers may run meanwhile; like a rebuild of silver, it holds the source's
letters exclusively.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import tables
from lakehouse.contract import COORDINATES
from lakehouse.errors import QueryError
from lakehouse.formats.decode import decoded
from lakehouse.layers import silver
from lakehouse.records.dead_letters import (
    DEAD_LETTERS,
    OPEN,
    RESENT,
    SENT_AGAIN_AS,
    Selection,
    attempted,
    place,
    resent_as,
)
from lakehouse.records.offsets import OffsetRange, ranges_of, within
from lakehouse.records.validation import judge
from lakehouse.stream import Source, Stream
from lakehouse.tables import Lake, leases

_KEYS = list(COORDINATES)


@dataclass(frozen=True)
class Resolved:
    """How many letters were selected (`asked`) and are now `resent`.

    Of the others no row of silver agrees with `unmatched`, and more than one, or one that agrees with another
    letter too, with `ambiguous`.
    """

    asked: int = 0
    resent: int = 0
    unmatched: int = 0
    ambiguous: int = 0

    def __add__(self, other: Resolved) -> Resolved:
        """Return the sum of both."""
        return Resolved(
            self.asked + other.asked,
            self.resent + other.resent,
            self.unmatched + other.unmatched,
            self.ambiguous + other.ambiguous,
        )


def resolve_by_record(
    lake: Lake, streams: Sequence[Stream], selection: Selection, record: OffsetRange, now: datetime
) -> Resolved:
    """Close the one selected open letter as resent by a record of the same source.

    `record` is a range of one offset. Raises QueryError unless there is one such letter, silver has a row of
    the record, and that stands for no other letter.
    """
    selected = _open(lake, selection)
    count = len(selected.limit(2).collect())
    if count != 1:
        raise QueryError(
            f"{'several open letters are' if count else 'no open letter is'} selected; one record takes the "
            "place of one letter. Name it with --id"
        )
    ((_, source, name),) = _sources(lake, streams, selection)
    place = f"{record.topic}/{record.partition}/{record.first}"
    with _holding(lake, source):
        rows = tables.read(lake.spark, silver.paths_of(lake, source).clean).where(within([record]))
        if rows.isEmpty():
            raise QueryError(
                f"{name} has no row of {place}, so nothing has been sent again in the place of the letter"
            )
        if _free(lake, rows.select(*_KEYS)).isEmpty():
            raise QueryError(f"{place} has taken the place of another letter, or has a letter of its own")
        pairs = selected.select("id", F.lit(place).alias("place"))
        return Resolved(asked=1, resent=_close(lake, pairs, ranges_of(selected), now))


def resolve_by_columns(
    lake: Lake, streams: Sequence[Stream], selection: Selection, columns: Sequence[str], now: datetime
) -> Resolved:
    """Close the selected open letters whose records agree with one row of silver each in all `columns`.

    What a record says in a column is read as silver reads it, whatever else is wrong with the record; null
    agrees with nothing. Raises QueryError for a column that the contract of a selected letter's source lacks.
    """
    found = list(_sources(lake, streams, selection))
    for _, source, name in found:
        known = [field.column for field in source.contract.fields]
        if unknown := [column for column in columns if column not in (*known, "event_time")]:
            raise QueryError(
                f"{name} has no column {', '.join(unknown)} of its contract; it has {', '.join(known)} and "
                "event_time"
            )
    done = (_by_columns(lake, source, selection, columns, now) for _, source, _ in found)
    return reduce(Resolved.__add__, done, Resolved())


def _by_columns(
    lake: Lake, source: Source, selection: Selection, columns: Sequence[str], now: datetime
) -> Resolved:
    spark, paths = lake.spark, silver.paths_of(lake, source)
    with _holding(lake, source):
        letters = _open(lake, selection).where(F.col("job") == silver.query_name(source)).persist()
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


def _sources(lake: Lake, streams: Sequence[Stream], selection: Selection) -> list[tuple[Stream, Source, str]]:
    """Return the sources that have selected open letters, each with its stream and its silver table."""
    jobs = {row.job for row in _open(lake, selection).select("job").distinct().collect()}
    return [
        (stream, source, silver.query_name(source))
        for stream in streams
        for source in stream.sources
        if silver.query_name(source) in jobs
    ]


def _holding(lake: Lake, source: Source) -> AbstractContextManager[None]:
    """Keep everybody else off the source's letters: two resolves could close two letters by one row."""
    name, dead = silver.query_name(source), silver.ensure(lake, source).dead
    return leases.held_part(lake.spark, dead, source.table, f"resolve of {name}", alone=True)


def _open(lake: Lake, selection: Selection) -> DataFrame:
    letters = lake.read_or_empty(DEAD_LETTERS)
    return letters.where(selection.condition() & (F.col("status") == OPEN))


def _free(lake: Lake, rows: DataFrame) -> DataFrame:
    """Keep the rows of silver whose records stand for no letter yet, and have no open one themselves."""
    letters = lake.read_or_empty(DEAD_LETTERS)
    last = F.element_at("reasons.message", -1)
    said = F.when(F.col("status") == RESENT, F.substring(last, len(SENT_AGAIN_AS) + 1, 1_000))
    stands_for = F.coalesce(said, F.when(F.col("status") == OPEN, place()))
    taken = letters.select(stands_for.alias("_place"))
    return rows.withColumn("_place", place()).join(taken, "_place", "left_anti").drop("_place")


def _times(pairs: DataFrame, column: str) -> DataFrame:
    """Add how many pairs have the same value in a column."""
    counts = pairs.groupBy(column).agg(F.count(F.lit(1)).alias(f"times_{column}"))
    return pairs.join(counts, column)


def _close(lake: Lake, pairs: DataFrame, ranges: Sequence[OffsetRange], now: datetime) -> int:
    """Close letters, each by the place of a record; return how many were open."""
    values = resent_as(F.col("s.place"))
    path = lake.path(DEAD_LETTERS.layer, DEAD_LETTERS.name)
    is_open = F.col("t.status") == OPEN
    return tables.update_matched(pairs, path, ("id",), is_open, attempted(values, now), within=within(ranges))
