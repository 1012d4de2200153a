"""A commit's actions in a Delta table's log. This is the only parser of log entries. No I/O.

A log entry is a file with one action per line, as JSON. An action is an object with one key, its kind: `add`,
`remove`, `cdc`, `txn`, `metaData`, `protocol`, `commitInfo`. Compaction adds and removes files without
changing a row; its actions have `dataChange: false`. (See "Actions" in Delta's protocol.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeGuard

from lakehouse.storage.tables.inside import refuse_outside
from lakehouse.storage.tables.specs import FIRST, LANDED_AT, LAST, TRUNCATED, Why, shifted

Action = Mapping[str, Any]
"""An action's fields, named as in the log."""

GIVEN_UP = "GIVEN UP"
"""The operation recorded in an empty entry that replaces a lost commit."""

LOG = "_delta_log"
"""The directory of a table's log, relative to the table's directory."""

_COMMIT = re.compile(r"([0-9]{20})\.json")
_ONLY_APPENDS = {"add", "commitInfo", "txn"}


def commit_name(version: int) -> str:
    """Return the path of a version's commit file, relative to the table's directory."""
    return f"{LOG}/{version:020}.json"


def commits_among(names: Iterable[str]) -> list[int]:
    """Return the versions of the commits among a log's file names, in ascending order."""
    return sorted(int(found[1]) for found in map(_COMMIT.fullmatch, names) if found is not None)


@dataclass(frozen=True)
class LogEntry:
    """A version's actions, in log order."""

    version: int
    actions: tuple[Mapping[str, Any], ...]

    def of(self, kind: str) -> Iterator[Action]:
        """Yield the fields of each action of the given kind."""
        return (action[kind] for action in self.actions if kind in action)

    @property
    def kinds(self) -> set[str]:
        """The kinds of actions in the commit."""
        return {kind for action in self.actions for kind in action}

    @property
    def rewrites(self) -> bool:
        """True if the commit removed or changed existing rows."""
        return any(map(_changes_rows, self.of("remove")))

    @property
    def appended(self) -> list[Action]:
        """The added files, for a reader of appends. Empty if the commit removed or changed existing rows."""
        return [] if self.rewrites else self.added

    @property
    def added(self) -> list[Action]:
        """The files that the commit added, with new or changed rows."""
        return [add for add in self.of("add") if _changes_rows(add)]

    @property
    def feed(self) -> list[Action]:
        """The files of the commit's change feed: change data files, or else the added and removed files."""
        own = list(self.of("cdc"))
        return own or [one for kind in ("add", "remove") for one in self.of(kind) if _changes_rows(one)]

    @property
    def followed(self) -> list[Action]:
        """The change feed files that a reader of both appends and corrections must read; see `Why`."""
        return self.feed if self.why is Why.CORRECTED or not self.rewrites else []

    @property
    def is_foreign(self) -> bool:
        """True if a writer other than lakehouse removed or changed rows."""
        return self.rewrites and self.why is None

    @property
    def has_same_rows(self) -> bool:
        """True if the table has the same rows as in the previous version, possibly in other files."""
        return not any(_changes_rows(one) for kind in ("add", "remove") for one in self.of(kind))

    @property
    def replaces_files(self) -> bool:
        """True if the commit removed files, including by compaction."""
        return any(self.of("remove"))

    @property
    def only_appends(self) -> bool:
        """True if the commit only added files."""
        return self.kinds <= _ONLY_APPENDS

    @property
    def is_given_up(self) -> bool:
        """True if the entry replaces a commit that was lost in a power failure (`tables.lasting`)."""
        return any(info.get("operation") == GIVEN_UP for info in self.of("commitInfo"))

    @property
    def why(self) -> Why | None:
        """The recorded reason for removing or changing rows, or None. Only lakehouse records reasons."""
        return next(
            (why for info in self.of("commitInfo") if (why := Why.of(info.get("userMetadata")))), None
        )

    @property
    def committed_ms(self) -> int | None:
        """The time of the commit, in ms since the epoch, or None if unknown."""
        return next(map(committed_ms_of, self.of("commitInfo")), None)

    @property
    def in_commit_ms(self) -> int | None:
        """The commit's in-commit timestamp, in ms since the epoch, or None if it has none."""
        return next(
            (int(at) for info in self.of("commitInfo") if (at := info.get("inCommitTimestamp"))), None
        )


