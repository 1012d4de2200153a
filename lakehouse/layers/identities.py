"""Silver for sources with ids: finds and settles repeated, corrected and deleted records.

The rows of silver decide. They are looked up inside the transaction that writes the clean rows, so another
writer's commit conflicts with it. Fingerprints of ids in memory only show which records need no lookup:
nearly all of them. They are read from silver when the step is made, and updated from later commits.

A micro-batch's letters are written first, including those of rows that are about to leave silver. After a
crash in between, the micro-batch is repeated: rows that have a letter but are still in silver are then
removed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse import tables
from lakehouse.errors import TableError
from lakehouse.layers.fingerprints import Fingerprints, Packed, days_of, repeated, spans, without_day
from lakehouse.progress import parts
from lakehouse.records.dead_letters import OPEN, attempted, place, resent_as, status_by
from lakehouse.records.dead_letters import SCHEMA as LETTERS
from lakehouse.records.identity import (
    CONFLICTING,
    DELETION,
    IS_REMOVED,
    OF_ID,
    SUPERSEDED,
    compared,
    deleted_by,
    fingerprint,
    hash_of,
    hash_of_same,
    is_compared,
    removed_by,
    row_columns,
    with_outcome,
)
from lakehouse.records.offsets import OffsetRange, within
from lakehouse.records.validation import ADMITTED, COORDINATES, filter_clean
from lakehouse.spark.columns import Columns
from lakehouse.spark.execution import executing_for
from lakehouse.spark.local_frames import local_frame
from lakehouse.stream import Source
from lakehouse.tables import DELETED, Candidates, Commit, Move
from lakehouse.tables.pruning import Near, in_spans

MOST_IN_MEMORY = 10_000_000
"""So many ids are kept in memory at most, 8 bytes each."""

ACCEPTED = "accepted"
"""What a record is that has no letter."""

_MORE = 1.25  # times as many, before the oldest are forgotten
_MOST_RANGES = 100  # of offsets, in one condition
_SCANNED_ROWS = 300_000  # rather interpreted: generated code saves a microsecond per row, and costs 0.3 s
_HASH, _IS_COMPARED = "_hash", "is_compared"
_FACTS = ["packed", "of_id", "status"]
_KEYS = list(COORDINATES)


@dataclass(frozen=True)
class Settled:
    """Judged records with the reasons that they have among others of their ids.

    `seen` has, of each record with an id, `packed` (its fingerprint), `of_id` (the hash of its id alone) and
    `status`: that of its letter, or ACCEPTED. `removed` are rows of silver that leave it, with reasons and
    ids; null for none. `near` are the commit's files that may have them.
    """

    rows: DataFrame
    seen: pa.Table
    removed: DataFrame | None
    near: Candidates


class Identities:
    """What is known of the ids of a source's silver table, by the table at `clean` and the letters at `dead`.

    `most` is how many fingerprints are kept. If there are more, records before the time that they reach back
    to are looked up in silver, and for a source with `sequence_by` all are.
    """

    def __init__(self, source: Source, clean: str, dead: str, job: str, most: int = MOST_IN_MEMORY) -> None:
        self._source = source
        self._clean = clean
        self._dead = dead
        self._job = job
        self._most = most
        self._known = Fingerprints()
        self._waiting = Fingerprints()  # ids of open letters, without their day
        self._version: int | None = None
        self._since_day: int | None = None  # fingerprints of earlier days are not kept
        self._has_deletions = False

    def settle(self, judged: DataFrame, commit: Commit) -> Settled:
        """Compare judged records, which should be persisted, with each other and with silver."""
        self._follow(judged.sparkSession, tables.version_in(commit.snapshot))
        seen = self._of_judged.of(judged.where(F.col(OF_ID).isNotNull())).toArrow()
        packed = seen.column("packed").to_numpy()
        suspects = packed[seen.column(_IS_COMPARED).to_numpy() & self._are_suspect(packed)]
        if not len(suspects):
            return Settled(judged, seen, None, commit.candidates(Near(())))
        return self._settle(judged, seen, suspects, commit)

    def note(self, settled: Settled, version: int, now: datetime) -> None:
        """Remember the ids of records that are accepted, deleted or refused; `version` is silver's new one.

        Open letters of ids that have just been accepted are closed: their records were sent again. If the
        process is killed before that, they stay open (`lakehouse dead-letters resolve`).
        """
        status = settled.seen.column("status")
        accepted, deletes, is_open = (pc.equal(status, one).to_numpy() for one in (ACCEPTED, DELETION, OPEN))
        packed, of_id = (settled.seen.column(name).to_numpy() for name in ("packed", "of_id"))
        self._known.add(packed[accepted | deletes])
        self._has_deletions |= bool(deletes.any())
        if self._waiting.found(of_id[accepted]).any():
            self._close_resent(settled.rows.where(F.size("reasons") == 0), now)
        self._waiting.add(of_id[is_open])
        if self._version == version - 1:
            self._version = version
        if len(self._known) > self._most * _MORE:
            self._version = None

    def _close_resent(self, accepted: DataFrame, now: datetime) -> None:
        rows = accepted.select(F.col(OF_ID).alias("unique_id"), place().alias("place"))
        is_open = (F.col("t.status") == OPEN) & (F.col("t.job") == self._job)
        conflicts = F.array_contains("t.reasons.rule", CONFLICTING)
        values = attempted(resent_as(F.col("s.place")), now)
        where = is_open & ~conflicts
        tables.update_matched(rows, self._dead, ("unique_id",), where, values, within=F.lit(True))

    def _are_suspect(self, packed: Packed) -> npt.NDArray[np.bool_]:
        suspect = self._known.found(packed) | repeated(packed)
        if self._since_day is not None:
            too_old = days_of(packed) < self._since_day
            suspect |= too_old if self._source.sequence_by is None else np.True_
        return suspect

    def _settle(self, judged: DataFrame, seen: pa.Table, suspects: Packed, commit: Commit) -> Settled:
        spark, source = judged.sparkSession, self._source
        hashes = np.unique(without_day(suspects))
        wanted = F.broadcast(spark.createDataFrame(pa.table({_HASH: hashes})))

        def alike(rows: DataFrame, id_: Column) -> DataFrame:
            return rows.withColumn(_HASH, hash_of_same(source, id_)).join(wanted, _HASH, "left_semi")

        where = self._where(suspects)
        near = commit.candidates(where)
        there = commit.rows(near).select(*row_columns(source))
        there = there if where is None else there.where(where.condition())
        standing = alike(there, F.col(source.id_column or "").cast("string"))
        chosen = alike(judged.where(is_compared(source)), F.col(OF_ID))
        with executing_for(spark, few=near.rows <= _SCANNED_ROWS):
            outcome = compared(source, chosen, standing, self._deleted(chosen, wanted))
            found = self._of_outcome.added_to(outcome).toArrow()
        is_removed = found.column(IS_REMOVED)
        outcome = spark.createDataFrame(found)
        was_chosen = np.isin(without_day(seen.column("packed").to_numpy()), hashes)
        others = seen.filter(pc.invert(pc.and_(seen.column(_IS_COMPARED), pa.array(was_chosen))))
        own = found.filter(pc.invert(is_removed)).select(_FACTS)
        return Settled(
            with_outcome(judged, outcome).persist(),
            pa.concat_tables([others.select(_FACTS), own], promote_options="default"),
            removed_by(outcome) if pc.any(is_removed).as_py() else None,
            near,
        )

    @cached_property
    def _of_judged(self) -> Columns:
        return Columns(self._facts(F.col(OF_ID)) | {_IS_COMPARED: is_compared(self._source)})

    @cached_property
    def _of_outcome(self) -> Columns:
        return Columns(self._facts(F.col("unique_id")))

    def _facts(self, id_: Column) -> dict[str, Column]:
        """Return what `Settled.seen` has of judged records with this id, by name."""
        return {
            "packed": fingerprint(self._source, id_),
            "of_id": hash_of(id_),
            "status": F.when(F.size("reasons") == 0, ACCEPTED).otherwise(status_by(F.col("reasons"))),
        }

    def _where(self, suspects: Packed) -> Near | None:
        """Return where rows with the suspects' ids lie in silver; null: anywhere."""
        if self._source.sequence_by is not None and self._since_day is not None:
            return None
        days = self._known.days(suspects)
        if self._source.sequence_by is None:  # the same id counts with the same time only
            days = [int(day) for day in np.unique(days_of(suspects))]
        return in_spans("event_time", spans(days))

    def _deleted(self, chosen: DataFrame, wanted: DataFrame) -> DataFrame:
        """Return the ids that records before these have deleted, with the greatest sequence of each."""
        spark = chosen.sparkSession
        if not self._has_deletions:
            return local_frame(spark, [], StructType([LETTERS["unique_id"], LETTERS["sequence"]]))
        letters = deletions(spark, self._dead, self._job).join(chosen.select(*_KEYS), _KEYS, "left_anti")
        of_id = letters.withColumn(_HASH, hash_of(F.col("unique_id")))
        return deleted_by(of_id.join(wanted, _HASH, "left_semi"))

    def _follow(self, spark: SparkSession, version: int) -> None:
        """Take in what commits up to a version of silver have added since the last look."""
        if self._version is None:
            self._fill(spark, version)
        if self._version is None or version <= self._version:
            return
        try:
            entries = list(parts.entries(spark, self._clean, self._version + 1, version + 1))
        except TableError:  # of so long ago that log retention has been there
            self._fill(spark, version)
            return
        added = [file for entry in entries for file in entry.added]
        if added:
            self._known.add(_numbers(self._packed(tables.read_files(spark, self._clean, added))))
        if any(entry.rewrites for entry in entries):
            self._look_at_letters(spark)
        self._version = version

    def _fill(self, spark: SparkSession, version: int) -> None:
        rows = tables.read_version(spark, self._clean, version)
        self._since_day, count = None, rows.count()
        if count > self._most:
            rows = self._newest(rows, self._most / count)
        self._known = Fingerprints(_numbers(self._packed(rows)))
        self._version = version
        self._look_at_letters(spark)

    def _newest(self, rows: DataFrame, share: float) -> DataFrame:
        """Keep the rows of the newest days, about this share of all."""
        day = F.unix_date(F.col("event_time").cast("date"))
        found = rows.agg(F.percentile_approx(day, 1 - share, 10_000)).first()
        self._since_day = max(0, (found[0] or 0) + 1) if found else 0
        return rows.where(day >= self._since_day)

    def _look_at_letters(self, spark: SparkSession) -> None:
        letters = tables.read(spark, self._dead).where(F.col("job") == self._job)
        letters = letters.where(F.col("unique_id").isNotNull())
        packed = hash_of(F.col("unique_id")).alias("packed")
        self._waiting = Fingerprints(_numbers(letters.where(F.col("status") == OPEN).select(packed)))
        if self._source.sequence_by is not None:
            found = _numbers(letters.where(F.col("status") == DELETION).select(packed))
            self._has_deletions = len(found) > 0
            self._known.add(found)

    def _packed(self, rows: DataFrame) -> DataFrame:
        id_ = F.col(self._source.id_column or "").cast("string")
        return rows.where(id_.isNotNull()).select(fingerprint(self._source, id_).alias("packed"))


