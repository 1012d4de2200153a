"""Silver rebuilt: every record that it has finished with is judged again under today's rules and settings.

A rebuild first writes newly refused records to the dead letters, then changes silver in one commit, then
closes the letters of records that are in silver now. So every record is in at least one of both at every
moment; if a rebuild is killed, rerun it to finish. A record that somebody has deleted from silver comes back.
If a record is there twice, because a RESTORE of bronze had it read again, one row stays. Records of a
micro-batch that silver is still writing are left alone. Gold's stream does not follow, because it skips
commits that rewrite rows. Meanwhile the rebuild holds the source's letters exclusively
(`lakehouse.tables.leases`): no replay, discard or other rebuild comes between its writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from importlib.metadata import version

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from lakehouse import tables
from lakehouse.layers import silver
from lakehouse.ops import lateness, retained
from lakehouse.progress import cuts
from lakehouse.records.dead_letters import DISCARDED, OPEN, REPLAYED, LetterOrigin, attempted, to_dead_letters
from lakehouse.records.offsets import OffsetRange, ranges_of, within
from lakehouse.records.validation import (
    COORDINATES,
    OWN_TIME,
    clean_schema,
    filter_dead,
    judge,
    late_reason,
)
from lakehouse.stream import Source, Stream
from lakehouse.tables import DELETED, HighWaterMark, Lake, from_micros, leases

_KEYS = list(COORDINATES)


@dataclass(frozen=True)
class Landed:
    """The Kafka records with a timestamp in [since, until), UTC; null: unbounded on that side.

    One without a timestamp counts by its landing.
    """

    since: datetime | None = None
    until: datetime | None = None

    def condition(self) -> Column:
        """Return the condition on bronze rows."""
        ends = {
            "since": _at(lambda time: time >= F.lit(self.since)),
            "until": _at(lambda time: time < F.lit(self.until)),
        }
        given = (end for name, end in ends.items() if getattr(self, name) is not None)
        return reduce(Column.__and__, given, F.lit(True))


def _at(is_within: Callable[[Column], Column]) -> Column:
    """Return a condition on when a record was sent, in a form by which files are skipped."""
    time = F.col("timestamp")
    return is_within(time) | (time.isNull() & is_within(F.col("ingested_at")))


@dataclass(frozen=True)
class SilverRebuilt:
    """What a rebuild did: records judged, silver's rows by outcome, and letters.

    `newly_refused` counts letters that are new or open again, `newly_accepted` those that are now replayed.
    `first` and `last` are the least and the greatest event time (UTC), old or new, of rows that were
    inserted, removed or changed; null for none.
    """

    judged: int = 0
    inserted: int = 0
    changed: int = 0
    removed: int = 0
    newly_refused: int = 0
    newly_accepted: int = 0
    first: datetime | None = None
    last: datetime | None = None

    def __add__(self, other: SilverRebuilt) -> SilverRebuilt:
        """Return the sum of both."""
        return SilverRebuilt(
            self.judged + other.judged,
            self.inserted + other.inserted,
            self.changed + other.changed,
            self.removed + other.removed,
            self.newly_refused + other.newly_refused,
            self.newly_accepted + other.newly_accepted,
            min((at for at in (self.first, other.first) if at is not None), default=None),
            max((at for at in (self.last, other.last) if at is not None), default=None),
        )


def rebuild_silver(
    lake: Lake,
    stream: Stream,
    span: Landed,
    now: datetime,
    *,
    allow_late: bool = False,
) -> SilverRebuilt:
    """Judge again what silver has finished with, and correct silver and the dead letters.

    Records in silver came in time and are not late. A letter for lateness stays. A record that today's rules
    would accept, but that lies before the watermark, is now late: by the lateness that was allowed when it
    came (`lakehouse.ops.lateness`), so one of a backfill is not. With `allow_late` neither applies, unless
    retention has taken the rows that a record belongs to; what it has taken from bronze is not judged.
    Discarded letters stay. The layers may run meanwhile. A rerun that finds nothing to do writes no row.
    Raises TableError while a replay, a discard or another rebuild of one of the sources is running.
    """
    places = (_SourceRebuild(lake, stream, source, now) for source in stream.sources)
    done = (place.rebuild(span, allow_late=allow_late) for place in places)
    return reduce(SilverRebuilt.__add__, done, SilverRebuilt())


class _SourceRebuild:
    """The records of one source, and their tables."""

    def __init__(self, lake: Lake, stream: Stream, source: Source, now: datetime) -> None:
        self._lake = lake
        self._stream = stream
        self._source = source
        self._now = now
        self._origin = LetterOrigin(
            stream.name, silver.STAGE, silver.query_name(source), None, version("lakehouse"), now
        )
        self._paths = silver.ensure(lake, source)

    def rebuild(self, span: Landed, *, allow_late: bool) -> SilverRebuilt:
        what = f"rebuild of {self._origin.job}"
        with leases.held_part(self._lake.spark, self._paths.dead, self._source.table, what, alone=True):
            return self._rebuild(span, allow_late=allow_late)

    def _rebuild(self, span: Landed, *, allow_late: bool) -> SilverRebuilt:
        landed = tables.read(self._lake.spark, self._paths.bronze).where(span.condition())
        ranges = ranges_of(landed)
        if not ranges:
            return SilverRebuilt()
        again = tables.keep_one(self._lake.spark, self._paths.clean, _KEYS, within(ranges))
        tables.keep_one(self._lake.spark, self._paths.dead, ("id",), within(ranges))
        judged = self._judged(landed, ranges, allow_late=allow_late)
        work = judged.withColumns(_work()).where(" OR ".join(_work())).dropDuplicates(_KEYS).persist()
        try:
            found = _found(work)
            self._write(work, found, within(ranges_of(work)))
            return SilverRebuilt(
                judged=judged.count(),
                inserted=found.inserted,
                changed=found.changed,
                removed=found.removed + again,
                newly_refused=found.refused + found.reopened,
                newly_accepted=found.accepted,
                first=None if found.first is None else from_micros(found.first),
                last=None if found.last is None else from_micros(found.last),
            )
        finally:
            work.unpersist()

    def _judged(self, landed: DataFrame, ranges: Sequence[OffsetRange], *, allow_late: bool) -> DataFrame:
        """Return the verdicts on records that silver has finished with, with the row and letter of each.

        `standing` is silver's row, null for none; `id`, `status` and `said` are the letter's.
        """
        names = clean_schema(self._source.contract).names
        done = self._done().where(within(ranges))  # read first: what it calls done is in the tables
        clean = tables.read(self._lake.spark, self._paths.clean).where(within(ranges))
        standing = clean.select(*_KEYS, F.struct(*names).alias("standing"))
        dead = tables.read(self._lake.spark, self._paths.dead).where(within(ranges))
        letters = dead.where(F.col("job") == self._origin.job).select(
            *_KEYS, "id", "status", F.col("reasons").alias("said")
        )
        is_lost = F.col("_done") & F.col("status").isNull()
        finished = F.col("standing").isNotNull() | (F.col("status") != DISCARDED) | is_lost
        judged = judge(landed, self._source, None)
        known = judged.join(standing, _KEYS, "left").join(letters, _KEYS, "left").join(done, _KEYS, "left")
        known = known.where(finished)
        row = F.struct(*(F.col(name) for name in names))
        return known.withColumn("row", row).withColumn("reasons", self._reasons(allow_late=allow_late))

    def _done(self) -> DataFrame:
        """Return the records of silver's finished micro-batches."""
        spark, path = self._lake.spark, self._paths.bronze
        read = cuts.position_of(spark, silver.query_name(self._source), self._paths.clean, path)
        rows = cuts.read_up_to(spark, path, read)
        return rows.select(*_KEYS).distinct().withColumn("_done", F.lit(True))

    def _reasons(self, *, allow_late: bool) -> Column:
        """Return the reasons against a record, including lateness unless it is in silver."""
        reasons = F.col("reasons")
        closed = retained.closed_before(self._lake, self._stream, self._source)
        watermark = F.lit(closed).cast("timestamp")
        if allow_late and closed is None:
            return reasons
        if not allow_late:
            front = HighWaterMark(self._paths.clean, OWN_TIME).value(self._lake.spark)
            known = lateness.read(self._lake, self._origin.job)
            watermark = F.greatest(known.watermark(front), watermark)
        was_late = F.filter("said", lambda one: one.getField("rule") == "late")
        late_now = F.array_compact(F.array(late_reason(watermark)))
        return (
            F.when(F.col("standing").isNotNull(), reasons)
            .when(F.lit(not allow_late) & (F.size(was_late) > 0), F.concat(reasons, was_late))
            .when(F.size(reasons) == 0, late_now)
            .otherwise(reasons)
        )

    def _write(self, work: DataFrame, found: Row, lie: Column) -> None:
        """Write newly refused letters, then silver, then the letters of records that silver has now."""
        if found.refused:
            letters = to_dead_letters(filter_dead(work.where("refused")), self._origin)
            tables.insert_missing(letters, self._paths.dead, ("id",), lie)
        if found.reopened or found.reworded:
            again = work.where("reopened OR reworded").select("id", "reasons")
            values = {"status": F.lit(OPEN), "reasons": F.col("s.reasons")}
            self._amend(again, F.col("t.status") != DISCARDED, values, lie)
        if found.inserted or found.changed or found.removed:
            rows = work.where("inserted OR changed OR removed").select(
                "row.*", F.col("removed").alias(DELETED)
            )
            tables.replace(rows, self._paths.clean, _KEYS, within=lie)
        if found.accepted:
            closed = work.where("accepted").select("id")
            self._amend(closed, F.col("t.status") != REPLAYED, {"status": F.lit(REPLAYED)}, lie)

    def _amend(self, rows: DataFrame, where: Column, values: Mapping[str, Column], lie: Column) -> None:
        new = attempted(values, self._now)
        tables.update_matched(rows, self._paths.dead, ("id",), where, new, within=lie)


