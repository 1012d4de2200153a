"""Replay dead letters into silver, or discard them.

A replay revalidates the bronze rows of open letters, using silver's code and the current rules and settings.
Rows that pass are inserted into silver unless they are already there. Their letters become `replayed` only
after these rows have been written. A killed replay can leave open letters whose rows are in silver. The next
replay or discard first closes these letters. However often a record is replayed, silver contains it once.

The stream itself can run at the same time, but silver waits if its records have ids. Replays, discards,
resolves, rebuilds and retention lock a source's letters, so only one of them runs at a time
(`lakehouse.engine.layers.holding`).

Records skipped with --skip could fail or hang again. They are validated only if the selection names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial, reduce
from typing import Any, Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse.engine.formats.decode import decoded
from lakehouse.engine.layers import identities, silver
from lakehouse.engine.layers.holding import holding
from lakehouse.engine.layers.identities import Settled
from lakehouse.engine.layers.letters import Verdicts, are_processed, put
from lakehouse.engine.ops_tables import fronts, lateness, retained
from lakehouse.engine.records.dead_letters import (
    DEAD_LETTERS,
    DISCARDED,
    OPEN,
    REPLAYED,
    Selection,
    attempted,
    count_by_rule,
    is_skipped,
    status_by,
    to_dead_letters,
)
from lakehouse.engine.records.identity import LATE, OF_ID, OF_SEQUENCE, is_sound, late_in
from lakehouse.engine.records.validation import filter_clean, judge
from lakehouse.storage import tables
from lakehouse.storage.spark.offset_ranges import OffsetRange, ranges_of, within
from lakehouse.storage.tables import Commit, Lake
from lakehouse.storage.tables.delta_internals import Snapshot
from lakehouse.storage.tables.specs import EPOCH
from lakehouse.streams.contract import COORDINATES
from lakehouse.streams.definition import Source, Stream

_KEYS = list(COORDINATES)
_DECIDED = "_decided"


class Counted:
    """Counts of dead letters, in total or by rule. Counts for several sources can be added."""

    def __add__(self, other: Self) -> Self:
        """Return the sum of the two counts."""
        theirs = vars(other)
        return type(self)(**{name: _added(mine, theirs[name]) for name, mine in vars(self).items()})


@dataclass(frozen=True)
class Replayed(Counted):
    """The result of a replay or dry run: counts of dead letters. Those not in silver remain open.

    passed         the record is now in silver, or would be
    there_already  the record was already in silver, so the letter is only closed
    failed         the record still breaks a rule
    gone           the bronze row no longer exists
    skipped        the record was skipped with --skip, and the selection does not name it
    in_flight      the letter is from an unfinished silver micro-batch
    failing        failed letters by rule; a letter that breaks two rules counts for both rules
    """

    passed: int = 0
    there_already: int = 0
    failed: int = 0
    gone: int = 0
    failing: Mapping[str, int] = field(default_factory=dict)
    skipped: int = 0
    in_flight: int = 0

    @property
    def asked(self) -> int:
        """The number of dead letters to replay, excluding those that were skipped or are in flight."""
        return self.passed + self.there_already + self.failed + self.gone


@dataclass(frozen=True)
class Discarded(Counted):
    """The result of a discard: how many dead letters were discarded, in total and by rule.

    A letter that breaks two rules counts for both rules. The `there_already` letters were left open by a
    killed replay: their records were in silver, and they are now `replayed`. Letters from an unfinished
    silver micro-batch (`in_flight`) remain open.
    """

    count: int = 0
    there_already: int = 0
    by_rule: Mapping[str, int] = field(default_factory=dict)
    in_flight: int = 0


def replay(
    lake: Lake,
    streams: Sequence[Stream],
    selection: Selection,
    now: datetime,
    *,
    allow_late: bool = False,
    dry_run: bool = False,
) -> Replayed:
    """Revalidate the selected open dead letters, and insert records that pass into silver exactly once.

    The allowed lateness is the current value or the value when the record landed, whichever is larger. With
    `allow_late`, a record is late only if retention has deleted the rows that it belongs to. A rerun finds
    only letters that still fail. Raises TableError while another process has locked a source's letters.

    A dry run takes no lease, writes nothing, and returns the expected result.
    """
    places = _places(lake, streams, selection, now)
    done = (one.replay(allow_late=allow_late, dry_run=dry_run) for one in places)
    return reduce(Replayed.__add__, done, Replayed())


def discard(lake: Lake, streams: Sequence[Stream], selection: Selection, now: datetime) -> Discarded:
    """Discard the selected open dead letters. A rerun finds none.

    Raises TableError while another process has locked a source's letters.
    """
    places = _places(lake, streams, selection, now)
    return reduce(Discarded.__add__, (one.discard() for one in places), Discarded())


def _places(
    lake: Lake, streams: Sequence[Stream], selection: Selection, now: datetime
) -> list[_SelectedLetters]:
    """Return the selected dead letters of each source that has some."""
    letters = lake.read_or_empty(DEAD_LETTERS).where(selection.condition() & _is_unsettled())
    jobs = {row.job for row in letters.select("job").distinct().collect()}
    return [
        _SelectedLetters(lake, stream, source, selection=selection, now=now)
        for stream in streams
        for source in stream.sources
        if silver.query_name(source) in jobs
    ]


class _SelectedLetters:
    """The selected dead letters of one source, and the source's tables."""

    def __init__(
        self, lake: Lake, stream: Stream, source: Source, *, selection: Selection, now: datetime
    ) -> None:
        self._lake = lake
        self._stream = stream
        self._source = source
        self._selected = selection.condition() & (F.col("job") == silver.query_name(source)) & _is_unsettled()
        self._leaves_skipped = not selection.names_skipped
        self._now = now
        self._paths = silver.paths_of(lake, source)

    def replay(self, *, allow_late: bool, dry_run: bool) -> Replayed:
        with nullcontext() if dry_run else self._holding("replay"):
            return self._replay(allow_late=allow_late, dry_run=dry_run)

    def discard(self) -> Discarded:
        with self._holding("discard"):
            return self._discard()

    def _holding(self, what: str) -> AbstractContextManager[None]:
        """Upgrade the source's tables, and lock its dead letters."""
        silver.ensure(self._lake, self._source)
        return holding(self._lake, self._source, what)

    def _replay(self, *, allow_late: bool, dry_run: bool) -> Replayed:
        letters, skipped, in_flight = self._due()
        letters = letters.persist()
        try:
            ranges = ranges_of(letters)
            there, waiting = self._settle(letters, ranges, dry_run=dry_run)
            judged = alone = self._judge(waiting, ranges, allow_late=allow_late).persist()
            try:
                judged = self._compared(alone) if dry_run else self._decided(alone)
                found, failed = _count(judged)
                passed = sound = found - failed
                if not dry_run:
                    passed = self._insert(judged, ranges) if sound else 0
                    if found:
                        self._note_attempt(judged, ranges, allow_late=allow_late)
                return Replayed(
                    passed=passed,
                    there_already=there + sound - passed,
                    failed=failed,
                    gone=waiting.count() - found,
                    skipped=skipped,
                    in_flight=in_flight,
                    failing=count_by_rule(judged),
                )
            finally:
                judged.unpersist()
                alone.unpersist()
        finally:
            letters.unpersist()

    def _discard(self) -> Discarded:
        letters, in_flight = self._letters()
        letters = letters.persist()
        try:
            ranges = ranges_of(letters)
            there, waiting = self._settle(letters, ranges)
            by_rule = count_by_rule(waiting)
            count = self._give_up(waiting, ranges) if by_rule else 0
            return Discarded(count, there, by_rule, in_flight)
        finally:
            letters.unpersist()

    def _due(self) -> tuple[DataFrame, int, int]:
        """Return the dead letters to validate, how many were skipped, and how many are in flight."""
        (letters, in_flight), is_left = self._letters(), is_skipped() & (F.col("status") == OPEN)
        if not self._leaves_skipped:
            return letters, 0, in_flight
        return letters.where(~is_left), letters.where(is_left).count(), in_flight

    def _letters(self) -> tuple[DataFrame, int]:
        """Return the selected dead letters that are not in flight, and how many are in flight."""
        spark, query = self._lake.spark, silver.query_name(self._source)
        finished = are_processed(spark, query, self._paths.clean)
        selected = tables.read(spark, self._paths.dead).where(self._selected)
        found = selected.where(finished).select("id", *_KEYS, "status", "reasons", "admitted")
        return found, selected.where(~finished & (F.col("status") == OPEN)).count()

    def _settle(
        self, letters: DataFrame, ranges: Sequence[OffsetRange], *, dry_run: bool = False
    ) -> tuple[int, DataFrame]:
        """Close the dead letters whose rows are in silver. Return how many, and the letters that remain open.

        A dry run only counts them.
        """
        clean = tables.read(self._lake.spark, self._paths.clean).where(within(ranges))
        clean = clean.select(*_KEYS, F.col("admitted").alias("_admitted")).dropDuplicates(_KEYS)
        there = letters.join(clean, _KEYS)
        count = there.count()
        if count and not dry_run:
            admitted = F.coalesce("s._admitted", "t.admitted")
            self._amend(there, ranges, {"status": F.lit(REPLAYED), "admitted": admitted}, F.lit(True))
        return count, letters.where(F.col("status") == OPEN).join(clean, _KEYS, "left_anti")

    def _give_up(self, letters: DataFrame, ranges: Sequence[OffsetRange]) -> int:
        given_up = {"status": F.lit(DISCARDED)}
        is_open = F.col("t.status") == OPEN
        return tables.update_matched(
            letters, self._paths.dead, ("id",), is_open, given_up, within=within(ranges)
        )

    def _judge(self, waiting: DataFrame, ranges: Sequence[OffsetRange], *, allow_late: bool) -> DataFrame:
        rows = tables.read(self._lake.spark, self._paths.bronze).where(within(ranges))
        closed = F.lit(retained.closed_before(self._lake, self._stream, self._source)).cast("timestamp")
        known = lateness.read(self._lake, silver.query_name(self._source))
        decided = F.col("admitted").isNotNull().alias(_DECIDED)  # whether the event time was already accepted
        chosen = rows.join(waiting.select(*_KEYS, decided), _KEYS).dropDuplicates(_KEYS)
        in_time = F.lit(None).cast("timestamp")
        if not allow_late:
            before = silver.fronts_before(self._lake, self._source, chosen)
            chosen = chosen.join(F.broadcast(before), "ingested_at")
            by_front = known.watermark(F.col(fronts.FRONT), or_s=self._source.allowed_lateness_s)
            in_time = F.when(~F.col(_DECIDED), by_front)
        judged = judge(
            decoded(chosen, self._source, self._lake.root), self._source, F.greatest(in_time, closed)
        )
        return judged.join(waiting.select(F.col("id").alias("_letter"), *_KEYS), _KEYS)

    def _admitted(self, judged: DataFrame, snapshot: Snapshot) -> DataFrame:
        """Add `admitted` to valid records, later than everything that silver has processed or admitted."""
        spark, clean, dead = self._lake.spark, self._paths.clean, self._paths.dead
        noted = tables.transactions_in(spark, snapshot)
        landed = fronts.Progress.noted_in(noted, silver.query_name(self._source)).landed
        known = [tables.read(spark, path).select("admitted.at") for path in (clean, dead)]
        last = known[0].union(known[1]).agg(F.unix_micros(F.max("at"))).first()
        micros = (self._now - EPOCH) // timedelta(microseconds=1)
        at = tables.from_micros(max(micros, (last[0] or 0) + 1 if last else 0))
        admission = F.struct(F.lit(landed).cast("timestamp").alias("after"), F.lit(at).alias("at"))
        return judged.withColumn("admitted", F.when(is_sound(), admission))

    def _compared(self, judged: DataFrame) -> DataFrame:
        """Return the verdicts, after comparing records with the same ids."""
        if self._source.unique_by is None:
            return judged
        return self._settled(judged, tables.begin(judged.sparkSession, self._paths.clean)).rows

    def _decided(self, judged: DataFrame) -> DataFrame:
        """Return the verdicts, with `admitted` set, after comparing and writing records with ids."""
        if self._source.unique_by is None:
            return self._admitted(judged, tables.snapshot(self._lake.spark, self._paths.clean))
        return tables.retry_on_conflict(partial(self._settle_ids, judged))

    def _settle_ids(self, judged: DataFrame) -> DataFrame:
        """Write passing records to silver, and replace the rows that they correct.

        Returns the verdicts, after comparing records with the same ids.
        """
        commit = tables.begin(judged.sparkSession, self._paths.clean)
        settled = self._settled(judged, commit)
        try:
            self._put(settled, commit)
        except Exception:
            settled.rows.unpersist()
            raise
        return settled.rows

    def _put(self, settled: Settled, commit: Commit) -> None:
        if settled.removed is not None:
            origin = silver.origin_of(self._stream, self._source, self._now)
            letters = to_dead_letters(identities.letters_of(settled.removed, self._paths.bronze), origin)
            put(self._paths.dead, silver.STAGE, Verdicts(new=letters), self._now)
        if settled.changed is not None:
            put(self._paths.dead, silver.STAGE, Verdicts(changed=settled.changed), self._now)
        identities.put(replace(settled, rows=settled.rows.drop("_letter")), commit)

    def _settled(self, judged: DataFrame, commit: Commit) -> Settled:
        known = silver.identities_of(self._lake, self._stream, self._source)
        return known.settle(self._admitted(judged, commit.snapshot), commit)

    def _insert(self, judged: DataFrame, ranges: Sequence[OffsetRange]) -> int:
        if self._source.unique_by is not None:
            return judged.where(is_sound()).count()  # already written by _settle_ids
        rows = filter_clean(judged).drop("_letter")
        return tables.insert_missing(rows, self._paths.clean, _KEYS, within(ranges))

    def _note_attempt(self, judged: DataFrame, ranges: Sequence[OffsetRange], *, allow_late: bool) -> None:
        """Close the dead letters whose records passed, and update the reasons of the others.

        A late record that also has other errors remains late, even if late records are allowed.
        """
        passed, reasons = F.size("s.reasons") == 0, F.col("s.reasons")
        if allow_late:
            is_other = F.col("s.admitted").isNull() & ~F.array_contains("s.reasons.rule", LATE)
            reasons = F.when(is_other, F.concat(reasons, late_in("t.reasons"))).otherwise(reasons)
        verdicts = {
            "status": F.when(passed, REPLAYED).otherwise(status_by(F.col("s.reasons"))),
            "reasons": F.when(passed, F.col("t.reasons")).otherwise(reasons),
            "admitted": F.coalesce("s.admitted", "t.admitted"),
        }
        found = {"id": F.col("_letter"), "reasons": F.col("reasons"), "admitted": F.col("admitted")}
        if self._source.unique_by is not None:  # the current settings may yield another id
            found |= {"unique_id": F.col(OF_ID), "sequence": F.col(OF_SEQUENCE)}
            verdicts |= {
                name: F.when(F.col("s.unique_id").isNull(), F.col(f"t.{name}")).otherwise(F.col(f"s.{name}"))
                for name in ("unique_id", "sequence")
            }
        self._amend(
            judged.select(*(value.alias(name) for name, value in found.items())),
            ranges,
            verdicts,
            passed | (F.col("t.status") == OPEN),
        )

    def _amend(
        self, letters: DataFrame, ranges: Sequence[OffsetRange], values: Mapping[str, Column], where: Column
    ) -> None:
        """Update the dead letters that match `where` and are not yet replayed. This counts as an attempt."""
        pending = F.col("t.status") != REPLAYED
        new = attempted(values, self._now)
        tables.update_matched(letters, self._paths.dead, ("id",), pending & where, new, within=within(ranges))


def _is_unsettled() -> Column:
    """Return the condition for open and discarded dead letters."""
    return F.col("status").isin(OPEN, DISCARDED)


def _count(judged: DataFrame) -> tuple[int, int]:
    """Return how many rows there are, and how many of them have reasons."""
    found, failed = judged.agg(F.count(F.lit(1)), F.count_if(F.size("reasons") > 0)).first() or (0, 0)
    return found, failed


def _added(mine: Any, theirs: Any) -> Any:
    if isinstance(mine, int):
        return mine + theirs
    sums = {name: mine.get(name, 0) + theirs.get(name, 0) for name in {*mine, *theirs}}
    return dict(sorted(sums.items(), key=lambda one: (-one[1], one[0])))
