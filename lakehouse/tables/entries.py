"""What one commit of a Delta table did: the only reader of the actions in a log entry. Pure.

A log entry is a file of JSON, one action a line, each an object with one key, its kind: `add`, `remove`,
`cdc`, `txn`, `metaData`, `protocol`, `commitInfo`. Compaction adds and removes files without changing a row;
its actions say `dataChange: false`. (Delta's protocol, "Actions".)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeGuard

from lakehouse.tables.inside import refuse_outside
from lakehouse.tables.specs import FIRST, LANDED_AT, LAST, TRUNCATED, Why, shifted

Action = Mapping[str, Any]
"""An action's fields, in the words of the log."""

GIVEN_UP = "GIVEN UP"
"""What the entry of a lost commit says that it did."""

LOG = "_delta_log"
"""The directory of a table's log, below its own."""

_COMMIT = re.compile(r"([0-9]{20})\.json")
_ONLY_APPENDS = {"add", "commitInfo", "txn"}


def commit_name(version: int) -> str:
    """Return the path of a version's commit below its table's."""
    return f"{LOG}/{version:020}.json"


def commits_among(names: Iterable[str]) -> list[int]:
    """Return the versions whose commits are among the names of a log's files, in order."""
    return sorted(int(found[1]) for found in map(_COMMIT.fullmatch, names) if found is not None)


@dataclass(frozen=True)
class LogEntry:
    """A version's actions, in the order of its log."""

    version: int
    actions: tuple[Mapping[str, Any], ...]

    def of(self, kind: str) -> Iterator[Action]:
        """Yield the fields of every action of a kind."""
        return (action[kind] for action in self.actions if kind in action)

    @property
    def kinds(self) -> set[str]:
        """The kinds of actions that it has."""
        return {kind for action in self.actions for kind in action}

    @property
    def rewrites(self) -> bool:
        """Whether it removed or changed rows that were there before."""
        return any(map(_changes_rows, self.of("remove")))

    @property
    def appended(self) -> list[Action]:
        """The files that a reader of appends gets: none if it changed rows as well."""
        return [] if self.rewrites else self.added

    @property
    def added(self) -> list[Action]:
        """The files with rows that it wrote, whether new or changed."""
        return [add for add in self.of("add") if _changes_rows(add)]

    @property
    def feed(self) -> list[Action]:
        """The files of its change feed: its own ones, or else those that it adds and removes."""
        own = list(self.of("cdc"))
        return own or [one for kind in ("add", "remove") for one in self.of(kind) if _changes_rows(one)]

    @property
    def followed(self) -> list[Action]:
        """The files of its change feed that a reader of appends and corrections gets; see `Why`."""
        return self.feed if self.why is Why.CORRECTED or not self.rewrites else []

    @property
    def is_foreign(self) -> bool:
        """Whether another writer has removed or changed rows."""
        return self.rewrites and self.why is None

    @property
    def has_same_rows(self) -> bool:
        """Whether the table has the same rows as in the version before, in whatever files."""
        return not any(_changes_rows(one) for kind in ("add", "remove") for one in self.of(kind))

    @property
    def replaces_files(self) -> bool:
        """Whether it removed files, compaction's included."""
        return any(self.of("remove"))

    @property
    def only_appends(self) -> bool:
        """Whether it added files and did nothing else."""
        return self.kinds <= _ONLY_APPENDS

    @property
    def is_given_up(self) -> bool:
        """Whether it stands for a commit that was lost in a power failure (`lakehouse.tables.lasting`)."""
        return any(info.get("operation") == GIVEN_UP for info in self.of("commitInfo"))

    @property
    def why(self) -> Why | None:
        """Why rows have left the table or changed; null if it does not say, as other writers do not."""
        return next(
            (why for info in self.of("commitInfo") if (why := Why.of(info.get("userMetadata")))), None
        )

    @property
    def committed_ms(self) -> int | None:
        """When it was committed, in ms since the epoch; null if it does not say."""
        return next(map(committed_ms_of, self.of("commitInfo")), None)

    @property
    def in_commit_ms(self) -> int | None:
        """When it was committed, in ms since the epoch, by the log itself; null if only its file says so."""
        return next(
            (int(at) for info in self.of("commitInfo") if (at := info.get("inCommitTimestamp"))), None
        )


