"""Rebuild silver: revalidate every processed record with the current rules and settings.

A rebuild first writes newly refused records to the dead letters, and then changes silver in one commit.
Finally, it closes the letters of records that are now in silver. Every record is therefore always in silver
or in the dead letters. If a rebuild is killed, rerun it to finish.

Records deleted from silver by hand are restored. If a RESTORE of bronze caused a record to be read again,
silver may contain it twice; the rebuild then keeps one row. Records from an unfinished silver micro-batch
remain unchanged. Records skipped with --skip remain unchanged too; only a replay retries them. Gold does not
process the changes unless the source has `sequence_by`, because it skips commits that rewrite rows.

The rebuild holds an exclusive lease on the source's letters (`lakehouse.storage.tables.leases`), so no
replay, discard or other rebuild interferes with its writes. A record's outcome depends on other records with
the same id. A source whose records have ids is therefore rebuilt as a whole, and its silver waits for the
rebuild. Bronze and gold continue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from functools import reduce

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from lakehouse.engine.formats.decode import decoded
from lakehouse.engine.layers import silver
from lakehouse.engine.layers.frozen import Frozen
from lakehouse.engine.layers.holding import holding
from lakehouse.engine.layers.identities import columns_of_ids
from lakehouse.engine.layers.letters import are_processed, without_leaving
from lakehouse.engine.ops_tables import fronts, lateness, retained
from lakehouse.engine.progress import cuts
from lakehouse.engine.records import comparing, identity
from lakehouse.engine.records.dead_letters import (
    DISCARDED,
    LOST,
    OPEN,
    REPLAYED,
    RESENT,
    attempted,
    is_skipped,
    own_time_by,
    status_by,
    to_dead_letters,
)
from lakehouse.engine.records.fields import reason
from lakehouse.engine.records.shown import shown
from lakehouse.engine.records.validation import filter_dead, judge, late_reason, silver_schema
from lakehouse.storage import tables
from lakehouse.storage.spark.execution import Amount, executing_a_handful
from lakehouse.storage.spark.offset_ranges import OffsetRange, ranges_of, runs_of, within
from lakehouse.storage.tables import DELETED, Lake, Why, from_micros
from lakehouse.streams.contract import COORDINATES, OWN_TIME
from lakehouse.streams.definition import Source, Stream

_KEYS = list(COORDINATES)
_RENAMED = "_renamed"

_Seen = tuple[DataFrame, DataFrame, DataFrame]
"""The processed records, and silver's rows and letters at one version, which contain all of them."""


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
    """The result of a rebuild: counts of validated records, changed silver rows, and letters.

    newly_refused   new and reopened letters
    newly_accepted  letters that are now replayed
    skipped         records that were skipped with --skip and therefore not validated
    made_anew       silver was built with different id settings
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
    other record that the current rules accept is late if it is before its watermark. The watermark uses the
    lateness that was allowed when the record landed (`lakehouse.engine.ops_tables.lateness`). Backfill
    records are not late. With `allow_late`, a record is late only if retention has deleted the rows that it
    belongs to.

    Records deleted from bronze are not validated. Discarded letters remain discarded. The layers may run at
    the same time. A rerun that finds nothing to do writes no rows. A dry run takes no lease, writes nothing,
    and returns the expected result.

    Raises TableError if a replay, a discard or another rebuild is running for one of the sources.
    """
    places = (_SourceRebuild(lake, stream, source, now) for source in stream.sources)
    done = (place.rebuild(span, allow_late=allow_late, dry_run=dry_run) for place in places)
    return reduce(SilverRebuilt.__add__, done, SilverRebuilt())


