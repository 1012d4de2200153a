"""Maintain a lake's tables, one table per step.

A step deletes rows that are too old (`lakehouse.operations.maintenance.retention`), merges small files with
OPTIMIZE if there are many, runs VACUUM, and cleans up the log. A step keeps everything that readers still
need, regardless of age: versions that a layer has not read, and the part of the change feed that is needed to
reload sinks. A rerun finds nothing to do. If a step is killed, the next round repeats it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta

from lakehouse.common.events import Kind, note
from lakehouse.engine.layers import bronze, gold, letters_export, silver
from lakehouse.engine.ops_tables.data_losses import DATA_LOSSES
from lakehouse.engine.ops_tables.event_table import EVENTS
from lakehouse.engine.ops_tables.history import HISTORY, KEPT_DAYS
from lakehouse.engine.ops_tables.lateness import LATENESS
from lakehouse.engine.ops_tables.retained import RETAINED_IDS, RETENTION
from lakehouse.engine.ops_tables.unsent_rows import UNSENT_ROWS
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.engine.runtime.schedule import Alone
from lakehouse.operations.maintenance import retention
from lakehouse.operations.maintenance.readers import Held, Reader, held_by, position_of
from lakehouse.operations.maintenance.retention import CutMaker
from lakehouse.operations.quality.results import GATES, RESULTS
from lakehouse.settings import Settings
from lakehouse.sinks import registry
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake, TableSpec, leases, upkeep
from lakehouse.storage.tables.upkeep import Size
from lakehouse.streams.definition import Stream

_MARGIN = timedelta(hours=1)
_ROWS_A_MERGED_FILE = 100_000
"""The maximum number of rows per file in a merged table, because a late record rewrites a whole file."""
_DAY_S = 24 * 3600


@dataclass(frozen=True)
class Task:
    """A table to maintain, and its readers.

    `made_by` is the gold table whose micro-batches rewrite the table's files: the table itself, or a side
    table's main table. It is None for any other table. `cut` selects the rows that are too old; None keeps
    all rows.
    """

    spec: TableSpec
    readers: tuple[Reader, ...] = ()
    made_by: str | None = None
    cut: CutMaker | None = None


@dataclass(frozen=True)
class Kept:
    """The result of maintaining a table, or the expected result of a dry run.

    rows     the number of deleted rows
    files    the newest version's size before and after the step
    stored   the whole directory's size before and after the step
    removed  the number of files that VACUUM removed
    held     the reader whose oldest unread version was kept
    """

    table: str
    rows: int
    files: tuple[Size, Size]
    stored: tuple[Size, Size]
    removed: int
    held: Held | None

    @property
    def has_done_something(self) -> bool:
        """Whether rows were deleted, or files were merged or removed."""
        return self.rows > 0 or self.files[0] != self.files[1] or self.removed > 0

    def __str__(self) -> str:
        before, after = self.files[0].files, self.files[1].files
        said = [f"{self.rows:,} rows were past retention"] if self.rows else []
        said += [f"{before:,} files became {after:,}"] if after != before else []
        said += [f"{self.removed:,} old files removed"] if self.removed else []
        if self.held is not None:
            since = (
                "is no longer in the log"
                if self.held.since is None
                else f"is from {self.held.since:%F %T} UTC"
            )
            said.append(f"the oldest version unread by {self.held.reader} {since}")
        return f"{self.table}: {', '.join(said) or 'nothing to do'}"

    def note(self) -> None:
        """Record the result in ops.events."""
        (before, after), (stored, left) = self.files, self.stored
        details = {
            "rows": self.rows,
            "files": [before.files, after.files],
            "stored_files": [stored.files, left.files],
            "stored_bytes": [stored.bytes, left.bytes],
            "removed": self.removed,
        }
        note(
            Kind.MAINTENANCE,
            str(self),
            layer=self.table.partition(".")[0],
            table=self.table,
            details=details,
        )


def tasks(streams: Sequence[Stream], settings: Settings) -> list[Task]:
    """Return one task for each of the streams' tables and for each table that all streams share."""
    days = _kept_days(settings)
    found = [task for stream in streams for task in _tasks_of(stream, settings)]
    kept = days(DEAD_LETTERS.qualified_name)
    letters = tuple(
        Reader(
            letters_export.name_of(stream),
            topic=letters_export.note_name(stream, settings.kafka.dead_letter_topic),
        )
        for stream in streams
        if settings.kafka.dead_letter_topic
    )
    cut = None if kept is None else retention.letters_cut(streams, kept)
    found.append(Task(DEAD_LETTERS, letters, cut=cut))
    for spec, column, by_default in (
        (RESULTS, "checked_at", None),
        (EVENTS, "at", None),
        (HISTORY, "at", KEPT_DAYS),
    ):
        kept = days(spec.qualified_name) or by_default
        found.append(Task(spec, cut=None if kept is None else retention.ops_cut(column, kept)))
    return found + [
        Task(spec) for spec in (UNSENT_ROWS, DATA_LOSSES, GATES, RETENTION, RETAINED_IDS, LATENESS)
    ]


