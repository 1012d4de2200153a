"""Handle records that arrive after retention has removed rows or dead letters to which they relate.

A record relates to a row or dead letter if it has the same id, or if its event time is in the same period.
Gold, topics and stores still reflect the removed rows. A later record must not correct, delete or repeat
these rows, so it becomes an open dead letter with the rule `retained` or `late`. If an id was deleted before
retention ran, its greatest deleted sequence (the bar) is known. Records of this id with sequences up to the
bar are `retained`. Newer records are compared as if the id's dead letters still existed.
"""

from __future__ import annotations

from datetime import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse.engine.layers.fingerprints import Packed
from lakehouse.engine.ops_tables import retained
from lakehouse.engine.ops_tables.retained import RETAINED_IDS, RETENTION
from lakehouse.engine.records import identity
from lakehouse.engine.records.dead_letters import SCHEMA as LETTERS_SCHEMA
from lakehouse.engine.records.identity import IS_CLOSED
from lakehouse.engine.records.validation import late_reason
from lakehouse.storage import tables
from lakehouse.storage.spark.columns import Columns
from lakehouse.storage.tables import Lake, TableSpec
from lakehouse.streams.definition import Source, Stream

_SHORT = "short"
_FROZEN, _BAR = "_frozen", "_bar"


class Frozen:
    """The data of a source that retention has removed, according to ops.retention and ops.retained_ids."""

    def __init__(self, lake: Lake, stream: Stream, source: Source) -> None:
        self._lake = lake
        self._stream = stream
        self._source = source
        self._closed: datetime | None = None
        self._ids: Packed = np.empty(0, np.int64)
        self._versions: tuple[int, ...] | None = None
        self._marked: tuple[Columns, Columns] | None = None  # a record's columns without and with _SHORT

    def look(self) -> None:
        """Reload the ids and times that retention has removed, if they have changed since the last call."""
        versions = tuple(map(self._version, (RETENTION, RETAINED_IDS)))
        if versions == self._versions:
            return
        self._closed = retained.closed_before(self._lake, self._stream, self._source)
        taken = retained.ids_taken(self._lake, self._source).select(
            _short(F.col("fingerprint")).alias(_SHORT)
        )
        self._ids = np.sort(taken.toArrow().column(0).to_numpy())
        self._versions = versions

    def with_taken(self, facts: Columns) -> Columns:
        """Add the column that `are_taken` needs to the columns of validated records, if ids were removed."""
        if not len(self._ids):
            return facts
        if self._marked is None or self._marked[0] is not facts:
            short = _short(retained.fingerprint_of(F.col(identity.OF_ID)))
            self._marked = facts, facts.and_more({_SHORT: short})
        return self._marked[1]

    def are_taken(self, seen: pa.Table) -> npt.NDArray[np.bool_]:
        """Return, for each validated record, whether retention could have removed the row with its id."""
        if _SHORT not in seen.column_names:
            return np.zeros(len(seen), np.bool_)
        found: npt.NDArray[np.bool_] = np.isin(seen.column(_SHORT).to_numpy(), self._ids)
        return found

    def closing(self, judged: DataFrame, standing: DataFrame) -> DataFrame | None:
        """Add IS_CLOSED and further reasons to validated records, or return None if nothing was removed.

        `standing` contains earlier silver rows with the same ids.
        """
        if self._closed is None and not len(self._ids):
            return None
        ids = None if self._source.sequence_by is None else self._frozen(judged, standing)
        return _closed(self._source, judged, ids, self._closed)

    def with_taken_letters(self, letters: DataFrame, judged: DataFrame) -> DataFrame:
        """Return the dead letters, plus replacements for removed dead letters, all with the columns LETTERS.

        If retention has removed an id's dead letters, up to three replacements are added: a deletion with the
        bar as its sequence, the last deletion without a sequence, and a record that these deletions removed.
        """
        if self._source.sequence_by is None or not len(self._ids):
            return letters
        noted = _taken_of(self._lake, self._source, judged).where(F.col("bar").isNotNull())
        return letters.select(*identity.LETTERS).union(_standing_for(noted))

    def _frozen(self, judged: DataFrame, standing: DataFrame) -> DataFrame:
        """Return the ids whose rows or dead letters were removed, or whose rows are in a removed period.

        If _FROZEN is true, no later record is accepted. Otherwise, only records with a sequence above _BAR
        are accepted.
        """
        taken = _taken_of(self._lake, self._source, judged).select(identity.OF_ID, "bar")
        own = identity.id_of_row(self._source).alias(identity.OF_ID)
        old = standing.where(F.col("event_time") < F.lit(self._closed).cast("timestamp"))
        taken = taken.union(old.select(own, F.lit(None).cast("long")))
        is_whole = F.bool_or(F.col("bar").isNull()).alias(_FROZEN)
        return taken.groupBy(identity.OF_ID).agg(is_whole, F.max("bar").alias(_BAR))

    def _version(self, spec: TableSpec) -> int:
        if not self._lake.exists(spec.layer, spec.name):
            return -1
        return tables.version_of(self._lake.spark, self._lake.path(spec.layer, spec.name))