def entry_of(version: int, text: str, table: str) -> LogEntry:
    """Return the entry with this text; raises ValueError if it is empty, incomplete or not understood.

    Raises TableError, which names the path of the table, if it names a file outside of that.
    Lines end at a line feed only: names may have U+2028 and other signs at which `str.splitlines` splits.
    Some writers name every kind in each action, and leave all but one null.
    """
    lines = [json.loads(line) for line in text.split("\n") if line.strip()]
    if not lines or not all(isinstance(line, dict) for line in lines):
        raise ValueError(f"the commit of version {version} is empty or incomplete")
    entry = LogEntry(version, tuple(_without_nulls(line) for line in lines))
    files = [file for kind in ("add", "cdc") for file in entry.of(kind)]
    if not all(map(is_file, files)) or not all("path" in file for file in entry.of("remove")):
        raise ValueError(f"the commit of version {version} names a file without its path or size")
    refuse_outside(table, version, entry.actions)
    return entry


def is_file(action: object) -> bool:
    """Tell whether an action says of a file what is read here: its path and its size."""
    return isinstance(action, dict) and isinstance(action.get("path"), str) and _is_count(action.get("size"))


def committed_ms_of(info: Action) -> int | None:
    """Return when a commit was made, by its `commitInfo`."""
    at = info.get("inCommitTimestamp") or info.get("timestamp")
    return None if at is None else int(at)


def stats_of(action: Action) -> Mapping[str, Any]:
    """Return the statistics of a file that is added or removed; empty if there are none that can be read."""
    try:
        stats = json.loads(action.get("stats") or "{}")
    except (TypeError, ValueError):
        return {}
    return stats if isinstance(stats, dict) else {}


def rows_of(action: Action) -> int | None:
    """Return how many rows a file that is added or removed has; null if it does not say."""
    records = stats_of(action).get("numRecords")
    if not _is_count(records):
        return None
    return records - int((action.get("deletionVector") or {}).get("cardinality") or 0)


def bounds_of(action: Action) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the least and the greatest values in a file, by column, as far as its statistics say."""
    stats = stats_of(action)
    least, greatest = stats.get("minValues"), stats.get("maxValues")
    return least if isinstance(least, dict) else {}, greatest if isinstance(greatest, dict) else {}


def landings_of(action: Action) -> tuple[datetime, datetime]:
    """Return the times (UTC) between which the records of a file landed; if it does not say, any time."""
    least, greatest = (moment_of(values.get(LANDED_AT)) for values in bounds_of(action))
    return least or FIRST, LAST if greatest is None else shifted(greatest, TRUNCATED)


def reading_order(landed: datetime, modified_ms: int, path: str) -> tuple[datetime, int, str]:
    """Return by what the files are ordered with which a query begins: the least landing, then their age."""
    return landed, modified_ms, path


def moment_of(noted: object) -> datetime | None:
    """Return a time (UTC) as a writer has noted it; null if it is none, or without an offset."""
    try:
        moment = datetime.fromisoformat(str(noted))
        return None if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def total(numbers: Sequence[int | None]) -> int | None:
    """Return the sum, null if a number is null."""
    return None if None in numbers else sum(number or 0 for number in numbers)


def size_of(files: Sequence[Action]) -> int:
    """Return the bytes of files, as far as the log says."""
    return sum(int(file.get("size") or 0) for file in files)


def _without_nulls(action: Action) -> Action:
    return {kind: fields for kind, fields in action.items() if fields is not None}


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _changes_rows(action: Action) -> bool:
    return bool(action.get("dataChange", True))
