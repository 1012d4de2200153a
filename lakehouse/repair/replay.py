"""Dead letters that are accepted into silver after all, or given up.

Replay judges the bronze rows of open letters again with silver's own code, under today's rules and settings.
Rows that pass are inserted into silver if they are not there yet; only then do their letters become
`replayed`. If a replay is killed in between, it leaves open letters whose rows are in silver; the next replay
or discard detects these first. Silver only appends and is not disturbed. If two replays insert at once, one
wins and the other looks again. However often a record is replayed, silver has it once. Records that --skip
has passed over may fail again, or never end: they are judged only if asked for. A rebuild of silver
judges the same letters. So replays and discards of a source share a lease on them
(`lakehouse.tables.leases`), which a rebuild takes exclusively.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial, reduce
from typing import Any, Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse import tables
from lakehouse.contract import COORDINATES
from lakehouse.formats.decode import decoded
from lakehouse.layers import identities, silver
from lakehouse.layers.identities import Identities
from lakehouse.layers.letters import Verdicts, are_processed, put
from lakehouse.ops import fronts, lateness, retained
from lakehouse.records.dead_letters import (
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
from lakehouse.records.identity import is_sound
from lakehouse.records.offsets import OffsetRange, ranges_of, within
from lakehouse.records.validation import filter_clean, judge
from lakehouse.stream import Source, Stream
from lakehouse.tables import Lake, leases
from lakehouse.tables.specs import EPOCH

_KEYS = list(COORDINATES)


class _Counted:
    """Counts of letters, in total or by rule; several sources add up."""

    def __add__(self, other: Self) -> Self:
        """Return the sum of both."""
        theirs = vars(other)
        return type(self)(**{name: _added(mine, theirs[name]) for name, mine in vars(self).items()})


@dataclass(frozen=True)
class Replayed(_Counted):
    """What became of letters.

    `passed` are now in silver, `there_already` were before. `failed` stay open, and so do `gone` ones, whose
    bronze row no longer exists, `skipped` ones, which --skip has passed over and the selection does not name,
    and those `in_flight`, of a micro-batch that silver has not finished. `failing` counts by rule; a letter
    with two counts under both.
    """

    passed: int = 0
    there_already: int = 0
    failed: int = 0
    gone: int = 0
    failing: Mapping[str, int] = field(default_factory=dict)
    skipped: int = 0
    in_flight: int = 0


@dataclass(frozen=True)
class Tried(_Counted):
    """What would become of letters if they were replayed now.

    `asked` is their number. Of these `would_pass`; `there_already` are in silver and would only be closed;
    `would_fail`, by rule in `failing`, where a letter with two counts under both; `gone` no longer have a
    bronze row. `skipped` ones are not asked for: --skip has passed over them, and the selection does not name
    them; nor are those `in_flight`, of a micro-batch that silver has not finished.
    """

    asked: int = 0
    would_pass: int = 0
    there_already: int = 0
    would_fail: int = 0
    gone: int = 0
    failing: Mapping[str, int] = field(default_factory=dict)
    skipped: int = 0
    in_flight: int = 0


@dataclass(frozen=True)
class Discarded(_Counted):
    """How many letters were given up, in all and by rule (a letter with two counts under both).

    `there_already` turned out to be in silver, through a killed replay, and are now `replayed`. Those
    `in_flight`, of a micro-batch that silver has not finished, stay open.
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
) -> Replayed:
    """Judge the selected open letters again and accept into silver those that pass, each record once.

    A record may be as late as was allowed when it came, or is now. With `allow_late` none is late, unless
    retention has taken the rows that it belongs to. A rerun finds only those that still fail. Raises
    TableError while a rebuild of silver judges letters of one of the sources.
    """
    places = _places(lake, streams, selection, now)
    return reduce(Replayed.__add__, (one.replay(allow_late=allow_late) for one in places), Replayed())


def try_replay(
    lake: Lake,
    streams: Sequence[Stream],
    selection: Selection,
    now: datetime,
    *,
    allow_late: bool = False,
) -> Tried:
    """Judge the selected open letters as `replay` would now, and write nothing."""
    places = _places(lake, streams, selection, now)
    return reduce(Tried.__add__, (one.tried(allow_late=allow_late) for one in places), Tried())


def discard(lake: Lake, streams: Sequence[Stream], selection: Selection, now: datetime) -> Discarded:
    """Give up the selected open letters; a rerun finds none.

    Raises TableError while a rebuild of silver judges letters of one of the sources.
    """
    places = _places(lake, streams, selection, now)
    return reduce(Discarded.__add__, (one.discard() for one in places), Discarded())


