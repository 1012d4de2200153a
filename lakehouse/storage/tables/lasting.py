"""Ensure that commits to tables on this machine's disks survive a power failure.

Neither Spark nor Delta calls fsync. After a power failure, a file that was written just before can be empty,
and Spark treats an empty commit as a commit without actions. A writer therefore syncs a commit and its files
to the disk (`keep`) before anything builds on the commit.

A process looks for lost files when it first checks a table (`look`), and again if the lake is reopened. If
the lost files belong to the newest commits, no reader has seen these commits, so empty commits replace them.
Positions are stored in the commits, so the steps redo the lost work. If later commits build on a lost commit,
the table is refused. The log's checkpoints and the newest version's checksum (`.crc`) are optional, so
unreadable ones are removed.

Tables elsewhere, for example on HDFS or in an object store, rely on that store's durability.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from lakehouse.common.errors import TableError
from lakehouse.common.events import Kind, note
from lakehouse.common.memory import on_forget
from lakehouse.common.state_files import sync, write_whole
from lakehouse.storage.tables.entries import GIVEN_UP, LOG, LogEntry, commit_name, commits_among, entry_of

_MOST_COMMITS = 100  # older commits reached the disk long ago
_SURELY_S = 1.0  # on a shared disk, another machine's file may appear a moment before its content
_OF_A_VERSION = re.compile(r"\.?([0-9]{20})\..+")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\..*parquet")
_HINT = "_last_checkpoint"
_PARQUET = b"PAR1"  # at both ends of a file
_CHECKSUM = b"crc\0"  # starts a Hadoop checksum file; 4 bytes for the block size and 4 per checksum follow
_BYTES_A_CHECKSUM = 512

_kept: dict[Path, int] = {}
"""The last version known to be on the disk, for each table that this process has seen."""
on_forget(_kept.clear)
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Damage:
    """An unreadable commit, or a commit with an unreadable data file. `what` describes the damage."""

    version: int
    file: Path
    what: str


def keep(path: Path, version: int) -> None:
    """Sync a table's commits to the disk: all commits since the last call, up to `version`."""
    first = min(_kept.get(path, version), version - 1) + 1
    for number in range(max(first, version - _MOST_COMMITS), version + 1):
        with suppress(FileNotFoundError):
            _sync(path, _read(path, number))
    sync(path / LOG)
    _kept[path] = version


def keep_checkpoints(path: Path) -> None:
    """Sync the log's checkpoints to the disk before the commits that they replace are removed."""
    for file in (path / LOG).glob("*.checkpoint*"):
        sync(file)


def look(path: Path, name: str) -> None:
    """Check the table at the path for damage from a power failure, once per process.

    Does nothing if there is no table. If the newest commits are damaged, empty commits replace them. Raises
    TableError if the steps would not write the lost rows again; the message names the damaged file.
    """
    if path in _kept or not (numbers := _numbers(path)):
        return
    if found := damages(path):
        time.sleep(_SURELY_S)
        found = damages(path)
    checkpoints, unreadable = _checkpoints(path)
    first = found[0].version if found else numbers[-1] + 1
    builds_on_it = set(range(first, numbers[-1] + 1)) - {one.version for one in found}
    has_no_basis = numbers[0] > 0 and not any(version < first for version in checkpoints)
    if builds_on_it or (has_no_basis and (found or unreadable)):
        raise _lost((found or unreadable)[0], name)
    for one in unreadable:
        log.warning("%s %s, as after a power failure; removing it", one.file, one.what)
        _remove(one.file)
    _check_hint(path / LOG / _HINT, {version for version in checkpoints if version < first})
    for one in reversed(found):
        _give_up(path, name, one, is_first=first == 0)
    left = _numbers(path)
    _check_noted(path / LOG / f"{max(left, default=0):020}.crc")
    for number in left[-_MOST_COMMITS:]:
        with suppress(FileNotFoundError):
            for file, _ in _files(path, _read(path, number), set()):
                _check_checksum(file)
    keep(path, max(left, default=-1))


def _lost(one: Damage, name: str) -> TableError:
    return TableError(
        f"{name} has lost data from version {one.version}: {one.file} {one.what}, as after a power failure, "
        "and later versions build on it. Restore that file from a copy, or recreate the table: "
        "docs/power-and-disks.md"
    )


def damages(path: Path) -> list[Damage]:
    """Return the damage to the table's newest commits, at most one Damage per commit, ordered by version."""
    entries, found = list[LogEntry](), list[Damage]()
    for number in _numbers(path)[-_MOST_COMMITS:]:
        try:
            entries.append(_read(path, number))
        except FileNotFoundError:  # log cleanup has just removed the commit
            continue
        except ValueError:
            file = _commit(path, number)
            found.append(Damage(number, file, "is cut off" if file.stat().st_size else "is empty"))
    gone = {str(one["path"]) for entry in entries for one in entry.of("remove")}
    for entry in entries:
        for file, size in _files(path, entry, gone):
            if (what := _wrong(file, size)) is not None:
                found.append(Damage(entry.version, file, what))
                break
    return sorted(found, key=lambda one: one.version)


