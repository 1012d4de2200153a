"""Rebuild silver: revalidate every processed record with the current rules and settings.

A rebuild first writes newly refused records to the dead letters, and then changes silver in one commit.
Finally, it closes the letters of records that are now in silver. Every record is therefore always in silver
or in the dead letters. If a rebuild is killed, rerun it to finish.

Records deleted from silver by hand are restored. If a RESTORE of bronze caused a record to be read again,
silver may contain it twice; the rebuild then keeps one row. Records from an unfinished silver micro-batch and
records skipped with --skip remain unchanged. Gold skips commits that rewrite rows, so it does not process the
changes unless the source has `sequence_by`.

A rebuild locks the source's dead letters (`lakehouse.engine.layers.holding`). A record's outcome depends on
other records with the same id, so a source with ids is always rebuilt completely, and its silver step waits
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from functools import reduce

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from lakehouse.engine.layers import silver
from lakehouse.engine.layers.holding import holding
from lakehouse.engine.layers.identities import columns_of_ids
from lakehouse.engine.ops_tables import retained
from lakehouse.engine.records import identity
from lakehouse.engine.records.dead_letters import (
    DISCARDED,
    LOST,
    OPEN,
    REPLAYED,
    RESENT,
    attempted,
    own_time_by,
    status_by,
    to_dead_letters,
)
from lakehouse.engine.records.fields import reason
from lakehouse.engine.records.validation import filter_dead
from lakehouse.operations.repair.revalidating import Revalidation
from lakehouse.storage import tables
from lakehouse.storage.spark.execution import executing_a_handful
from lakehouse.storage.spark.offset_ranges import ranges_of, within
from lakehouse.storage.tables import DELETED, Lake, Why, from_micros
from lakehouse.streams.contract import COORDINATES, OWN_TIME
from lakehouse.streams.definition import Source, Stream

_KEYS = list(COORDINATES)
_RENAMED = "_renamed"


@dataclass(frozen=True)
class Landed:
    """A range [since, until) of Kafka timestamps in UTC. A bound of None means no limit.

    A record without a timestamp is selected by its landing time.
    """

    since: datetime | None = None
    until: datetime | None = None

    def condition(self) -> Column:
        """Return the range as a condition on bronze rows."""
        ends = {
            "since": _at(lambda time: time >= F.lit(self.since)),
            "until": _at(lambda time: time < F.lit(self.until)),
        }
        given = (end for name, end in ends.items() if getattr(self, name) is not None)
        return reduce(Column.__and__, given, F.lit(True))


def _at(is_within: Callable[[Column], Column]) -> Column:
    """Return a condition on a record's send time, in a form that allows data skipping."""
    time = F.col("timestamp")
    return is_within(time) | (time.isNull() & is_within(F.col("ingested_at")))


@dataclass(frozen=True)
class SilverRebuilt:
    """The result of a rebuild: counts of validated records, changed silver rows, and dead letters.

    newly_refused   new and reopened letters
    newly_accepted  letters that are now replayed
    skipped         records that were skipped with --skip and therefore not validated
    made_anew       true if silver was built with different id settings
    without_id      rows that get no id, because retention has deleted their records: no later record with
                    their id is compared with them
    first, last     the earliest and latest event times (UTC), old or new, of the inserted, removed and
                    changed rows, or None if there are none
    """

    judged: int = 0
    inserted: int = 0
    changed: int = 0
    removed: int = 0
    newly_refused: int = 0
    newly_accepted: int = 0
    skipped: int = 0
    made_anew: bool = False
    without_id: int = 0
    first: datetime | None = None
    last: datetime | None = None

    def __add__(self, other: SilverRebuilt) -> SilverRebuilt:
        """Return the combined result for both sources."""
        counts = {name: mine + vars(other)[name] for name, mine in vars(self).items() if type(mine) is int}
        return SilverRebuilt(
            **counts,
            made_anew=self.made_anew or other.made_anew,
            first=min((at for at in (self.first, other.first) if at is not None), default=None),
            last=retained.latest((self.last, other.last)),
        )


def rebuild_silver(
    lake: Lake,
    stream: Stream,
    span: Landed,
    now: datetime,
    *,
    allow_late: bool = False,
    dry_run: bool = False,
) -> SilverRebuilt:
    """Revalidate the records that silver has processed, and correct silver and the dead letters.

    Records that are already in silver are never late. Records that were refused as late remain late. Any
    other record that the current rules accept is late if its event time is before the watermark. The
    watermark uses the lateness that was allowed when the record landed
    (`lakehouse.engine.ops_tables.lateness`). Backfill records are not late. With `allow_late`, a record is
    late only if retention has deleted the rows that it belongs to.

    Records deleted from bronze are not validated. Discarded letters remain discarded. The layers can run at
    the same time. A rerun that finds nothing to do writes no rows. A dry run takes no lease, writes nothing,
    and returns the expected result.

    Raises TableError while another process has locked the letters of one of the sources.
    """
    places = (_SourceRebuild(lake, stream, source, now) for source in stream.sources)
    done = (place.rebuild(span, allow_late=allow_late, dry_run=dry_run) for place in places)
    return reduce(SilverRebuilt.__add__, done, SilverRebuilt())


