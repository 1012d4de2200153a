"""Silver: turn bronze rows into clean rows and dead letters.

Grain of silver.<table>: one row per accepted record; key: topic, partition, offset. An optional field that
the record omits is null. `event_time` (UTC) is the time in the record or, if it has none, Kafka's timestamp;
in the latter case, `own_time` is null. A rerun writes nothing twice and makes the same decisions.

A micro-batch writes its dead letters before its clean rows, and records the same position with both. The
front (the greatest event time so far, see `lakehouse.engine.ops_tables.fronts`) is recorded with the clean
rows. After a crash between the two writes, a retry therefore reads the same records with the same watermark,
and makes the same decision about each record. If the rules changed in between, the retry updates the dead
letters: a record that is now accepted gets a row, and its dead letter becomes `replayed`; a record that is
now refused gets a dead letter. A new allowed lateness (`lakehouse.engine.ops_tables.lateness`) applies from
the first micro-batch that is not a retry.

If a record makes validation fail, the error names the record (`lakehouse.engine.layers.culprits`). If the
user skips the record, it becomes a dead letter, and its content is not read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse.common.events import Kind, note
from lakehouse.common.extras import code_version
from lakehouse.engine.formats.decode import decoded
from lakehouse.engine.layers import bronze, identities, letters
from lakehouse.engine.layers.culprits import blamed
from lakehouse.engine.layers.facts import Facts
from lakehouse.engine.layers.frozen import Frozen
from lakehouse.engine.layers.identities import Identities, Settled, letters_of
from lakehouse.engine.layers.letters import Verdicts
from lakehouse.engine.layers.step import Batch, BatchResult, Blamed, Passed, Permitted, StepMaker, TableStep
from lakehouse.engine.ops_tables import fronts, lateness, retained
from lakehouse.engine.progress import cuts
from lakehouse.engine.progress.reading import Filled, InMemory, Reading
from lakehouse.engine.records.dead_letters import DEAD_LETTERS, LetterOrigin, is_skipped, to_dead_letters
from lakehouse.engine.records.identity import is_sound
from lakehouse.engine.records.validation import (
    SKIPPED,
    filter_clean,
    filter_dead,
    judge,
    silver_schema,
    skipped,
    watermark_of,
)
from lakehouse.storage import tables
from lakehouse.storage.spark.execution import BYTES_A_ROW, amount_of, execute_for, size_of
from lakehouse.storage.spark.offset_ranges import OffsetRange, ranges_of, runs_of, within
from lakehouse.storage.tables import Commit, Lake, Move, TableSpec, leases
from lakehouse.streams.contract import OWN_TIME
from lakehouse.streams.definition import Source, Stream

STAGE = "silver"
_ONE_TASK_BYTES = 128 << 10  # in bronze files; below this, a second task and file cost more than they save


def spec(source: Source) -> TableSpec:
    """Return the specification of a source's silver table."""
    return TableSpec(
        "silver",
        source.table,
        silver_schema(source),
        stats=("event_time", OWN_TIME, "partition", "offset"),
        change_feed=True,
        is_followed=source.sequence_by is not None,
        pinned_settings={"unique_by": source.unique_by or "", "sequence_by": source.sequence_by or ""},
        made_with={lateness.SETTING: str(source.allowed_lateness_s)},
        cluster_by="event_time",
    )


@dataclass(frozen=True)
class Paths:
    """The paths of a source's tables for raw, clean and refused records."""

    bronze: str
    clean: str
    dead: str


def ensure(lake: Lake, source: Source) -> Paths:
    """Create a source's missing tables, and return the paths of all its tables."""
    return Paths(
        lake.ensure_source(bronze.spec(source)), lake.ensure(spec(source)), lake.ensure(DEAD_LETTERS)
    )


def opened(lake: Lake, source: Source) -> Paths:
    """Return the same paths as `ensure`, but do not change the settings of an existing silver table."""
    if not lake.exists("silver", source.table):
        return ensure(lake, source)
    lake.ensure_source(bronze.spec(source))
    lake.ensure(DEAD_LETTERS)
    return paths_of(lake, source)


def paths_of(lake: Lake, source: Source) -> Paths:
    """Return the paths of a source's tables, which need not exist."""
    return Paths(
        lake.path("bronze", source.table),
        lake.path("silver", source.table),
        lake.path(DEAD_LETTERS.layer, DEAD_LETTERS.name),
    )


def query_name(source: Source) -> str:
    """Return the name of the query that fills a source's silver table; `job` in its dead letters."""
    return f"silver.{source.table}"


def origin_of(stream: Stream, source: Source, now: datetime, batch: int | None = None) -> LetterOrigin:
    """Return the origin of dead letters written at `now` (UTC); `batch` is the micro-batch, if any."""
    return LetterOrigin(stream.name, STAGE, query_name(source), batch, code_version(), now)