def _give_up(path: Path, name: str, one: Damage, *, is_first: bool) -> None:
    """Replace a damaged commit with an empty one, so that no later commit gets the same version.

    If version 0 is damaged (`is_first`), there is no table, and the commit is only removed.
    """
    for file in (path / LOG).iterdir():
        version = _OF_A_VERSION.fullmatch(file.name)
        if version is not None and int(version[1]) == one.version:
            file.unlink(missing_ok=True)
    if not is_first:
        at_ms = int(time.time() * 1000)
        done = {"timestamp": at_ms, "inCommitTimestamp": at_ms, "operation": GIVEN_UP}
        write_whole(_commit(path, one.version), json.dumps({"commitInfo": done}) + "\n", lasting=True)
    said = (
        f"{name}: version {one.version} had not reached the disk when the machine stopped ({one.file.name} "
        f"{one.what}); it is discarded, and its input is read again"
    )
    log.warning("%s", said)
    note(Kind.RECOVERY, said, layer=name.partition(".")[0], table=name)


def _checkpoints(path: Path) -> tuple[set[int], list[Damage]]:
    """Return the versions of the log's readable checkpoints, and the damage to the others."""
    whole, unreadable = set[int](), list[Damage]()
    for file in sorted((path / LOG).iterdir()):
        if (version := _CHECKPOINT.fullmatch(file.name)) is not None:
            what = _wrong(file, None)
            if what is None:
                whole.add(int(version[1]))
            else:
                unreadable.append(Damage(int(version[1]), file, what))
    return whole - {one.version for one in unreadable}, unreadable


def _check_hint(hint: Path, checkpoints: set[int]) -> None:
    """Remove `_last_checkpoint` if it cannot be read or names a missing checkpoint."""
    try:
        named = int(json.loads(hint.read_text(encoding="utf-8"))["version"])
    except FileNotFoundError:
        return
    except (ValueError, LookupError, TypeError):
        named = -1
    if named not in checkpoints:
        _remove(hint)


def _check_noted(file: Path) -> None:
    """Remove the newest version's checksum if incomplete, because Delta would start its totals at zero."""
    try:
        noted = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except ValueError:
        noted = None
    if not isinstance(noted, dict) or not noted.get("metadata"):
        _remove(file)


def _check_checksum(file: Path) -> None:
    """Remove a file's Hadoop checksum if it is incomplete; otherwise Spark could not read the file."""
    checksum = file.with_name(f".{file.name}.crc")
    with suppress(FileNotFoundError):
        length = len(_CHECKSUM) + 4 + 4 * -(-file.stat().st_size // _BYTES_A_CHECKSUM)
        if not (content := checksum.read_bytes()).startswith(_CHECKSUM) or len(content) != length:
            _remove(checksum)


def _remove(file: Path) -> None:
    """Remove a file and its Hadoop checksum. Do nothing if this user lacks permission."""
    with suppress(PermissionError):
        file.unlink(missing_ok=True)
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def _numbers(path: Path) -> list[int]:
    """Return the versions whose commits are in the log, in ascending order."""
    try:
        return commits_among(file.name for file in (path / LOG).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _commit(path: Path, version: int) -> Path:
    return path / commit_name(version)


def _read(path: Path, version: int) -> LogEntry:
    return entry_of(version, _commit(path, version).read_text(encoding="utf-8"), str(path))


def _files(path: Path, entry: LogEntry, gone: set[str]) -> Iterator[tuple[Path, int]]:
    """Yield a commit's files with their sizes from the log, except files since removed from the table."""
    for one in (*entry.of("add"), *entry.of("cdc")):
        if str(one["path"]) not in gone:
            yield path / unquote(str(one["path"])), int(one["size"])


def _sync(path: Path, entry: LogEntry) -> None:
    files = [file for file, _ in _files(path, entry, set())]
    for file in (*files, *{file.parent for file in files}):
        with suppress(FileNotFoundError):  # the file was compacted and removed in the meantime
            sync(file)
    sync(_commit(path, entry.version))


def _wrong(file: Path, size: int | None) -> str | None:
    """Return a description of a Parquet file's damage, or None if the file is intact or missing."""
    try:
        with file.open("rb") as opened:
            there = opened.seek(0, 2)
            if size is not None and there != size:
                return f"has {there:,} of {size:,} bytes"
            opened.seek(max(0, there - len(_PARQUET)))
            return None if opened.read() == _PARQUET else "is cut off" if there else "is empty"
    except FileNotFoundError:
        return None
