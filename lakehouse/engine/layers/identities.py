"""Silver for sources with ids: find repeated, corrected and deleted records, and decide their outcome.

Decisions are based on silver's rows and on the dead letters of deleted or refused records. Rows are looked up
in the transaction that writes the clean rows, so a concurrent commit by another writer causes a conflict.
Nearly all records need no lookup; fingerprints of ids, which are kept in memory, show which records need one.
The fingerprints are loaded from silver and the dead letters when the step is created, and updated from later
commits.

A micro-batch first writes its dead letters. These include dead letters for rows that it removes from silver,
and changes to dead letters whose records were sent again. If the process crashes before the rows are written,
the retry ignores dead letters for its own records and for rows that silver still contains.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.common.errors import TableError
from lakehouse.engine.layers.fingerprints import Fingerprints, Packed, days_of, repeated, spans, without_day
from lakehouse.engine.layers.frozen import Frozen
from lakehouse.engine.layers.letters import at_places
from lakehouse.engine.progress import parts
from lakehouse.engine.records.comparing import (
    IS_LETTER,
    IS_REMOVED,
    changed_by,
    compared,
    removed_by,
    with_outcome,
)
from lakehouse.engine.records.dead_letters import SCHEMA as LETTERS_SCHEMA
from lakehouse.engine.records.dead_letters import status_by
from lakehouse.engine.records.identity import (
    DELETION,
    LETTERS,
    NOTHING_TO_DELETE,
    OF_ID,
    OPEN,
    are_compared,
    fingerprint,
    hash_of_same,
    id_of_row,
    is_compared,
    is_sound,
    row_columns,
)
from lakehouse.engine.records.validation import filter_clean
from lakehouse.storage import tables
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.spark.columns import Columns
from lakehouse.storage.spark.execution import Amount, executing_for
from lakehouse.storage.tables import DELETED, Candidates, Commit, Move, Why
from lakehouse.storage.tables.pruning import Near, in_spans
from lakehouse.streams.contract import COORDINATES
from lakehouse.streams.definition import ID, SEQUENCE, Source
from lakehouse.streams.kinds.records import column_of

MOST_IN_MEMORY = 10_000_000
"""The maximum number of ids kept in memory, at 8 bytes each."""

ACCEPTED = "accepted"
"""The status of a record without a dead letter."""

_MORE = 1.25  # the oldest fingerprints are dropped above this multiple of the limit
_SCANNED_ROWS = 300_000  # up to this many, generating code costs more (0.3 s) than it saves (1 us per row)
_HASH, _IS_COMPARED = "_hash", "is_compared"
_FACTS = ["packed", "status", "deletes"]
_KEYS = list(COORDINATES)


@dataclass(frozen=True)
class Settled:
    """Validated records with their reasons, after comparison with other records that have the same ids.

    For each record with an id, `seen` contains its fingerprint (`packed`), the status of its dead letter or
    ACCEPTED (`status`), and whether it is a deletion (`deletes`). `removed` contains the rows to remove from
    silver, with reasons and ids, and `changed` contains the dead letters to change, with reasons. Each of
    these two is None if it would be empty. `near` contains the files that might contain the rows to remove.
    """

    rows: DataFrame
    seen: pa.Table
    removed: DataFrame | None
    changed: DataFrame | None
    near: Candidates


class Identities:
    """The ids in a source's silver table (path `clean`) and in its dead letters (path `dead`).

    `most` limits the number of fingerprints in memory. Above the limit, only fingerprints from the most
    recent days are kept, and records from earlier days are looked up in silver. If the source has
    `sequence_by`, all records are then looked up.
    """

    def __init__(
        self, source: Source, clean: str, dead: str, job: str, frozen: Frozen, *, most: int = MOST_IN_MEMORY
    ) -> None:
        self._source = source
        self._frozen = frozen
        self._clean = clean
        self._dead = dead
        self._job = job
        self._most = most
        self._known = Fingerprints()
        self._lettered = Fingerprints()  # ids that have dead letters
        self._pending = Fingerprints()  # ids whose dead letters are open or are deletions
        self._version: int | None = None
        self._since_day: int | None = None  # fingerprints from earlier days are not kept

    def settle(self, judged: DataFrame, commit: Commit) -> Settled:
        """Compare validated records with each other and with silver. The records should be persisted."""
        self._follow(judged.sparkSession, tables.version_in(commit.snapshot))
        self._frozen.look()
        seen = self._frozen.with_taken(self._of_judged).of(judged.where(F.col(OF_ID).isNotNull())).toArrow()
        packed = seen.column("packed").to_numpy()
        are_suspect = self._are_suspect(seen) | self._frozen.are_taken(seen)
        suspects = packed[seen.column(_IS_COMPARED).to_numpy() & are_suspect]
        if not len(suspects):
            return Settled(judged, seen, None, None, commit.candidates(Near(())))
        return self._settle(judged, seen, suspects, commit)

    def note(self, settled: Settled, version: int) -> None:
        """Remember the ids of accepted records and of dead letters; `version` is silver's new version."""
        status, deletes = (settled.seen.column(name) for name in ("status", "deletes"))
        packed = settled.seen.column("packed").to_numpy()
        is_row, is_open = pc.equal(status, ACCEPTED).to_numpy(), pc.equal(status, OPEN).to_numpy()
        self._known.add(packed[is_row])
        self._lettered.add(packed[~is_row])
        self._pending.add(packed[is_open | deletes.to_numpy()])
        if settled.removed is not None:
            ids = settled.removed.select(fingerprint(self._source, F.col("unique_id")).alias("packed"))
            self._lettered.add(_numbers(ids))
        if self._version == version - 1:
            self._version = version
        if len(self._known) > self._most * _MORE:
            self._version = None

    def _are_suspect(self, seen: pa.Table) -> npt.NDArray[np.bool_]:
        packed: Packed = seen.column("packed").to_numpy()
        suspect = self._known.found(packed) | repeated(packed) | self._pending.found(packed)
        suspect |= seen.column("deletes").to_numpy()
        if self._since_day is not None:
            too_old = days_of(packed) < self._since_day
            suspect |= too_old if self._source.sequence_by is None else np.True_
        return suspect

    def _settle(self, judged: DataFrame, seen: pa.Table, suspects: Packed, commit: Commit) -> Settled:
        spark, source = judged.sparkSession, self._source
        hashes = np.unique(without_day(suspects))
        wanted = F.broadcast(spark.createDataFrame(pa.table({_HASH: hashes})))
        where = self._where(suspects)
        near = commit.candidates(where)
        there = commit.rows(near).select(*row_columns(source))
        there = there if where is None else there.where(where.condition())
        standing = self._alike(there, source.id_column or "", wanted)
        chosen = self._alike(judged, OF_ID, wanted)
        closing = self._frozen.closing(chosen, standing)
        with executing_for(spark, Amount.FEW if near.rows <= _SCANNED_ROWS else Amount.MANY):
            others = self._letters(seen, hashes, chosen, standing)
            others = self._frozen.with_taken_letters(others, chosen)
            outcome = compared(source, chosen if closing is None else closing, standing, others)
            found = self._of_outcome.added_to(outcome).toArrow()
        outcome = spark.createDataFrame(found)
        is_removed, is_letter = found.column(IS_REMOVED), found.column(IS_LETTER)
        was_chosen = np.isin(without_day(seen.column("packed").to_numpy()), hashes)
        apart = seen.filter(pa.array(~was_chosen)).select(_FACTS)
        own = found.filter(pc.invert(pc.or_(is_removed, is_letter))).select(_FACTS)
        return Settled(
            with_outcome(judged, outcome).persist(),
            pa.concat_tables([apart, own], promote_options="default"),
            removed_by(outcome) if pc.any(is_removed).as_py() else None,
            changed_by(outcome) if pc.any(is_letter).as_py() else None,
            near,
        )

    def _alike(self, rows: DataFrame, id_: str, wanted: DataFrame) -> DataFrame:
        """Keep the rows whose ids could be among the wanted ids."""
        hashed = rows.withColumn(_HASH, hash_of_same(self._source, F.col(id_).cast("string")))
        return hashed.where(F.col(id_).isNotNull()).join(wanted, _HASH, "left_semi")

    def _letters(self, seen: pa.Table, hashes: Packed, chosen: DataFrame, standing: DataFrame) -> DataFrame:
        """Return the dead letters that the comparison needs: all letters of ids with open ones or deletions.

        Letters for the micro-batch's own records, and for rows that silver still contains, are left out,
        because an attempt that was killed or had a conflict has written them.
        """
        spark = chosen.sparkSession
        deletes = seen.column("packed").to_numpy()[seen.column("deletes").to_numpy()]
        are_deleted = np.isin(hashes, without_day(deletes))
        needed = self._pending.found(hashes) | (are_deleted & self._lettered.found(hashes))
        if not needed.any():
            return local_frame(spark, [], StructType([LETTERS_SCHEMA[name] for name in LETTERS]))
        wanted = F.broadcast(spark.createDataFrame(pa.table({_HASH: hashes[needed]})))
        letters = tables.read(spark, self._dead).where((F.col("job") == self._job) & are_compared())
        places = chosen.select(*_KEYS).union(standing.select(*_KEYS))
        found = self._alike(letters.select(*LETTERS), "unique_id", wanted)
        return found.join(F.broadcast(places), _KEYS, "left_anti")

    @cached_property
    def _of_judged(self) -> Columns:
        return Columns(self._facts(F.col(OF_ID)) | {_IS_COMPARED: is_compared(self._source)})

    @cached_property
    def _of_outcome(self) -> Columns:
        return Columns(self._facts(F.col("unique_id")))

    def _facts(self, id_: Column) -> dict[str, Column]:
        """Return the columns of `Settled.seen` for validated records; `id_` is the column with their ids."""
        return {
            "packed": fingerprint(self._source, id_),
            "status": F.when(is_sound(), ACCEPTED).otherwise(status_by(F.col("reasons"))),
            "deletes": F.arrays_overlap("reasons.rule", F.array(F.lit(DELETION), F.lit(NOTHING_TO_DELETE))),
        }

    def _where(self, suspects: Packed) -> Near | None:
        """Return a condition for silver rows that could have one of these ids, or None if any row could."""
        if self._source.sequence_by is not None and self._since_day is not None:
            return None
        days = self._known.days(suspects)
        if self._source.sequence_by is None:  # only records with the same id and time are compared
            days = [int(day) for day in np.unique(days_of(suspects))]
        return in_spans("event_time", spans(days))

    def _follow(self, spark: SparkSession, version: int) -> None:
        """Add the ids from commits to silver since the last call, up to this version."""
        if self._version is None:
            self._fill(spark, version)
        if self._version is None or version <= self._version:
            return
        try:
            entries = list(parts.entries(spark, self._clean, self._version + 1, version + 1))
        except TableError:  # log retention has removed commits
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
        """Keep the rows from the most recent days, which are about this share of all rows."""
        day = F.unix_date(F.col("event_time").cast("date"))
        found = rows.agg(F.percentile_approx(day, 1 - share, 10_000)).first()
        self._since_day = max(0, (found[0] or 0) + 1) if found else 0
        return rows.where(day >= self._since_day)

    def _look_at_letters(self, spark: SparkSession) -> None:
        of_job = tables.read(spark, self._dead).where(F.col("job") == self._job)
        letters = of_job.where(are_compared())
        packed = fingerprint(self._source, F.col("unique_id")).alias("packed")
        self._lettered = Fingerprints(_numbers(letters.select(packed)))
        pending = letters.where(F.col("status").isin(OPEN, DELETION))
        self._pending = Fingerprints(_numbers(pending.select(packed)))

    def _packed(self, rows: DataFrame) -> DataFrame:
        id_ = id_of_row(self._source)
        return rows.where(id_.isNotNull()).select(fingerprint(self._source, id_).alias("packed"))