def put(settled: Settled, commit: Commit, moves: Sequence[Move] = ()) -> int | None:
    """Write the clean rows, without those of silver that leave it, and return silver's new version.

    Without rows nothing is committed but the moves; null if there are none either.
    """
    clean = filter_clean(settled.rows)
    if settled.removed is None:
        return tables.add(clean, commit, moves).version if moves or not clean.isEmpty() else None
    gone = settled.removed.select(*_KEYS, F.lit(True).alias(DELETED))
    new = clean.withColumn(DELETED, F.lit(False)).unionByName(gone, allowMissingColumns=True).persist()
    try:
        return tables.upsert(new, commit, settled.near, COORDINATES, moves).version
    finally:
        new.unpersist()


def deletions(spark: SparkSession, dead: str, job: str) -> DataFrame:
    """Return the letters of a source that delete ids."""
    return tables.read(spark, dead).where((F.col("job") == job) & (F.col("status") == DELETION))


def letters_up_to(letters: DataFrame, version: int) -> DataFrame:
    """Leave out letters of rows that are about to leave silver, as of a version of it.

    Their micro-batch has begun, and its rows are not written yet.
    """
    is_to_come = (F.col("status") == SUPERSEDED) & (F.col("batch") > version)
    return letters.where(~F.coalesce(is_to_come, F.lit(False)))