class _SourceRebuild:
    """The rebuild of one source's silver table."""

    def __init__(self, lake: Lake, stream: Stream, source: Source, now: datetime) -> None:
        self._lake = lake
        self._source = source
        self._now = now
        self._origin = silver.origin_of(stream, source, now)
        self._again = Revalidation(lake, stream, source)
        self._paths = self._again.paths

    def rebuild(self, span: Landed, *, allow_late: bool, dry_run: bool) -> SilverRebuilt:
        """Rebuild under the lock, then record the current id settings. A dry run does neither of the two."""
        is_small = self._again.is_small
        with ExitStack() as held:
            if not dry_run:
                held.enter_context(holding(self._lake, self._source, "rebuild"))
                held.enter_context(self._lake.made_anew(silver.spec(self._source), columns_of_ids))
            if is_small:
                held.enter_context(executing_a_handful(self._lake.spark))
            return self._rebuild(span, allow_late=allow_late, dry_run=dry_run)

    @property
    def _is_whole(self) -> bool:
        """Whether the rebuild must cover all of bronze: records have ids, or silver was built with ids."""
        return self._source.unique_by is not None or self._again.are_other_ids

    def _rebuild(self, span: Landed, *, allow_late: bool, dry_run: bool) -> SilverRebuilt:
        landed = tables.read(self._lake.spark, self._paths.bronze)
        if not self._is_whole:
            landed = landed.where(span.condition())
        ranges = ranges_of(landed)
        if not ranges:
            return SilverRebuilt()
        landed, skipped = self._again.without_skipped(landed, ranges)
        again = 0 if dry_run else self._keep_one(within(ranges))
        judged = self._again.verdicts(landed, ranges, allow_late=allow_late)
        kinds = _work() | ({_RENAMED: self._is_renamed()} if self._is_whole else {})
        work = judged.withColumns(kinds).where(" OR ".join(kinds)).dropDuplicates(_KEYS).persist()
        try:
            found = _found(work)
            if not dry_run:
                self._write(work, found, within(ranges_of(work)))
            return SilverRebuilt(
                judged=judged.count(),
                inserted=found["_inserted"],
                changed=found["_changed"],
                removed=found["_removed"] + again,
                newly_refused=found["_refused"] + found["_reopened"],
                newly_accepted=found["_accepted"] + found["_lost"],
                skipped=skipped,
                made_anew=self._again.are_other_ids,
                without_id=self._without_id(landed),
                first=None if found.first is None else from_micros(found.first),
                last=None if found.last is None else from_micros(found.last),
            )
        finally:
            work.unpersist()

    def _without_id(self, landed: DataFrame) -> int:
        """Return how many rows get no id under new id settings, because their bronze records are deleted."""
        if self._source.unique_by is None or not self._again.are_other_ids:
            return 0
        rows = self._again.rows_at(tables.version_of(self._lake.spark, self._paths.clean))
        rows = rows.where(identity.id_of_row(self._source).isNull())
        return rows.join(landed.select(*_KEYS), _KEYS, "left_anti").count()

    def _keep_one(self, lie: Column) -> int:
        """Remove duplicate rows and dead letters of the same record. Return how many rows were removed."""
        tables.keep_one(self._lake.spark, self._paths.dead, ("id",), lie)
        return tables.keep_one(self._lake.spark, self._paths.clean, _KEYS, lie, why=Why.CORRECTED)

    def _write(self, work: DataFrame, found: Row, lie: Column) -> None:
        """Write dead letters, then silver. Finally, close the dead letters of records now in silver.

        A record that a replay has moved to silver, but that has no dead letter, gets a closed one.
        """
        if found["_refused"]:
            self._insert_letters(work.where("_refused"), lie)
        if found["_reopened"] or found["_reworded"]:
            own_time = own_time_by(F.col("reasons")).alias(OWN_TIME)
            again = work.where("_reopened OR _reworded").select(
                F.col("_letter").alias("id"), "reasons", own_time
            )
            is_sound = identity.is_sound_alone(F.col("s.reasons"))
            values = {
                "status": status_by(F.col("s.reasons")),
                "reasons": F.col("s.reasons"),
                OWN_TIME: F.when(is_sound, F.coalesce(f"t.{OWN_TIME}", f"s.{OWN_TIME}")),
            }
            self._amend(again, F.col("t.status") != DISCARDED, values, lie)
        if self._is_whole:
            self._rename(work.where(_RENAMED), lie)
        if found["_inserted"] or found["_changed"] or found["_removed"]:
            rows = work.where("_inserted OR _changed OR _removed").select(
                "_row.*", F.col("_removed").alias(DELETED)
            )
            tables.replace(rows, self._paths.clean, _KEYS, within=lie, why=Why.CORRECTED)
        if found["_accepted"]:
            closed = work.where("_accepted").select(F.col("_letter").alias("id"))
            self._amend(closed, F.col("t.status") != REPLAYED, {"status": F.lit(REPLAYED)}, lie)
        if found["_lost"]:
            said = "another writer deleted this replayed record's letter, including its reasons"
            admitted = work.where("_lost").withColumn("reasons", F.array(reason(LOST, None, F.lit(said))))
            self._insert_letters(admitted, lie, status=F.lit(REPLAYED))

    def _insert_letters(self, rows: DataFrame, lie: Column, **values: Column) -> None:
        """Insert dead letters for records that have none. `values` overrides columns of the dead letters."""
        letters = to_dead_letters(filter_dead(rows), self._origin).withColumns(values)
        tables.insert_missing(letters, self._paths.dead, ("id",), lie)

    def _rename(self, letters: DataFrame, lie: Column) -> None:
        """Update the ids and sequences in dead letters according to the current settings."""
        id_, sequence = self._ids()
        known = letters.select(F.col("_letter").alias("id"), id_.alias("of"), sequence.alias("place"))
        values = {"unique_id": F.col("s.of"), "sequence": F.col("s.place")}
        tables.update_matched(known, self._paths.dead, ("id",), F.lit(True), values, within=lie)

    def _is_renamed(self) -> Column:
        id_, sequence = self._ids()
        known = F.struct(id_.alias("unique_id"), sequence.alias("sequence"))
        is_other = ~F.col("_known_as").eqNullSafe(known)
        if not self._again.are_other_ids:  # the record's id may have been unknown or misread when it landed
            is_other = id_.isNotNull() & ~F.col("_known_as.unique_id").eqNullSafe(id_)
        return F.col("_letter").isNotNull() & is_other

    def _ids(self) -> tuple[Column, Column]:
        """Return columns with a validated record's id and sequence, or nulls if the source has no ids."""
        if self._source.unique_by is None:
            return F.lit(None).cast("string"), F.lit(None).cast("long")
        return F.col(identity.OF_ID), F.col(identity.OF_SEQUENCE)

    def _amend(self, rows: DataFrame, where: Column, values: Mapping[str, Column], lie: Column) -> None:
        new = attempted(values, self._now)
        tables.update_matched(rows, self._paths.dead, ("id",), where, new, within=lie)