def _places(
    lake: Lake, streams: Sequence[Stream], selection: Selection, now: datetime
) -> list[_SelectedLetters]:
    """Return the sources that have selected letters."""
    letters = lake.read_or_empty(DEAD_LETTERS).where(selection.condition() & _is_unsettled())
    jobs = {row.job for row in letters.select("job").distinct().collect()}
    return [
        _SelectedLetters(lake, stream, source, selection=selection, now=now)
        for stream in streams
        for source in stream.sources
        if silver.query_name(source) in jobs
    ]


class _SelectedLetters:
    """The selected letters of one source, and its tables."""

    def __init__(
        self,
        lake: Lake,
        stream: Stream,
        source: Source,
        *,
        selection: Selection,
        now: datetime,
    ) -> None:
        self._lake = lake
        self._stream = stream
        self._source = source
        self._selected = selection.condition() & (F.col("job") == silver.query_name(source)) & _is_unsettled()
        self._leaves_skipped = not selection.names_skipped
        self._now = now
        self._paths = silver.paths_of(lake, source)

    def replay(self, *, allow_late: bool) -> Replayed:
        with self._sharing("replay"):
            return self._replay(allow_late=allow_late)

    def discard(self) -> Discarded:
        with self._sharing("discard"):
            return self._discard()

    def tried(self, *, allow_late: bool) -> Tried:
        letters, skipped, in_flight = self._due()
        letters = letters.persist()
        try:
            ranges = ranges_of(letters)
            there, waiting = self._apart(letters, ranges)
            judged = self._judge(waiting, ranges, allow_late=allow_late).persist()
            judged = self._compared(judged)
            try:
                (found, failed), in_silver, open_ = _count(judged), there.count(), waiting.count()
                return Tried(
                    asked=in_silver + open_,
                    would_pass=found - failed,
                    there_already=in_silver,
                    would_fail=failed,
                    gone=open_ - found,
                    skipped=skipped,
                    in_flight=in_flight,
                    failing=count_by_rule(judged),
                )
            finally:
                judged.unpersist()
        finally:
            letters.unpersist()

    def _sharing(self, what: str) -> AbstractContextManager[None]:
        """Bring the source's tables up to date, and keep rebuilds of silver off its letters."""
        silver.ensure(self._lake, self._source)
        name = silver.query_name(self._source)
        return leases.held_part(
            self._lake.spark, self._paths.dead, self._source.table, f"{what} of {name}", alone=False
        )

    def _replay(self, *, allow_late: bool) -> Replayed:
        letters, skipped, in_flight = self._due()
        letters = letters.persist()
        try:
            ranges = ranges_of(letters)
            there, waiting = self._settle(letters, ranges)
            judged = self._judge(waiting, ranges, allow_late=allow_late).persist()
            if self._source.unique_by is not None:
                judged = tables.retry_on_conflict(partial(self._settle_ids, judged))
            try:
                found, failed = _count(judged)
                passed = self._insert(judged, ranges) if found > failed else 0
                if found:
                    self._note_attempt(judged, ranges)
                return Replayed(
                    passed=passed,
                    there_already=there + found - failed - passed,
                    failed=failed,
                    gone=waiting.count() - found,
                    skipped=skipped,
                    in_flight=in_flight,
                    failing=count_by_rule(judged),
                )
            finally:
                judged.unpersist()
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
        """Return the letters that are to be judged, and how many skipped and in-flight ones are left out."""
        (letters, in_flight), is_left = self._letters(), is_skipped() & (F.col("status") == OPEN)
        if not self._leaves_skipped:
            return letters, 0, in_flight
        return letters.where(~is_left), letters.where(is_left).count(), in_flight

    def _letters(self) -> tuple[DataFrame, int]:
        """Return the selected letters, and how many are of a micro-batch that silver has not finished."""
        spark, query = self._lake.spark, silver.query_name(self._source)
        finished = are_processed(spark, query, self._paths.clean)
        selected = tables.read(spark, self._paths.dead).where(self._selected)
        found = selected.where(finished).select("id", *_KEYS, "status", "reasons")
        return found, selected.where(~finished & (F.col("status") == OPEN)).count()

    def _settle(self, letters: DataFrame, ranges: Sequence[OffsetRange]) -> tuple[int, DataFrame]:
        """Close the letters whose rows are in silver; return their number, and the other open ones."""
        there, waiting = self._apart(letters, ranges)
        count = there.count()
        if count:
            self._amend(there, ranges, {"status": F.lit(REPLAYED)}, F.lit(True))
        return count, waiting

    def _apart(self, letters: DataFrame, ranges: Sequence[OffsetRange]) -> tuple[DataFrame, DataFrame]:
        """Return the letters whose rows are in silver, and the other open letters."""
        clean = tables.read(self._lake.spark, self._paths.clean).where(within(ranges)).select(*_KEYS)
        there = letters.join(clean, _KEYS, "left_semi")
        return there, letters.where(F.col("status") == OPEN).join(clean, _KEYS, "left_anti")

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
        chosen = rows.join(waiting, _KEYS, "left_semi").dropDuplicates(_KEYS)
        in_time = F.lit(None).cast("timestamp")
        if not allow_late:
            before = silver.fronts_before(self._lake, self._source, chosen)
            chosen = chosen.join(F.broadcast(before), "ingested_at")
            in_time = known.watermark(F.col(fronts.FRONT), or_s=self._source.allowed_lateness_s)
        judged = judge(
            decoded(chosen, self._source, self._lake.root), self._source, F.greatest(in_time, closed)
        )
        judged = judged.join(waiting.select(F.col("id").alias("_letter"), *_KEYS), _KEYS)
        return judged.withColumn("admitted", F.when(is_sound(), self._admission()))

    def _admission(self) -> Column:
        """Return when records that are sound by themselves are let in: after all that silver has processed.

        And after all that were let in before.
        """
        spark, clean, dead = self._lake.spark, self._paths.clean, self._paths.dead
        noted = tables.transactions(spark, clean)
        landed = fronts.Progress.noted_in(noted, silver.query_name(self._source)).landed
        known = [tables.read(spark, path).select("admitted.at") for path in (clean, dead)]
        last = known[0].union(known[1]).agg(F.unix_micros(F.max("at"))).first()
        micros = (self._now - EPOCH) // timedelta(microseconds=1)
        at = tables.from_micros(max(micros, (last[0] or 0) + 1 if last else 0))
        return F.struct(F.lit(landed).cast("timestamp").alias("after"), F.lit(at).alias("at"))

    def _compared(self, judged: DataFrame) -> DataFrame:
        """Return the verdicts among other records of their ids."""
        if self._source.unique_by is None:
            return judged
        commit = tables.begin(judged.sparkSession, self._paths.clean)
        return self._identities().settle(judged, commit).rows

    def _settle_ids(self, judged: DataFrame) -> DataFrame:
        """Put the records that pass into silver, in the places of those that they correct.

        Return the verdicts among other records of their ids.
        """
        commit = tables.begin(judged.sparkSession, self._paths.clean)
        settled = self._identities().settle(judged, commit)
        if settled.removed is not None:
            origin = silver.origin_of(self._stream, self._source, self._now)
            letters = to_dead_letters(identities.letters_of(settled.removed, self._paths.bronze), origin)
            self._put_letters(Verdicts(new=letters))
        if settled.changed is not None:
            self._put_letters(Verdicts(changed=settled.changed))
        identities.put(replace(settled, rows=settled.rows.drop("_letter")), commit)
        return settled.rows

    def _put_letters(self, verdicts: Verdicts) -> None:
        put(self._paths.dead, silver.STAGE, verdicts, self._now)

    def _identities(self) -> Identities:
        return silver.identities_of(self._lake, self._stream, self._source)

    def _insert(self, judged: DataFrame, ranges: Sequence[OffsetRange]) -> int:
        if self._source.unique_by is not None:
            return judged.where(is_sound()).count()  # they are there
        rows = filter_clean(judged).drop("_letter")
        return tables.insert_missing(rows, self._paths.clean, _KEYS, within(ranges))

    def _note_attempt(self, judged: DataFrame, ranges: Sequence[OffsetRange]) -> None:
        """Close the letters of rows that passed, and note in the others why they still fail."""
        passed = F.size("s.reasons") == 0
        verdicts = {
            "status": F.when(passed, REPLAYED).otherwise(
                F.when(F.col("t.status") == OPEN, status_by(F.col("s.reasons"))).otherwise(F.col("t.status"))
            ),
            "reasons": F.when(passed, F.col("t.reasons")).otherwise(F.col("s.reasons")),
            "admitted": F.coalesce("s.admitted", "t.admitted"),
        }
        self._amend(
            judged.select(F.col("_letter").alias("id"), "reasons", "admitted"),
            ranges,
            verdicts,
            passed | (F.col("t.status") == OPEN),
        )

    def _amend(
        self, letters: DataFrame, ranges: Sequence[OffsetRange], values: Mapping[str, Column], where: Column
    ) -> None:
        """Update the letters that are not replayed yet and match `where`; it counts as an attempt."""
        pending = F.col("t.status") != REPLAYED
        new = attempted(values, self._now)
        tables.update_matched(letters, self._paths.dead, ("id",), pending & where, new, within=within(ranges))


def _is_unsettled() -> Column:
    """Select letters of which it has not been said for good what has become of their records."""
    return F.col("status").isin(OPEN, DISCARDED)


def _count(judged: DataFrame) -> tuple[int, int]:
    """Return how many rows there are, and how many have a reason."""
    found, failed = judged.agg(F.count(F.lit(1)), F.count_if(F.size("reasons") > 0)).first() or (0, 0)
    return found, failed


def _added(mine: Any, theirs: Any) -> Any:
    if isinstance(mine, int):
        return mine + theirs
    return {name: mine.get(name, 0) + theirs.get(name, 0) for name in sorted({*mine, *theirs})}
