"""What each file of a Delta table is, and until when it stays. Reads the table's log, without a JVM."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote

from lakehouse.operations.erasure.report import Until
from lakehouse.storage.files import Stored
from lakehouse.storage.tables.entries import LOG, commits_among
from lakehouse.storage.tables.watched_log import WatchedLog

NEWEST, OLD, FEED, LOGGED, CHECKPOINT, CHECKSUM, OTHER = (
    "newest version",
    "old version",
    "change feed",
    "log",
    "checkpoint",
    "checksum",
    "other file",
)
_FEED = "_change_data/"
_CHECKPOINT = re.compile(r"[0-9]{20}\.checkpoint\..*|_sidecars/.*")
_HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class TableFiles:
    """The data files of a table's newest version, and when others were removed (epoch ms), by their paths.

    kept      how long maintenance keeps the files and commits of old versions; None: no stream has this
              table, so no maintenance removes anything
    is_known  whether the log could be read without a gap
    """

    newest: frozenset[str]
    removed_ms: Mapping[str, int]
    kept: timedelta | None
    is_known: bool = True

    def kind(self, name: str) -> str:
        """Return what a file is, by its path relative to the table's directory."""
        if name.startswith(f"{LOG}/"):
            name = name.removeprefix(f"{LOG}/")
            if _CHECKPOINT.fullmatch(name):
                return CHECKPOINT
            return CHECKSUM if name.endswith(".crc") else LOGGED
        if name.startswith(_FEED):
            return FEED
        if name in self.newest:
            return NEWEST
        if not self.is_known or any(part.startswith(("_", ".")) for part in name.split("/")):
            return OTHER
        return OLD

    def until(self, kind: str, file: Stored) -> Until:
        """Return until when a file stays. Its path is relative to the table's directory."""
        if kind == NEWEST:
            return Until(None, "until its rows are deleted, and then like an old version")
        if kind == OTHER:
            return Until(None, "until it is removed by hand")
        if self.kept is None:
            return Until(None, "no stream has this table, so maintenance removes nothing")
        if kind in {OLD, FEED}:
            since_ms = max(file.modified_ms, self.removed_ms.get(file.path, 0))
            return Until(_moment(since_ms) + self.kept, "then maintenance removes it (VACUUM)")
        return Until(
            _next_hour(_moment(file.modified_ms) + self.kept),
            "then maintenance removes it, once a newer checkpoint exists",
        )


def read_table(path: str, kept: timedelta | None) -> TableFiles:
    """Read a table's log. Raises TableError if it names files outside the table, and OSError.

    The files are unknown if a commit since the checkpoint is missing or broken. This includes a log whose
    only checkpoint is of a kind that lakehouse does not read (V2).
    """
    log, newest, removed_ms = WatchedLog(path), set[str](), dict[str, int]()
    names, version = log.names(), -1
    checkpoint = log.checkpoint(names)
    if checkpoint is not None:
        version, parts = checkpoint
        for part in parts:
            adds = (action["add"] for action in log.actions(version, part) if action.get("add"))
            newest.update(unquote(str(add["path"])) for add in adds)
    for number in commits_among(names):
        read = log.read(number)
        if number > version + 1 or (read is None and number > version):
            return unknown(kept)
        if read is None:
            continue
        for remove in read[0].of("remove"):
            name = unquote(str(remove["path"]))
            removed_ms[name] = int(remove.get("deletionTimestamp") or 0)
            if number > version:
                newest.discard(name)
        if number > version:
            newest.update(unquote(str(add["path"])) for add in read[0].of("add"))
            version = number
    return TableFiles(frozenset(newest), removed_ms, kept)


def unknown(kept: timedelta | None) -> TableFiles:
    """Return the files of a table whose log cannot be read completely."""
    return TableFiles(frozenset(), {}, kept, is_known=False)


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _next_hour(moment: datetime) -> datetime:
    """Return the next full hour, because the clean-up of a log ends at one."""
    return moment.replace(minute=0, second=0, microsecond=0) + _HOUR
