"""A table's unread rows, split at commits into one part per micro-batch.

A query reads either appends or the change feed. Appends are the files in commits that only add rows. Commits
that change or remove rows are skipped, unless they correct rows and the query follows the table. A query that
begins with a table's existing rows first reads the files in one version. If all these files record the
landing times of their rows, the rows are read in landing order, even if OPTIMIZE has rearranged them. In this
case, a part ends at the first landing time in the next file, and contains the earlier rows from all files. A
file is read under the name in its commit, even if compaction has since replaced it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse.common.errors import TableError
from lakehouse.engine.progress.positions import BEFORE_ALL
from lakehouse.storage import tables
from lakehouse.storage.spark import files as storage
from lakehouse.storage.tables import Position
from lakehouse.storage.tables.entries import Action, LogEntry, landings_of, rows_of, size_of, total
from lakehouse.storage.tables.specs import FIRST, LANDED_AT, LAST

Landings = tuple[datetime, datetime]
"""The first and last landing time (UTC) of a file's records."""

MOST_COMMITS = 50
"""The maximum number of versions in one part."""


@dataclass(frozen=True)
class Part:
    """A part of a table between two positions. `files` are actions in the log.

    `files` can be empty, for example after compaction, or if all commits were skipped. `changed` contains
    version ranges (first, last) that are read from the change feed, because rows were removed or changed. If
    `changed` is empty, the files are appends. `foreign` lists the skipped commits by other writers. If the
    query begins with these files, the part contains only rows that landed at or after `since` and before
    `until` (UTC; None means no limit). `is_least` means that the part cannot be split further.
    """

    first: Position
    end: Position
    files: tuple[Action, ...] = ()
    changed: tuple[tuple[int, int], ...] = ()
    foreign: tuple[LogEntry, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    is_least: bool = False

    def __str__(self) -> str:
        return f"{self.first} to {self.end}"

    @property
    def rows(self) -> int | None:
        """The number of rows, or None if unknown."""
        is_unknown = self.changed or self.since is not None or self.until is not None
        return None if is_unknown else total([rows_of(file) for file in self.files])

    @property
    def divisible_bytes(self) -> int:
        """The size of the files, or 0 if the part cannot be split because it is one commit or `is_least`."""
        one = self.is_least if self.first.is_beginning else self.end.version - self.first.version == 1
        return 0 if one else size_of(self.files)

    def frame(self, spark: SparkSession, path: str) -> DataFrame:
        """Return the rows. In the ranges `changed`, they include removed rows, which `_change_type` marks."""
        if self.changed:
            every = (tables.read_changes(spark, path, first, last) for first, last in self.changed)
            return reduce(DataFrame.unionByName, every)
        return landed_within(tables.read_files(spark, path, self.files), self.since, self.until)


def beginning(spark: SparkSession, path: str) -> Position:
    """Return the starting position for a query that has read nothing from a table.

    If the log contains only a few commits, all of them appends, the position is before the first commit.
    Otherwise, it is before the files in the newest version.
    """
    if tables.is_in_its_commits(spark, path):
        return BEFORE_ALL
    return Position(tables.version_of(spark, path), 0)


def appends(
    spark: SparkSession, path: str, first: Position, end: int, *, max_bytes: int, follows: bool = False
) -> Part:
    """Return the next appends before the version `end`: about `max_bytes` of files, but at least one commit.

    A query that `follows` the table also receives rows from commits that correct rows. Raises TableError if
    log retention has removed a commit.
    """
    if first.is_beginning:
        return _first_files(spark, path, first, max_bytes)
    last = min(end, first.version + MOST_COMMITS)
    found = list(entries(spark, path, first.version, last))
    part = _versions(found, first, lambda entry: _read_of(entry, follows=follows), max_bytes)
    return _with_changes(
        part, [entry for entry in found if entry.version < part.end.version], follows=follows
    )


def changes(spark: SparkSession, path: str, first: Position, end: int, *, max_bytes: int) -> Part:
    """Return the next files of the change feed before the version `end`.

    Limits and errors are the same as for `appends`. If a query begins with a table's existing rows, those are
    read from the table itself.
    """
    if first.is_beginning:
        return _first_files(spark, path, first, max_bytes)
    last = min(end, first.version + MOST_COMMITS)
    found = entries(spark, path, first.version, last)
    return _versions(found, first, lambda entry: entry.feed, max_bytes)


def between(spark: SparkSession, path: str, first: Position, end: Position, *, follows: bool = False) -> Part:
    """Return all appends between two positions. Options and errors are the same as for `appends`."""
    if first.is_beginning:
        every = tables.files_at(spark, path, first.version)
        times = [landings_of(file) for file in every]
        return _part_of(every, times, first, len(every) if end.files is None else end.files)
    found = list(entries(spark, path, first.version, end.version))
    given = tuple(file for entry in found for file in _read_of(entry, follows=follows))
    return _with_changes(Part(first, end, given), found, follows=follows)


def changes_between(spark: SparkSession, path: str, first: Position, end: Position) -> Part:
    """Return the whole change feed between two positions. Raises TableError as `appends` does."""
    if first.is_beginning:
        return between(spark, path, first, end)
    found = entries(spark, path, first.version, end.version)
    return Part(first, end, tuple(file for entry in found for file in entry.feed))


def last_gone(spark: SparkSession, path: str, first: int, end: int) -> int | None:
    """Return the last version in a range whose change files VACUUM has removed, or None if there is none."""
    found = None
    for entry in entries(spark, path, first, end):
        names = (f"{path}/{unquote(str(file['path']))}" for file in entry.feed)
        if not all(storage.exists(spark, name) for name in names):
            found = entry.version
    return found


def files_since(spark: SparkSession, path: str, first: Position, version: int) -> list[Action]:
    """Return the files of a version that a reader at the position has not read yet."""
    known = set[str]()
    before = first.version if first.is_beginning else first.version - 1
    if before >= tables.first_version(spark, path):
        read = tables.files_at(spark, path, before)[: first.files]
        known = {str(file["path"]) for file in read}
    return [file for file in tables.files_at(spark, path, version) if str(file["path"]) not in known]


def entries(spark: SparkSession, path: str, first: int, end: int) -> Iterator[LogEntry]:
    """Yield a table's commits from version `first` up to, but not including, `end`.

    Raises TableError if log retention has removed a commit, or if a commit cannot be read.
    """
    for version in range(first, end):
        yield _entry(spark, path, version)


def entry_of(spark: SparkSession, path: str, version: int) -> LogEntry | None:
    """Return a commit from the log of a table, or None if the log no longer contains it."""
    try:
        return tables.read_commit(spark, path, version)
    except (Py4JJavaError, FileNotFoundError):
        return None


def _read_of(entry: LogEntry, *, follows: bool) -> Sequence[Action]:
    return entry.followed if follows else entry.appended


def _with_changes(part: Part, read: Sequence[LogEntry], *, follows: bool) -> Part:
    """Add the versions to read from the change feed, and the commits by other writers, to a part."""
    given = [entry for entry in read if follows and entry.followed]
    corrected = given if any(entry.rewrites for entry in given) else []
    foreign = tuple(entry for entry in read if entry.is_foreign)
    return replace(part, changed=_spans(entry.version for entry in corrected), foreign=foreign)


def _spans(versions: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Group ascending numbers into contiguous ranges."""
    spans = list[tuple[int, int]]()
    for version in versions:
        if spans and spans[-1][1] == version - 1:
            spans[-1] = (spans[-1][0], version)
        else:
            spans.append((version, version))
    return tuple(spans)


def _entry(spark: SparkSession, path: str, version: int) -> LogEntry:
    try:
        return tables.read_commit(spark, path, version)
    except ValueError as error:
        raise TableError(f"the table at {path} cannot be read: {error}") from error
    except (Py4JJavaError, FileNotFoundError) as error:
        kept = tables.first_version(spark, path)
        if version >= kept:
            raise
        raise TableError(
            f"the table at {path} was read up to version {version}, but its log begins at version {kept}: "
            "log retention has removed the commits in between"
        ) from error


def _versions(
    found: Iterable[LogEntry],
    first: Position,
    files_of: Callable[[LogEntry], Sequence[Action]],
    max_bytes: int,
) -> Part:
    files, size, end = list[Action](), 0, first.version
    for entry in found:
        more = files_of(entry)
        size += size_of(more)
        if files and size > max_bytes:
            break
        files, end = [*files, *more], end + 1
    return Part(first, Position(end), tuple(files))


def landed_before(spark: SparkSession, path: str, position: Position) -> datetime | None:
    """Return the landing time (UTC) before which a reader at this position has read all records.

    The position is between the files of one version. The time is None if the files do not record landing
    times; such files are read one at a time.
    """
    times = [landings_of(file) for file in tables.files_at(spark, path, position.version)]
    return times[position.files or 0][0] if times and _all_say(times) else None


def landed_within(rows: DataFrame, since: datetime | None, until: datetime | None) -> DataFrame:
    """Keep the rows that landed at or after `since` and before `until` (UTC; None means no limit)."""
    at = F.col(LANDED_AT)
    kept = rows if since is None else rows.where(at >= F.lit(since))
    return kept if until is None else kept.where(at.isNull() | (at < F.lit(until)))


def _first_files(spark: SparkSession, path: str, first: Position, max_bytes: int) -> Part:
    every, begin = tables.files_at(spark, path, first.version), first.files or 0
    times = [landings_of(file) for file in every]
    least = end = min(begin + 1, len(every))
    while end < len(every) and times[end][0] == times[begin][0] != FIRST:
        least = end = end + 1  # files that begin with the same landing time
    size = size_of(every[begin:end])
    while end < len(every) and (size := size + size_of([every[end]])) <= max_bytes:
        end += 1
    return replace(_part_of(every, times, first, end), is_least=end == least)


def _part_of(every: Sequence[Action], times: Sequence[Landings], first: Position, end: int) -> Part:
    """Return the part from a position between files of a version to file `end`, given landing times."""
    begin = first.files or 0
    position = Position(first.version + 1) if end == len(every) else Position(first.version, end)
    if not _all_say(times):
        return Part(first, position, tuple(every[begin:end]))
    since = times[begin][0] if begin else None
    until = times[end][0] if end < len(every) else None
    chosen = [place for place in range(end) if since is None or place >= begin or times[place][1] >= since]
    is_shared = until is not None and any(times[place][1] > until for place in chosen)
    return Part(
        first,
        position,
        tuple(every[place] for place in chosen),
        since=since if chosen[:1] != [begin] else None,
        until=until if is_shared else None,
    )


def _all_say(times: Sequence[Landings]) -> bool:
    """Return whether every file records when its records landed."""
    return not any(FIRST in one or LAST in one for one in times)