def _work() -> dict[str, Column]:
    """Return the conditions for changes to a record: three for its silver row, then those for its letter."""
    stands, passes = F.col("_standing").isNotNull(), identity.is_sound()
    has_letter = F.col("_letter").isNotNull()
    same_reasons = F.sort_array("reasons.rule").eqNullSafe(F.sort_array("_said.rule"))
    work = {
        "_inserted": ~stands & passes,
        "_changed": stands & passes & ~F.col("_row").eqNullSafe(F.col("_standing")),
        "_removed": stands & ~passes,
        "_refused": ~passes & ~has_letter,
        "_reopened": ~passes & (F.col("_status") == REPLAYED),
        "_reworded": ~passes
        & F.col("_status").isin(OPEN, RESENT, *identity.CLOSED)
        & (~same_reasons | (F.col("_status") != status_by(F.col("reasons")))),
        "_accepted": passes & has_letter & (F.col("_status") != REPLAYED),
        "_lost": passes & ~has_letter & F.col("admitted").isNotNull(),
    }
    return {name: F.coalesce(condition, F.lit(False)) for name, condition in work.items()}


def _found(work: DataFrame) -> Row:
    """Return the number of changes of each kind, and the affected event-time range in microseconds."""
    moves = F.col("_inserted") | F.col("_changed") | F.col("_removed")
    old, new = F.col("_standing.event_time"), F.when(~F.col("_removed"), F.col("event_time"))
    (found,) = work.agg(
        *(F.count_if(name).alias(name) for name in _work()),
        F.unix_micros(F.min(F.when(moves, F.least(old, new)))).alias("first"),
        F.unix_micros(F.max(F.when(moves, F.greatest(old, new)))).alias("last"),
    ).collect()
    return found