class _SourceRebuild:
    """The rebuild of one source's silver table."""

    def __init__(self, lake: Lake, stream: Stream, source: Source, now: datetime) -> None:
        self._lake = lake
        self._stream = stream
        self._source = source
        self._now = now
        self._origin = silver.origin_of(stream, source, now)
        self.paths = silver.opened(lake, source)
        self._frozen = Frozen(lake, stream, source)
        self._are_other_ids = lake.is_made_otherwise(silver.spec(source))

    def rebuild(self, span: Landed, *, allow_late: bool, dry_run: bool) -> SilverRebuilt:
        """Rebuild alone, and record the current id settings at the end; a dry run needs neither."""
        is_small = self._is_small
        with ExitStack() as held:
            if not dry_run:
                held.enter_context(holding(self._lake, self._source, "rebuild", is_whole=self.is_whole))
                held.enter_context(self._lake.made_anew(silver.spec(self._source), columns_of_ids))
            if is_small:
                held.enter_context(executing_a_handful(self._lake.spark))
            return self._rebuild(span, allow_late=allow_late, dry_run=dry_run)

    @property
    def is_whole(self) -> bool:
        """Whether the rebuild must cover all of bronze: records have ids, or silver was built with ids."""
        return self._source.unique_by is not None or self._are_other_ids

    def _rebuild(self, span: Landed, *, allow_late: bool, dry_run: bool) -> SilverRebuilt:
        landed = tables.read(self._lake.spark, self.paths.bronze)
        if not self.is_whole:
            landed = landed.where(span.condition())
        ranges = ranges_of(landed)
        if not ranges:
            return SilverRebuilt()
        landed, skipped = self.without_skipped(landed, ranges)
        again = 0 if dry_run else self._keep_one(within(ranges))
        judged = self.verdicts(landed, ranges, allow_late=allow_late)
        kinds = _work() | ({_RENAMED: self._is_renamed()} if self.is_whole else {})
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
                made_anew=self._are_other_ids,
                without_id=self._without_id(landed),
                first=None if found.first is None else from_micros(found.first),
                last=None if found.last is None else from_micros(found.last),
            )
        finally:
            work.unpersist()

    def _without_id(self, landed: DataFrame) -> int:
        """Return how many rows get no id from new id settings, because their records are gone from bronze."""
        if self._source.unique_by is None or not self._are_other_ids:
            return 0
        rows = self._clean(tables.version_of(self._lake.spark, self.paths.clean))
        rows = rows.where(identity.id_of_row(self._source).isNull())
        return rows.join(landed.select(*_KEYS), _KEYS, "left_anti").count()

    def _keep_one(self, lie: Column) -> int:
        """Remove duplicate rows and letters for the same record. Return the number of removed rows."""
        tables.keep_one(self._lake.spark, self.paths.dead, ("id",), lie)
        return tables.keep_one(self._lake.spark, self.paths.clean, _KEYS, lie, why=Why.CORRECTED)

    def verdicts(self, landed: DataFrame, ranges: Sequence[OffsetRange], *, allow_late: bool) -> DataFrame:
        """Return the verdicts on processed records, after comparing records with the same ids."""
        done = self._done()  # read first, so the tables contain all of these records
        version = tables.version_of(self._lake.spark, self.paths.clean)
        seen = done, self._clean(version), self._letters(version)
        judged = self._once(self.judged(landed, ranges, seen, allow_late=allow_late))
        return judged if self._source.unique_by is None else self._once(self.among_their_ids(judged, seen))

    def _once(self, rows: DataFrame) -> DataFrame:
        """Checkpoint a small table's rows.

        Otherwise, Spark would plan them again for each use, which takes most of the time.
        """
        return rows.localCheckpoint() if self._is_small else rows

    @property
    def _is_small(self) -> bool:
        return tables.amount_in(self._lake.spark, [self.paths.bronze]) is Amount.FEW

    def without_skipped(self, landed: DataFrame, ranges: Sequence[OffsetRange]) -> tuple[DataFrame, int]:
        """Return the records that were not skipped with --skip, and the number of skipped records."""
        letters = tables.read(self._lake.spark, self.paths.dead).where(within(ranges))
        skipped = runs_of(letters.where((F.col("job") == self._origin.job) & is_skipped()))
        return landed.where(~within(skipped)), sum(one.last - one.first + 1 for one in skipped)

    def judged(
        self, landed: DataFrame, ranges: Sequence[OffsetRange], seen: _Seen, *, allow_late: bool
    ) -> DataFrame:
        """Return the verdicts on processed records, together with the records' silver rows and letters.

        `_standing` is the silver row, or null if the record has no row. `_letter`, `_status` and `_said` are
        the letter's id, status and reasons, or null if the record has no letter.
        """
        names, (done, clean, letters) = silver_schema(self._source).names, seen
        standing = clean.where(within(ranges)).select(*_KEYS, F.struct(*names).alias("_standing"))
        letters = letters.where(within(ranges)).select(
            *_KEYS,
            F.col("id").alias("_letter"),
            F.col("status").alias("_status"),
            F.col("reasons").alias("_said"),
            F.col("admitted").alias("_admitted"),
            F.struct("unique_id", "sequence").alias("_known_as"),
        )
        is_lost = F.col("_done") & F.col("_status").isNull()
        is_decided = F.col("_status").isin(DISCARDED, RESENT) & ~self._was_answered_by_id()
        finished = F.col("_standing").isNotNull() | ~is_decided | is_lost
        judged = judge(decoded(landed, self._source, self._lake.root), self._source, None)
        before = silver.fronts_before(self._lake, self._source, landed)
        judged = judged.join(F.broadcast(before), "ingested_at")
        known = (
            judged.join(standing, _KEYS, "left")
            .join(letters, _KEYS, "left")
            .join(done.where(within(ranges)), _KEYS, "left")
        )
        known = known.where(finished)
        row = F.struct(*(F.col(name) for name in names))
        let_in = F.coalesce("_standing.admitted", "_admitted")
        known = known.withColumn("admitted", let_in).withColumn("_row", row)
        known = known.withColumn("reasons", self._reasons(allow_late=allow_late))
        return known if self._source.unique_by is None else self._closed(known, clean)

    def _clean(self, version: int) -> DataFrame:
        """Return silver's rows with all declared columns. A table built without ids lacks the id columns."""
        rows = tables.read_version(self._lake.spark, self.paths.clean, version)
        return tables.as_declared(rows, silver_schema(self._source))

    def _was_answered_by_id(self) -> Column:
        """Return whether a letter is `resent` because of earlier id settings, not by a user's decision."""
        last = F.try_element_at("_said", F.lit(-1))
        return F.lit(self._are_other_ids) & (last["rule"] == RESENT) & last["column"].isNotNull()

    def _closed(self, known: DataFrame, clean: DataFrame) -> DataFrame:
        """Mark records whose ids retention has closed. Their silver rows and reasons remain unchanged."""
        self._frozen.look()
        marked = self._frozen.closing(known.withColumn("_own", F.col("reasons")), clean)
        if marked is None:
            return known
        stands = F.col("_standing").isNotNull()
        is_closed = F.col(identity.IS_CLOSED) & ~stands
        is_said = is_closed & F.col("_said").isNotNull() & (F.col("_status") != REPLAYED)
        reasons = F.when(stands, F.col("_own")).when(is_said, F.col("_said")).otherwise(F.col("reasons"))
        return marked.withColumns({"reasons": reasons, identity.IS_CLOSED: is_closed}).drop("_own")

    def _letters(self, version: int) -> DataFrame:
        """Return the letters of records that silver had processed at a version."""
        spark, paths, query = self._lake.spark, self.paths, self._origin.job
        are_own = are_processed(spark, query, paths.clean, version)
        found = tables.read(spark, paths.dead).where(are_own)
        return without_leaving(found, query, version, bronze=paths.bronze, clean=paths.clean, dead=paths.dead)

    def among_their_ids(self, judged: DataFrame, seen: _Seen) -> DataFrame:
        """Return the verdicts after comparing records with the same ids, in landing order.

        Silver rows and letters count as landed earlier if retention has deleted their records.
        """
        source, places, (_, clean, letters) = self._source, judged.select(*_KEYS), seen
        older = clean.join(places, _KEYS, "left_anti")
        letters = letters.where(identity.are_compared()).join(places, _KEYS, "left_anti")
        own = judged.where(F.col(identity.OF_ID).isNotNull())
        letters = self._frozen.with_taken_letters(letters, own)
        return comparing.with_outcome(judged, comparing.compared(source, own, older, letters))

    def _done(self) -> DataFrame:
        """Return the records that silver's finished micro-batches have read."""
        spark, path = self._lake.spark, self.paths.bronze
        read = cuts.position_of(spark, silver.query_name(self._source), self.paths.clean, path)
        rows = cuts.read_up_to(spark, path, read)
        return rows.select(*_KEYS).distinct().withColumn("_done", F.lit(True))

    def _reasons(self, *, allow_late: bool) -> Column:
        """Return the reasons for refusing a record. Lateness is a reason only if the record is not in silver.

        If silver was built with different id settings, records in silver can also be late: they may have been
        accepted only because their id was known.
        """
        is_admitted, stands = F.col("admitted").isNotNull(), F.col("_standing").isNotNull()
        of_time = F.array(F.lit("future"), F.lit(identity.LATE))
        rest = F.filter("reasons", lambda one: ~F.array_contains(of_time, one.getField("rule")))
        reasons = F.when(is_admitted, rest).otherwise(F.col("reasons"))
        closed = F.lit(retained.closed_before(self._lake, self._stream, self._source)).cast("timestamp")
        by_front = F.lit(None).cast("timestamp")
        if not allow_late:
            by_front = lateness.read(self._lake, self._origin.job).watermark(F.col(fronts.FRONT))
        was_late = identity.late_in("_said")
        in_time = is_admitted if self._are_other_ids else stands | F.col("_status").isin(*identity.CLOSED)

        def unless_late(watermark: Column) -> Column:
            late = F.array_compact(F.array(late_reason(watermark)))
            return F.when(F.size(reasons) == 0, late).otherwise(reasons)

        return (
            F.when(in_time, reasons)
            .when(stands, unless_late(by_front))
            .when(is_admitted, unless_late(closed))
            .when(F.lit(not allow_late) & (F.size(was_late) > 0), F.concat(reasons, was_late))
            .otherwise(unless_late(F.greatest(by_front, closed)))
        )

    def _write(self, work: DataFrame, found: Row, lie: Column) -> None:
        """Write newly refused letters, then silver. Finally, close the letters of records now in silver.

        A record that a replay admitted and that has no letter gets one that is closed.
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
        if self.is_whole:
            self._rename(work.where(_RENAMED), lie)
        if found["_inserted"] or found["_changed"] or found["_removed"]:
            rows = work.where("_inserted OR _changed OR _removed").select(
                "_row.*", F.col("_removed").alias(DELETED)
            )
            tables.replace(rows, self.paths.clean, _KEYS, within=lie, why=Why.CORRECTED)
        if found["_accepted"]:
            closed = work.where("_accepted").select(F.col("_letter").alias("id"))
            self._amend(closed, F.col("t.status") != REPLAYED, {"status": F.lit(REPLAYED)}, lie)
        if found["_lost"]:
            said = "another writer deleted the letter of this replayed record, and its reasons with it"
            admitted = work.where("_lost").withColumn("reasons", F.array(reason(LOST, None, F.lit(said))))
            self._insert_letters(admitted, lie, status=F.lit(REPLAYED))

    def _insert_letters(self, rows: DataFrame, lie: Column, **values: Column) -> None:
        """Insert letters for records that have none; `values` replace columns of the letters."""
        letters = to_dead_letters(filter_dead(rows), self._origin).withColumns(values)
        tables.insert_missing(letters, self.paths.dead, ("id",), lie)

    def _rename(self, letters: DataFrame, lie: Column) -> None:
        """Set the letters' ids and sequences according to the current settings."""
        id_, sequence = self._ids()
        known = letters.select(F.col("_letter").alias("id"), id_.alias("of"), sequence.alias("place"))
        values = {"unique_id": F.col("s.of"), "sequence": F.col("s.place")}
        tables.update_matched(known, self.paths.dead, ("id",), F.lit(True), values, within=lie)

    def _is_renamed(self) -> Column:
        id_, sequence = self._ids()
        known = F.struct(id_.alias("unique_id"), sequence.alias("sequence"))
        is_other = ~F.col("_known_as").eqNullSafe(known)
        if not self._are_other_ids:  # the record's id may have been unknown, or misread, when it landed
            is_other = id_.isNotNull() & ~F.col("_known_as.unique_id").eqNullSafe(id_)
        return F.col("_letter").isNotNull() & is_other

    def _ids(self) -> tuple[Column, Column]:
        """Return a judged record's id and sequence, or null if its source has no ids."""
        if self._source.unique_by is None:
            return F.lit(None).cast("string"), F.lit(None).cast("long")
        return F.col(identity.OF_ID), F.col(identity.OF_SEQUENCE)

    def _amend(self, rows: DataFrame, where: Column, values: Mapping[str, Column], lie: Column) -> None:
        new = attempted(values, self._now)
        tables.update_matched(rows, self.paths.dead, ("id",), where, new, within=lie)