def fronts_before(lake: Lake, source: Source, landed: DataFrame) -> DataFrame:
    """Return the front as it was before each landing time in bronze rows (`engine.ops_tables.fronts`)."""
    of_landed = landed.select("ingested_at", F.lit(None).cast("timestamp").alias(OWN_TIME))
    taken = retained.taken_of(lake, "bronze", source.table)
    return fronts.before_landings(sound_times(lake, source).unionByName(of_landed), taken.front)


def sound_times(lake: Lake, source: Source, where: Column | None = None) -> DataFrame:
    """Return each record's landing time and, if the record is sound, its own event time.

    A record is sound if it is valid by itself, regardless of other records. The result covers all records
    with silver rows, and records with dead letters that contain an own event time, including dead letters for
    rows that were removed. `where` selects records by their coordinates; None means all.
    """
    chosen = F.lit(True) if where is None else where
    rows = tables.read(lake.spark, paths_of(lake, source).clean).where(chosen)
    of_rows = fronts.own_times(rows, F.col("admitted").isNull())
    dead = lake.read_or_empty(DEAD_LETTERS).where((F.col("job") == query_name(source)) & chosen)
    return of_rows.unionByName(dead.where(F.col(OWN_TIME).isNotNull()).select("ingested_at", OWN_TIME))


def identities_of(lake: Lake, stream: Stream, source: Source) -> Identities:
    """Return the known ids of a source's records."""
    paths = paths_of(lake, source)
    return Identities(source, paths.clean, paths.dead, query_name(source), Frozen(lake, stream, source))


def steps(lake: Lake, stream: Stream, max_bytes: int, permitted: Permitted) -> list[StepMaker]:
    """Return factories for the steps that fill the stream's silver tables, up to `max_bytes` at a time.

    In a backfill, no record is late unless it belongs to rows that retention has removed.
    """
    make = partial(_Cleaning, lake, stream, max_bytes=max_bytes, permitted=permitted)
    return [
        StepMaker(stream.name, "silver", query_name(source), partial(make, source))
        for source in stream.sources
    ]


@dataclass
class _Attempt:
    """A micro-batch that is being written, and facts about its records before they are compared by id.

    `has_letters` is true if an earlier attempt wrote the dead letters and then had a conflict.
    """

    batch: Batch
    facts: Facts
    has_letters: bool = False