def _kept_days(settings: Settings) -> Callable[[str], int | None]:
    days = {name: kept_s // _DAY_S for name, kept_s in settings.maintenance.keep_rows_s.items()}
    return days.get


def _tasks_of(stream: Stream, settings: Settings) -> list[Task]:
    days, found = _kept_days(settings), []
    for source in stream.sources:
        merging = [table.name for table in stream.gold if source.table in table.reads]
        raw, clean = bronze.spec(source), silver.spec(source)
        kept = days(raw.qualified_name)
        cut = None if kept is None else retention.bronze_cut(source, kept)
        found.append(Task(raw, (Reader(silver.query_name(source), ("silver", source.table)),), cut=cut))
        kept = days(clean.qualified_name)
        cut = None if kept is None else retention.silver_cut(stream, source, kept)
        readers = tuple(Reader(f"gold.{name}", ("gold", name)) for name in merging)
        found.append(Task(clean, readers, cut=cut))
    for made_by in stream.gold:
        for table in (made_by, *made_by.sides):
            spec = gold.spec(table)
            kept = days(spec.qualified_name)
            cut = None if kept is None else retention.gold_cut(stream, table, made_by, kept)
            topic = None if table.export.topic is None else settings.topic(table.export.topic)
            readers = (Reader(f"export.{table.name}", topic=topic),)
            found.append(Task(spec, readers, made_by.name, cut))
    return found


def least_kept(task: Task, settings: Settings) -> timedelta:
    """Return how long a table's old versions are kept at least. Those that a reader needs are kept longer."""
    kept = timedelta(seconds=settings.maintenance.keep_versions_s)
    if not any(reader.is_export for reader in task.readers):
        return kept
    spans = (kind.reads_back(settings) for kind in registry.used(settings))
    return max(kept, max(spans, default=timedelta(0)) + _MARGIN)


class Keeper:
    """A maintainer of a lake's tables, one table at a time.

    OPTIMIZE does not conflict with appends. While it rewrites a merged table's files, the table's
    micro-batches wait. `alone()` holds back this application's micro-batches, and a lease holds back those of
    other applications. If a merged table has more than `most_bytes` of small files, this keeper does not
    merge them; a keeper without a limit does.
    """

    def __init__(
        self,
        lake: Lake,
        settings: Settings,
        *,
        alone: Alone | None = None,
        most_bytes: int = sys.maxsize,
    ) -> None:
        self._lake = lake
        self._settings = settings
        self._target_bytes = settings.maintenance.file_size_bytes
        self._alone = alone
        self._most_bytes = most_bytes

    def keep(self, task: Task, now: datetime, *, dry_run: bool = False) -> Kept | None:
        """Maintain a table and return the result, or return None if the table does not exist.

        A dry run changes nothing. Raises TableError if another process holds the table's lease, and a Delta
        conflict error if another writer rewrites the table's files on every attempt.
        """
        spark, spec = self._lake.spark, task.spec
        path = self._lake.path(spec.layer, spec.name)
        if not self._lake.exists(spec.layer, spec.name):
            return None
        files, stored = upkeep.current_size(spark, path), upkeep.stored_size(spark, path)
        rows = self._take(task, now, dry_run=dry_run)
        merged = self._merge_files(task, path, files, dry_run=dry_run)
        held = held_by(self._lake, task.readers, path)
        removed = upkeep.vacuum(spark, path, self._kept_for(task, held, now), dry_run=dry_run)
        if not dry_run:
            self._clean_log(task, path, now)
        left = stored if dry_run else upkeep.stored_size(spark, path)
        return Kept(spec.qualified_name, rows, (files, merged), (stored, left), removed, held)

    def _take(self, task: Task, now: datetime, *, dry_run: bool) -> int:
        if task.cut is None:
            return 0
        with nullcontext() if dry_run else self._holding(task):
            return retention.take(self._lake, task.spec, task.cut, now, dry_run=dry_run)

    def _merge_files(self, task: Task, path: str, files: Size, *, dry_run: bool) -> Size:
        spark, target_bytes = self._lake.spark, self._target_bytes_of(task, path)
        small = upkeep.small_files(spark, path, target_bytes)
        is_too_much = task.made_by is not None and small.bytes > self._most_bytes
        if is_too_much or not upkeep.has_many_small_files(small):
            return files
        if dry_run:
            return Size(files.files - small.files + 1 + small.bytes // target_bytes, files.bytes)
        with self._holding(task):
            tables.retry_on_conflict(lambda: upkeep.optimize(spark, path, task.spec.cluster_by, target_bytes))
        return upkeep.current_size(spark, path)

    def _target_bytes_of(self, task: Task, path: str) -> int:
        if task.made_by is None:
            return self._target_bytes
        return min(self._target_bytes, upkeep.bytes_of_rows(self._lake.spark, path, _ROWS_A_MERGED_FILE))

    def _holding(self, task: Task) -> AbstractContextManager[None]:
        if task.made_by is None:
            return nullcontext()
        if self._alone is not None:
            return self._alone()
        return leases.held(self._lake.spark, self._lake.path("gold", task.made_by), f"gold.{task.made_by}")

    def _kept_for(self, task: Task, held: Held | None, now: datetime) -> timedelta:
        """Return how long VACUUM must keep the files of a table's old versions."""
        least = least_kept(task, self._settings)
        if held is None or held.since is None:
            return least
        return max(least, now - held.since + _MARGIN)

    def _clean_log(self, task: Task, path: str, now: datetime) -> None:
        """Clean up the log, but keep the commits at readers' positions, even if every row has been read."""
        spark, needed = self._lake.spark, [least_kept(task, self._settings)]
        newest, first_kept = tables.version_of(spark, path), tables.first_version(spark, path)
        for reader in task.readers:
            position = position_of(self._lake, reader, path)
            if position is not None and first_kept <= position.version <= newest:
                needed.append(now - tables.committed_at(spark, path, position.version) + _MARGIN)
        upkeep.clean_log(spark, path, max(needed))