def is_waiting(lake: Lake, source: Source) -> bool:
    """Return whether silver waits during a rebuild of the source, because its records have or had ids."""
    return source.unique_by is not None or lake.is_made_otherwise(silver.spec(source))


def differing(lake: Lake, stream: Stream, source: Source, now: datetime) -> DataFrame:
    """Return the records whose silver row or letter differs from the result of revalidating bronze.

    The grain is one row per record, and the key is its coordinates. `what` describes the difference. Bronze
    is revalidated as of `now` (UTC). Nothing is written.
    """
    place = _SourceRebuild(lake, stream, source, now)
    landed = tables.read(lake.spark, place.paths.bronze)
    ranges = ranges_of(landed)
    landed, _ = place.without_skipped(landed, ranges)
    stands = F.col("_standing").isNotNull()
    should = F.when(identity.is_sound(), F.lit("a row")).otherwise(status_by(F.col("reasons")))
    found = F.when(stands, F.lit("a row")).otherwise(F.col("_status"))
    says = F.concat(F.lit("it is "), found, F.lit(", but should be "), should)
    is_wrong = found.isNotNull() & (found != should)
    what = F.when(is_wrong, says).when(stands, _said_other())
    known = place.verdicts(landed, ranges, allow_late=False).withColumn("_other", _other_value(source))
    return known.select(*_KEYS, what.alias("what")).where("what IS NOT NULL")


def _other_value(source: Source) -> Column:
    """Return the first column in which a silver row differs from bronze, with both values, or null."""

    def of(name: str) -> Column:
        there, here = (F.col(f"{side}.{name}") for side in ("_standing", "_row"))
        texts = there.cast("string").alias("there"), here.cast("string").alias("here")
        return F.when(~there.eqNullSafe(here), F.struct(F.lit(name).alias("name"), *texts))

    return F.coalesce(*map(of, silver_schema(source).names))


def _said_other() -> Column:
    there, here = (F.coalesce(shown(F.col(f"_other.{side}")), F.lit("null")) for side in ("there", "here"))
    said = F.concat(F.col("_other.name"), F.lit(" is "), there, F.lit(", but should be "), here)
    return F.when(F.col("_other").isNotNull(), said)


def _work() -> dict[str, Column]:
    """Return a record's required changes: the first three affect its silver row, the others its letter."""
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
