"""Write new dead letters and update existing ones, including those whose records have become silver rows.

A record has at most one dead letter. Each later decision about the record updates it. Such decisions are made
by retried micro-batches, by rebuilds, and by micro-batches that remove silver rows or mark dead letters as
resent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse.engine.ops_tables import fronts
from lakehouse.engine.progress import cuts
from lakehouse.engine.records.dead_letters import DISCARDED, REPLAYED, SCHEMA, letter_id, status_by
from lakehouse.engine.records.identity import RESENT, SUPERSEDED
from lakehouse.storage import tables
from lakehouse.storage.spark.execution import amount_of, gathered
from lakehouse.storage.spark.offset_ranges import OffsetRange, ranges_of, within
from lakehouse.storage.tables import FILE, Move
from lakehouse.streams.contract import COORDINATES

_KEYS = list(COORDINATES)
_MOST_RANGES = 100  # offset ranges in one condition


@dataclass(frozen=True)
class Verdicts:
    """Decisions about records. A field is None if there are no such decisions.

    new       dead letters (`to_dead_letters`) for records, some of which may already have one
    changed   coordinates of existing dead letters, with their new `reasons`
    accepted  coordinates of silver rows, some of which may have dead letters
    """

    new: DataFrame | None = None
    changed: DataFrame | None = None
    accepted: DataFrame | None = None


def put(path: str, stage: str, verdicts: Verdicts, now: datetime, moves: Sequence[Move] = ()) -> int:
    """Insert and update dead letters and record the moves, in one commit; return how many were written.

    A rerun writes no dead letters. Those that are discarded or resent remain unchanged. The frames in
    `verdicts` are read twice, so they should be persisted.
    """
    frames = [one for one in (verdicts.new, verdicts.changed, verdicts.accepted) if one is not None]
    spark, where = frames[0].sparkSession, F.lit(False)
    for frame in frames:
        where = where | at_places(frame)

    def once() -> int:
        commit = tables.begin(spark, path)
        commit.expect(moves)
        near = commit.candidates(where)
        rows = _settled(commit.rows(near).drop(FILE), stage, verdicts, now)
        rows = gathered(rows, amount_of(rows=near.rows)).persist()
        try:
            written = tables.upsert(rows, commit, near, ("id",), moves)
            if written.version is None and moves:
                tables.note(spark, path, moves)
            return written.rows
        finally:
            rows.unpersist()

    return tables.retry_on_conflict(once)


def are_processed(spark: SparkSession, query: str, clean: str, version: int | None = None) -> Column:
    """Select the dead letters of records that a query had processed by a silver version (None: the newest).

    A micro-batch writes its dead letters before its rows, so call this function before reading the dead
    letters.
    """
    noted = tables.transactions_in(spark, tables.snapshot(spark, clean, version))
    landed = fronts.Progress.noted_in(noted, query).landed
    finished = F.coalesce(F.col("ingested_at") <= F.lit(landed).cast("timestamp"), F.lit(False))
    return (F.col("job") == query) & finished


def without_leaving(
    letters: DataFrame, query: str, version: int, *, bronze: str, clean: str, dead: str
) -> DataFrame:
    """Return the dead letters without the changes made by a silver micro-batch that is not yet complete.

    That micro-batch has already written dead letters for rows that it will remove, but which silver still
    contains in this version. If a replay admitted such a row, its earlier dead letter counts as replayed; any
    other such row had no dead letter. `letters` are the query's dead letters, read after that version.
    `bronze`, `clean` and `dead` are paths.
    """
    spark = letters.sparkSession
    if not cuts.is_ahead(spark, query, dead, target=clean, version=version, source=bronze):
        return letters
    stands = F.struct("admitted").alias("_stands")
    rows = tables.read_version(spark, clean, version).select(*_KEYS, stands).dropDuplicates(_KEYS)
    is_leaving = (F.col("status") == SUPERSEDED) & F.col("_stands").isNotNull()
    before = F.when(is_leaving, F.when(F.col("_stands.admitted").isNotNull(), REPLAYED))
    found = letters.join(rows, _KEYS, "left").withColumn("status", before.otherwise(F.col("status")))
    return found.where("status IS NOT NULL").select(*letters.columns)


def at_places(rows: DataFrame) -> Column:
    """Return a condition that selects records by the coordinates of these rows.

    If there are many rows, the condition can also select other records.
    """
    places = rows.select(*_KEYS).limit(_MOST_RANGES + 1).collect()
    if len(places) > _MOST_RANGES:
        return within(ranges_of(rows))
    return within([OffsetRange(topic, partition, offset, offset) for topic, partition, offset in places])


def _settled(there: DataFrame, stage: str, verdicts: Verdicts, now: datetime) -> DataFrame:
    """Return the new and changed dead letters, ready to be written."""
    nothing = there.select("id", "status", "reasons", "own_time", "admitted").limit(0)
    said = nothing
    if verdicts.new is not None:
        said = said.unionByName(verdicts.new.select(*nothing.columns))
    if verdicts.changed is not None:
        status = status_by(F.col("reasons")).alias("status")
        of_letter = verdicts.changed.select(letter_id(stage).alias("id"), status, "reasons")
        said = said.unionByName(of_letter, allowMissingColumns=True)
    if verdicts.accepted is not None:
        of_row = verdicts.accepted.select(letter_id(stage).alias("id"), F.lit(REPLAYED).alias("status"))
        said = said.unionByName(of_row, allowMissingColumns=True)
    said = said.select(
        "id", *(F.col(name).alias(f"_{name}") for name in ("status", "reasons", "own_time", "admitted"))
    )
    rules, old_rules = F.col("_reasons.rule"), F.col("reasons.rule")
    is_same = (F.col("_status") == F.col("status")) & (F.col("_reasons").isNull() | (rules == old_rules))
    is_decided = F.col("status").isin(DISCARDED, RESENT)
    values = {
        "status": F.col("_status"),
        "reasons": F.coalesce("_reasons", "reasons"),
        "own_time": F.coalesce("own_time", "_own_time"),
        "admitted": F.coalesce("admitted", "_admitted"),
        "attempts": F.col("attempts") + 1,
        "last_attempt": F.lit(now),
    }
    changed = there.join(said, "id").where(~is_same & ~is_decided).withColumns(values).select(*SCHEMA.names)
    if verdicts.new is None:
        return changed
    return changed.unionByName(verdicts.new.join(there.select("id"), "id", "left_anti").select(*SCHEMA.names))
