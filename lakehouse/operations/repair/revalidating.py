"""Revalidate processed records with the current settings, to compute the expected silver rows and letters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse.engine.formats.decode import decoded
from lakehouse.engine.layers import silver
from lakehouse.engine.layers.frozen import Frozen
from lakehouse.engine.layers.letters import are_processed, without_leaving
from lakehouse.engine.ops_tables import fronts, lateness, retained
from lakehouse.engine.progress import cuts
from lakehouse.engine.records import comparing, identity
from lakehouse.engine.records.dead_letters import DISCARDED, REPLAYED, RESENT, is_skipped, status_by
from lakehouse.engine.records.shown import shown
from lakehouse.engine.records.validation import judge, late_reason, silver_schema
from lakehouse.storage import tables
from lakehouse.storage.spark.execution import Amount
from lakehouse.storage.spark.offset_ranges import OffsetRange, ranges_of, runs_of, within
from lakehouse.storage.tables import Lake
from lakehouse.streams.contract import COORDINATES
from lakehouse.streams.definition import Source, Stream

_KEYS = list(COORDINATES)

_Seen = tuple[DataFrame, DataFrame, DataFrame]
"""The processed records, and silver's rows and dead letters at a version that includes these records."""


class Revalidation:
    """The revalidation of one source's processed records. It only creates missing tables, and writes no rows.

    `are_other_ids` says whether silver was built with different id settings.
    """

    def __init__(self, lake: Lake, stream: Stream, source: Source) -> None:
        self._lake = lake
        self._stream = stream
        self._source = source
        self._query = silver.query_name(source)
        self.paths = silver.opened(lake, source)
        self._frozen = Frozen(lake, stream, source)
        self.are_other_ids = lake.is_made_otherwise(silver.spec(source))

    def verdicts(self, landed: DataFrame, ranges: Sequence[OffsetRange], *, allow_late: bool) -> DataFrame:
        """Return the verdicts on processed records, after comparing records with the same ids."""
        done = self._done()  # read first, so the tables contain all of these records
        version = tables.version_of(self._lake.spark, self.paths.clean)
        seen = done, self.rows_at(version), self._letters(version)
        judged = self._once(self._judged(landed, ranges, seen, allow_late=allow_late))
        return judged if self._source.unique_by is None else self._once(self._among_their_ids(judged, seen))

    def _once(self, rows: DataFrame) -> DataFrame:
        """Checkpoint a small table's rows. Otherwise, Spark would plan them again for each use."""
        return rows.localCheckpoint() if self.is_small else rows

    @property
    def is_small(self) -> bool:
        """Whether bronze is so small that query planning takes most of the time."""
        return tables.amount_in(self._lake.spark, [self.paths.bronze]) is Amount.FEW

    def landed(self, since: datetime | None) -> DataFrame:
        """Return bronze's records, or only those that landed at a time (UTC) or later.

        If records have ids, earlier records that a replay has admitted since then are included, because they
        are compared with later ones in the order of their admission. All other records are then earlier.
        """
        spark, rows = self._lake.spark, tables.read(self._lake.spark, self.paths.bronze)
        if since is None:
            return rows
        chosen, after = F.col("ingested_at") >= F.lit(since), F.col("admitted.after") >= F.lit(since)
        if self._source.unique_by is not None:
            kept = (self.paths.clean, self.paths.dead)
            admitted = (tables.read(spark, path).where(~chosen & after).select(*_KEYS) for path in kept)
            chosen |= within(runs_of(reduce(DataFrame.union, admitted).distinct()))
        return rows.where(chosen)

    def without_skipped(self, landed: DataFrame, ranges: Sequence[OffsetRange]) -> tuple[DataFrame, int]:
        """Return the records that were not skipped with --skip, and the number of skipped records."""
        letters = tables.read(self._lake.spark, self.paths.dead).where(within(ranges))
        skipped = runs_of(letters.where((F.col("job") == self._query) & is_skipped()))
        return landed.where(~within(skipped)), sum(one.last - one.first + 1 for one in skipped)

    def _judged(
        self, landed: DataFrame, ranges: Sequence[OffsetRange], seen: _Seen, *, allow_late: bool
    ) -> DataFrame:
        """Return the verdicts on processed records, together with their silver rows and dead letters.

        `_standing` is the silver row, or null if the record has no row. `_letter`, `_status` and `_said` are
        the dead letter's id, status and reasons, or null if the record has no dead letter.
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

    def rows_at(self, version: int) -> DataFrame:
        """Return silver's rows with all declared columns. A table built without ids lacks the id columns."""
        rows = tables.read_version(self._lake.spark, self.paths.clean, version)
        return tables.as_declared(rows, silver_schema(self._source))

    def _was_answered_by_id(self) -> Column:
        """Return the condition that a dead letter is `resent` due to earlier id settings, not by a user."""
        last = F.try_element_at("_said", F.lit(-1))
        return F.lit(self.are_other_ids) & (last["rule"] == RESENT) & last["column"].isNotNull()

    def _closed(self, known: DataFrame, clean: DataFrame) -> DataFrame:
        """Mark records whose ids retention has closed to new records. Rows and reasons remain unchanged."""
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
        """Return the dead letters of the records that silver had processed at this version."""
        spark, paths, query = self._lake.spark, self.paths, self._query
        are_own = are_processed(spark, query, paths.clean, version)
        found = tables.read(spark, paths.dead).where(are_own)
        return without_leaving(found, query, version, bronze=paths.bronze, clean=paths.clean, dead=paths.dead)

    def _among_their_ids(self, judged: DataFrame, seen: _Seen) -> DataFrame:
        """Return the verdicts after comparing records with the same ids, in landing order.

        Silver rows and dead letters whose bronze records retention has deleted count as landed earlier.
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
        read = cuts.position_of(spark, self._query, self.paths.clean, path)
        rows = cuts.read_up_to(spark, path, read)
        return rows.select(*_KEYS).distinct().withColumn("_done", F.lit(True))

    def _reasons(self, *, allow_late: bool) -> Column:
        """Return the reasons for refusing a record. Lateness is a reason only if the record is not in silver.

        If silver was built with different id settings, records in silver can also be late: they might have
        been accepted only because their id was known.
        """
        is_admitted, stands = F.col("admitted").isNotNull(), F.col("_standing").isNotNull()
        of_time = F.array(F.lit("future"), F.lit(identity.LATE))
        rest = F.filter("reasons", lambda one: ~F.array_contains(of_time, one.getField("rule")))
        reasons = F.when(is_admitted, rest).otherwise(F.col("reasons"))
        closed = F.lit(retained.closed_before(self._lake, self._stream, self._source)).cast("timestamp")
        by_front = F.lit(None).cast("timestamp")
        if not allow_late:
            by_front = lateness.read(self._lake, self._query).watermark(F.col(fronts.FRONT))
        was_late = identity.late_in("_said")
        in_time = is_admitted if self.are_other_ids else stands | F.col("_status").isin(*identity.CLOSED)

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


def differing(lake: Lake, stream: Stream, source: Source, since: datetime | None = None) -> DataFrame:
    """Return the records whose silver row or dead letter differs from the result of revalidating bronze.

    The grain is one row per record, and the key is its coordinates. `what` describes the difference. With
    `since` (UTC), only records that landed then or later are validated; silver's rows and the dead letters of
    earlier records with the same ids count as they are. Nothing is written.
    """
    again = Revalidation(lake, stream, source)
    landed = again.landed(since)
    ranges = ranges_of(landed)
    landed, _ = again.without_skipped(landed, ranges)
    stands = F.col("_standing").isNotNull()
    should = F.when(identity.is_sound(), F.lit("a row")).otherwise(status_by(F.col("reasons")))
    found = F.when(stands, F.lit("a row")).otherwise(F.col("_status"))
    says = F.concat(F.lit("it is "), found, F.lit(", but should be "), should)
    is_wrong = found.isNotNull() & (found != should)
    what = F.when(is_wrong, says).when(stands, _said_other())
    known = again.verdicts(landed, ranges, allow_late=False).withColumn("_other", _other_value(source))
    return known.select(*_KEYS, what.alias("what")).where("what IS NOT NULL")


def _other_value(source: Source) -> Column:
    """Return the first column that differs between silver and bronze, with both values, or null if none."""

    def of(name: str) -> Column:
        there, here = (F.col(f"{side}.{name}") for side in ("_standing", "_row"))
        texts = there.cast("string").alias("there"), here.cast("string").alias("here")
        return F.when(~there.eqNullSafe(here), F.struct(F.lit(name).alias("name"), *texts))

    return F.coalesce(*map(of, silver_schema(source).names))


def _said_other() -> Column:
    there, here = (F.coalesce(shown(F.col(f"_other.{side}")), F.lit("null")) for side in ("there", "here"))
    said = F.concat(F.col("_other.name"), F.lit(" is "), there, F.lit(", but should be "), here)
    return F.when(F.col("_other").isNotNull(), said)