def entry_of(version: int, text: str, table: str) -> LogEntry:
    """Parse an entry's text. Raises ValueError if the text is empty, incomplete or invalid.

    Raises TableError if an action names a file outside `table`, the table's path. Only a line feed ends a
    line, because names can contain U+2028 and other characters at which `str.splitlines` splits. Some writers
    include the keys of all kinds in each action, with null for all kinds but one.
    """
    lines = [json.loads(line) for line in text.split("\n") if line.strip()]
    if not lines or not all(isinstance(line, dict) for line in lines):
        raise ValueError(f"the commit of version {version} is empty or incomplete")
    entry = LogEntry(version, tuple(_without_nulls(line) for line in lines))
    files = [file for kind in ("add", "cdc") for file in entry.of(kind)]
    if not all(map(is_file, files)) or not all("path" in file for file in entry.of("remove")):
        raise ValueError(f"the commit of version {version} names a file without a path or size")
    refuse_outside(table, version, entry.actions)
    return entry


def is_file(action: object) -> bool:
    """Return whether an action has the two fields of a file that lakehouse uses: a path and a size."""
    return isinstance(action, dict) and isinstance(action.get("path"), str) and _is_count(action.get("size"))


def committed_ms_of(info: Action) -> int | None:
    """Return a commit's time, in ms since the epoch, from its `commitInfo`, or None if it is unknown."""
    at = info.get("inCommitTimestamp") or info.get("timestamp")
    return None if at is None else int(at)


def stats_of(action: Action) -> Mapping[str, Any]:
    """Return an added or removed file's statistics, or an empty mapping if they are missing or unreadable."""
    try:
        stats = json.loads(action.get("stats") or "{}")
    except (TypeError, ValueError):
        return {}
    return stats if isinstance(stats, dict) else {}


def rows_of(action: Action) -> int | None:
    """Return an added or removed file's row count, excluding deleted rows, or None if unknown."""
    records = stats_of(action).get("numRecords")
    if not _is_count(records):
        return None
    return records - int((action.get("deletionVector") or {}).get("cardinality") or 0)


def bounds_of(action: Action) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the minima and the maxima in a file's statistics, each keyed by column."""
    stats = stats_of(action)
    least, greatest = stats.get("minValues"), stats.get("maxValues")
    return least if isinstance(least, dict) else {}, greatest if isinstance(greatest, dict) else {}


def landings_of(action: Action) -> tuple[datetime, datetime]:
    """Return a file's earliest and latest ingestion times (UTC), or FIRST and LAST if they are unknown."""
    least, greatest = (moment_of(values.get(LANDED_AT)) for values in bounds_of(action))
    return least or FIRST, LAST if greatest is None else shifted(greatest, TRUNCATED)


def reading_order(landed: datetime, modified_ms: int, path: str) -> tuple[datetime, int, str]:
    """Return the sort key by which a new query reads files: first ingestion time, modification time, path."""
    return landed, modified_ms, path


def moment_of(noted: object) -> datetime | None:
    """Parse a time from the log as UTC. Return None if it is invalid or has no offset."""
    try:
        moment = datetime.fromisoformat(str(noted))
        return None if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def total(numbers: Sequence[int | None]) -> int | None:
    """Return the sum of the numbers, or None if any number is None."""
    return None if None in numbers else sum(number or 0 for number in numbers)


def size_of(files: Sequence[Action]) -> int:
    """Return the total size of files in bytes. A file of unknown size counts as 0."""
    return sum(int(file.get("size") or 0) for file in files)


def _without_nulls(action: Action) -> Action:
    return {kind: fields for kind, fields in action.items() if fields is not None}


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _changes_rows(action: Action) -> bool:
    return bool(action.get("dataChange", True))