def letters_of(removed: DataFrame, bronze: str) -> DataFrame:
    """Return rows that leave silver as raw records with reasons; what bronze no longer has is null."""
    places = removed.select(*_KEYS).collect()
    rows = tables.read(removed.sparkSession, bronze).where(_at(places))
    sent = F.col("timestamp").alias("kafka_timestamp")
    raw = rows.select(*_KEYS, "key", "value", "headers", sent, "ingested_at").dropDuplicates(_KEYS)
    return removed.join(raw, _KEYS, "left").withColumn("admitted", F.lit(None).cast(ADMITTED))


def _at(places: Sequence[tuple[str, int, int]]) -> Column:
    """Select records by place, exactly if they are few; else at least these."""
    exact = [OffsetRange(topic, partition, offset, offset) for topic, partition, offset in places]
    if len(exact) <= _MOST_RANGES:
        return within(exact)
    by_partition = dict[tuple[str, int], list[int]]()
    for topic, partition, offset in places:
        by_partition.setdefault((topic, partition), []).append(offset)
    return within([OffsetRange(*where, min(all_), max(all_)) for where, all_ in by_partition.items()])


def _numbers(packed: DataFrame) -> Packed:
    """Return the numbers of a frame's only column, in memory that is theirs alone."""
    numbers: Packed = np.require(packed.toArrow().column(0).to_numpy(), np.int64, "W")
    _give_back_memory()
    return numbers


def _give_back_memory() -> None:
    """Return freed memory to the system: allocators keep what many ids have taken on their way here."""
    pa.default_memory_pool().release_unused()
    with suppress(AttributeError):  # glibc alone has it
        ctypes.CDLL(None).malloc_trim(0)