class _Cleaning(TableStep):
    """A step that validates micro-batches of bronze rows, and writes dead letters and clean rows."""

    def __init__(
        self, lake: Lake, stream: Stream, source: Source, *, max_bytes: int, permitted: Permitted
    ) -> None:
        paths, name = ensure(lake, source), query_name(source)
        super().__init__(
            "silver",
            Reading(
                lake.spark,
                name,
                {f"bronze.{source.table}": paths.bronze},
                Filled(name, paths.clean),
                (Filled(DEAD_LETTERS.qualified_name, paths.dead, f"job = '{name}'"),),
                max_bytes,
            ),
        )
        self._lake = lake
        self._stream = stream
        self._source = source
        self._paths = paths
        self._settings = spec(source).pinned_settings
        self._lateness = lateness.read(lake, name)
        self._allowed_s = None if permitted.is_backfill else source.allowed_lateness_s
        self._skip = [
            OffsetRange(one.topic, one.partition, one.first_offset, one.last_offset) for one in permitted.skip
        ]
        self._notice = permitted.on_notice
        self._closed = self._closed_before()
        self._progress: fronts.Progress | None = None
        self._identities = None if source.unique_by is None else identities_of(lake, stream, source)

    def plan(self, handed: Mapping[str, InMemory]) -> Batch | None:
        """Choose the next micro-batch. If the allowed lateness is new, record it first."""
        batch = super().plan(handed)
        is_new = batch is not None and not batch.is_resumed and self._lateness.now.seconds != self._allowed_s
        return super().plan(handed) if is_new and self._change_lateness() else batch

    @contextmanager
    def write(self, batch: Batch, now: datetime) -> Iterator[Passed]:
        """Write the clean rows and dead letters; keep the clean rows in memory during the block."""
        rows_in = batch.rows
        spark = rows_in.sparkSession
        size = size_of(rows_in) if batch.count is None else batch.count * BYTES_A_ROW
        execute_for(spark, amount_of(size_bytes=size))
        undecided = rows_in.coalesce(1) if size <= _ONE_TASK_BYTES else rows_in
        skipping = self._skipped_in(undecided)
        passed_over = [*skipping]
        if batch.is_resumed:  # the dead letters show what the first attempt skipped
            passed_over += runs_of(self._letters_at(undecided).where(is_skipped()))
        judged, facts = self._judged_by_landing(undecided, passed_over)
        persisted = [judged]
        try:
            if self._identities is None:
                passed = self._append(judged, facts, batch, now)
            else:
                settle = partial(self._settle, self._identities, judged, _Attempt(batch, facts), now)
                passed, settled = tables.retry_on_conflict(settle)
                persisted.insert(0, settled)
            self._tell_skipped(skipping)
            yield passed
        finally:
            for frame in persisted:
                frame.unpersist()

    def is_held(self) -> bool:
        """Return whether a micro-batch of records with ids would wait because a rebuild holds the table."""
        return self._identities is not None and leases.is_held(self._lake.spark, self._paths.clean)

    def blamed(self, batch: Batch) -> Blamed | None:
        """Return the records that make validation fail, or None if there are none or reading bronze fails."""
        return blamed(batch.rows.where(~within(self._skip)), self._judged)

    def _judged_by_landing(
        self, rows: DataFrame, skipping: Collection[OffsetRange]
    ) -> tuple[DataFrame, Facts]:
        """Validate bronze rows, and return the persisted results and the facts about them.

        If the rows landed in several commits, rows from one commit can make later rows late. In this case,
        the rows from each commit are validated again, with the watermark for that commit.
        """
        known = self._known(rows.sparkSession)
        judged = self._judged(rows, skipping).persist()
        facts = Facts.of(judged)
        last = self._watermark(known.after(facts.own_us, None).front)
        if facts.is_one_landing or last is None or facts.least is None or facts.least >= last:
            return judged, facts
        times = fronts.own_times(judged, is_sound())
        before = fronts.before_landings(times, known.front).localCheckpoint()
        judged.unpersist()
        spread = rows.join(F.broadcast(before), "ingested_at", "left")
        by_front = self._lateness.watermark(F.col(fronts.FRONT))
        watermark = F.greatest(by_front, F.lit(self._closed).cast("timestamp"))
        judged = self._judged(spread, skipping, watermark).persist()
        return judged, Facts.of(judged)

    def _judged(
        self,
        rows: DataFrame,
        skipping: Collection[OffsetRange] = (),
        watermark: datetime | Column | None = None,
    ) -> DataFrame:
        """Validate bronze rows. Rows in the ranges `skipping` are refused without being read.

        `watermark` defaults to the watermark before the micro-batch.
        """
        source, left = self._source, within(list(skipping)) if skipping else None
        seen = rows if left is None else rows.where(~left)
        if watermark is None:
            watermark = self._watermark(self._known(rows.sparkSession).front)
        judged = judge(decoded(seen, source, self._lake.root), source, watermark)
        return judged if left is None else judged.unionByName(skipped(rows.where(left), source))

    def _skipped_in(self, rows: DataFrame) -> dict[OffsetRange, int]:
        """Return the ranges of these rows that the user wants to skip, with the number of rows in each."""
        if not self._skip:
            return {}
        counts = rows.agg(*(F.count_if(within([one])) for one in self._skip)).first() or ()
        return {one: count for one, count in zip(self._skip, counts, strict=True) if count}

    def _letters_at(self, rows: DataFrame) -> DataFrame:
        """Return the dead letters for the records in these rows."""
        there = tables.read(self._lake.spark, self._paths.dead).where(letters.at_places(rows))
        return there.where(F.col("job") == self.name)

    def _tell_skipped(self, skipping: Mapping[OffsetRange, int]) -> None:
        for one, count in skipping.items():
            told = f"{self.name} has skipped {one}; dead letters with the rule {SKIPPED}: {count:,}"
            details = {"range": str(one), "records": count}
            note(Kind.SKIP, told, stream=self._stream.name, layer="silver", table=self.name, details=details)
            self._notice(told)

    def _append(self, judged: DataFrame, facts: Facts, batch: Batch, now: datetime) -> Passed:
        """Write the refused records, then the clean rows."""
        paths, table, rows, dead = self._paths, self._source.table, facts.rows, facts.dead
        clean, moves = filter_clean(judged), self._moves(batch, facts)
        if dead or batch.is_resumed:
            self._bury(filter_dead(judged), batch, now, Verdicts(accepted=clean))
        if rows > dead:
            done = tables.append(clean, paths.clean, moves, settings=self._settings)
        else:
            done = tables.note(judged.sparkSession, paths.clean, moves, settings=self._settings)
        self._advance(facts)
        written = {table: rows - dead, "dead_letters": dead}
        result = BatchResult(rows, written, refused=dead - facts.closed)
        return Passed(result, InMemory(clean, rows - dead, cast("int", done.version)))

    def _settle(
        self, known: Identities, judged: DataFrame, attempt: _Attempt, now: datetime
    ) -> tuple[Passed, DataFrame]:
        """Write records with ids; the commit also removes the rows that they replace or delete.

        Returns the result, and the persisted rows on which it is based.
        """
        commit = leases.begin(judged.sparkSession, self._paths.clean)
        commit.expect_settings(self._settings)
        commit.expect(self._moves(attempt.batch, attempt.facts))
        settled = known.settle(judged, commit)
        try:
            return self._write(settled, commit, attempt, now, known), settled.rows
        except Exception:
            settled.rows.unpersist()
            raise

    def _write(
        self, settled: Settled, commit: Commit, attempt: _Attempt, now: datetime, known: Identities
    ) -> Passed:
        facts = Facts.of(settled.rows)
        rows, dead, removed, dead_rows = facts.rows, facts.dead, 0, filter_dead(settled.rows)
        again = attempt.has_letters or settled.changed is not None
        if settled.removed is not None:  # removed rows may have dead letters, for example from a replay
            removed = settled.removed.count()
            dead_rows = dead_rows.unionByName(letters_of(settled.removed, self._paths.bronze))
            again = again or not self._letters_at(settled.removed).isEmpty()
        is_repeated = attempt.has_letters or attempt.batch.is_resumed
        accepted = filter_clean(settled.rows) if is_repeated else None
        more = Verdicts(changed=settled.changed, accepted=accepted)
        if dead or removed or again or is_repeated:
            self._bury(dead_rows, attempt.batch, now, more, again=again, noted=attempt.has_letters)
            attempt.has_letters = True
        version = cast("int", identities.put(settled, commit, self._moves(attempt.batch, attempt.facts)))
        known.note(settled, version)
        self._advance(attempt.facts)
        written = {self._source.table: rows - dead, "dead_letters": dead + removed}
        result = BatchResult(rows, written, refused=dead - facts.closed)
        clean = InMemory(filter_clean(settled.rows), rows - dead, version)
        return Passed(result, clean if settled.removed is None else None)

    def _moves(self, batch: Batch, facts: Facts) -> tuple[Move, ...]:
        """Return the moves for a commit to silver.

        They make the commit fail if the allowed lateness or the front has changed.
        """
        known = self._known(self._lake.spark)
        later = known.after(facts.own_us, facts.landed_us)
        return *batch.moves, *known.moves_to(later), self._lateness.expected

    def _known(self, spark: SparkSession) -> fronts.Progress:
        """Return silver's progress, as recorded in its commits and advanced by this step."""
        if self._progress is None:
            noted = tables.transactions(spark, self._paths.clean)
            self._progress = fronts.Progress.noted_in(noted, self.name)
        return self._progress

    def _advance(self, facts: Facts) -> None:
        """Record the progress of a written micro-batch."""
        self._progress = self._known(self._lake.spark).after(facts.own_us, facts.landed_us)

    def _watermark(self, front: datetime | None) -> datetime | None:
        allowed_s = self._lateness.now.seconds
        mark = None if allowed_s is None else watermark_of(front, allowed_s)
        return retained.latest((mark, self._closed))

    def _closed_before(self) -> datetime | None:
        """Return the time before which retention has removed rows; None while the initial lateness applies.

        Retention keeps all rows that can still be corrected under the allowed lateness in effect when it
        runs.
        """
        if self._lateness.now.number is None:
            return None
        return retained.closed_before(self._lake, self._stream, self._source)

    def _change_lateness(self) -> bool:
        """Record a new allowed lateness, starting with the next micro-batch; return whether it was recorded.

        While silver still reads its initial files, the change cannot be recorded, because the records
        validated so far do not yet form a range of offsets.
        """
        spark, path = self._lake.spark, self._paths.bronze
        position = cuts.position_of(spark, self.name, self._paths.clean, path)
        if position is not None and position.is_beginning:
            return False
        judged = ranges_of(cuts.read_up_to(spark, path, position))
        self._lateness = lateness.change(
            self._lake,
            self._lateness,
            self._allowed_s,
            self._source.allowed_lateness_s,
            judged,
            now=datetime.now(UTC),
        )
        self._closed = self._closed_before()
        return True

    def _bury(
        self,
        dead: DataFrame,
        batch: Batch,
        now: datetime,
        verdicts: Verdicts,
        *,
        again: bool = False,
        noted: bool = False,
    ) -> None:
        """Write the dead letters of a micro-batch, before its rows.

        `again` means that some records may already have dead letters. `noted` means that an earlier attempt
        has recorded the position.
        """
        origin = origin_of(self._stream, self._source, now, batch.number)
        found, path = to_dead_letters(dead, origin), self._paths.dead
        moves = [move for moves in batch.beside if moves is not None and not noted for move in moves]
        if not again and not batch.is_resumed:
            tables.append(found, path, moves)
            return
        found = found.persist()
        try:
            letters.put(path, STAGE, replace(verdicts, new=found), now, moves)
        finally:
            found.unpersist()