def _work() -> dict[str, Column]:
    """Return the work for a record: on its row, inserted to removed; on its letter, the others."""
    stands, passes, has_letter = (
        F.col("standing").isNotNull(),
        F.size("reasons") == 0,
        F.col("id").isNotNull(),
    )
    same_reasons = F.sort_array("reasons").eqNullSafe(F.sort_array("said"))
    work = {
        "inserted": ~stands & passes,
        "changed": stands & passes & ~F.col("row").eqNullSafe(F.col("standing")),
        "removed": stands & ~passes,
        "refused": ~passes & ~has_letter,
        "reopened": ~passes & (F.col("status") == REPLAYED),
        "reworded": ~passes & (F.col("status") == OPEN) & ~same_reasons,
        "accepted": passes & has_letter & (F.col("status") != REPLAYED),
    }
    return {name: F.coalesce(condition, F.lit(False)) for name, condition in work.items()}


def _found(work: DataFrame) -> Row:
    """Return the amount of work of each kind, and the span of event times (in microseconds) touched."""
    moves = F.col("inserted") | F.col("changed") | F.col("removed")
    old, new = F.col("standing.event_time"), F.when(~F.col("removed"), F.col("event_time"))
    (found,) = work.agg(
        *(F.count_if(name).alias(name) for name in _work()),
        F.unix_micros(F.min(F.when(moves, F.least(old, new)))).alias("first"),
        F.unix_micros(F.max(F.when(moves, F.greatest(old, new)))).alias("last"),
    ).collect()
    return found