def columns_of_ids(settings: Mapping[str, str]) -> set[str]:
    """Return the columns that a source with these id settings could have added to silver."""
    return {ID, SEQUENCE, *(column_of(name) for name in settings.values())}


def put(settled: Settled, commit: Commit, moves: Sequence[Move] = ()) -> int | None:
    """Write the clean rows, remove `settled.removed` from silver, and return silver's new version.

    If there are no rows to write or remove, commits only the moves. If there are no moves either, commits
    nothing and returns None.
    """
    clean = filter_clean(settled.rows)
    if settled.removed is None:
        return tables.add(clean, commit, moves).version if moves or not clean.isEmpty() else None
    gone = settled.removed.select(*_KEYS, F.lit(True).alias(DELETED))
    new = clean.withColumn(DELETED, F.lit(False)).unionByName(gone, allowMissingColumns=True).persist()
    try:
        return tables.upsert(new, commit, settled.near, COORDINATES, moves, why=Why.CORRECTED).version
    finally:
        new.unpersist()


def letters_of(removed: DataFrame, bronze: str) -> DataFrame:
    """Return rows removed from silver as raw records with reasons.

    Values that bronze no longer has are null.
    """
    rows = tables.read(removed.sparkSession, bronze).where(at_places(removed))
    raw = rows.select(*_KEYS, "key", "value", "headers").dropDuplicates(_KEYS)
    return removed.join(raw, _KEYS, "left")


def _numbers(packed: DataFrame) -> Packed:
    """Return a frame's only column as an array that owns its memory."""
    numbers: Packed = np.require(packed.toArrow().column(0).to_numpy(), np.int64, "W")
    _give_back_memory()
    return numbers


def _give_back_memory() -> None:
    """Return freed memory to the system. Otherwise, allocators would keep it after many ids were loaded."""
    pa.default_memory_pool().release_unused()
    with suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