def _short(fingerprint: Column) -> Column:
    """Return the first 64 bits of a fingerprint as a number."""
    return F.conv(F.substring(F.hex(fingerprint), 1, 16), 16, -10).cast("long")


def _taken_of(lake: Lake, source: Source, judged: DataFrame) -> DataFrame:
    """Return the ids (OF_ID) of records whose data was removed, with the columns of ops.retained_ids."""
    found = retained.fingerprint_of(F.col(identity.OF_ID)).alias("fingerprint")
    ids = judged.select(identity.OF_ID, found).distinct()
    return ids.join(retained.ids_taken(lake, source), "fingerprint")


def _standing_for(noted: DataFrame) -> DataFrame:
    """Return replacements for removed dead letters, deletions first. They have no Kafka coordinates."""

    def letter(turn: int, status: str, sequence: Column, sent: Column) -> Column:
        return F.struct(
            F.timestamp_seconds(F.lit(turn)).alias("ingested_at"),
            F.lit(status).alias("status"),
            sequence.alias("sequence"),
            sent.alias("kafka_timestamp"),
        )

    bar, until, since = F.col("bar"), F.col("until"), F.col("since")
    letters = F.array(
        letter(0, identity.DELETION, bar, F.timestamp_seconds(F.lit(0))),
        letter(1, identity.DELETION, F.lit(None).cast("long"), until),
        letter(2, identity.SUPERSEDED, bar, since),
    )
    known = noted.select(F.col(identity.OF_ID).alias("unique_id"), F.explode(letters).alias("letter"))
    known = known.select("unique_id", "letter.*").where(F.col("kafka_timestamp").isNotNull())
    given = (F.col(name) if name in known.columns else _none(name) for name in identity.LETTERS)
    return known.select(*given)


def _none(name: str) -> Column:
    return F.lit(None).cast(LETTERS_SCHEMA[name].dataType).alias(name)


def _closed(source: Source, judged: DataFrame, ids: DataFrame | None, before: datetime | None) -> DataFrame:
    """Return validated records with IS_CLOSED.

    A record is closed if the `ids` from `_frozen` exclude it, or if its event time is before `before` (UTC).
    Both arguments can be None. If a closed record was otherwise valid, it also gets a reason.
    """
    if ids is None:
        marked = judged.withColumns({_FROZEN: F.lit(False), _BAR: F.lit(None).cast("long")})
    else:
        marked = judged.join(ids, identity.OF_ID, "left")
    is_sound, frozen = identity.is_compared(source), F.coalesce(_FROZEN, F.lit(False))
    is_taken = is_sound & (frozen | F.coalesce(F.col(identity.OF_SEQUENCE) <= F.col(_BAR), F.lit(False)))
    late = late_reason(F.lit(before).cast("timestamp"))
    is_late = F.coalesce(late.isNotNull(), F.lit(False))
    reasons = (
        F.when(is_taken, F.array(identity.retained_reason(source)))
        .when(is_sound & is_late, F.array(late))
        .otherwise(F.col("reasons"))
    )
    closing = marked.withColumns({"reasons": reasons, IS_CLOSED: frozen | is_taken | is_late})
    return closing.select(*judged.columns, IS_CLOSED)
