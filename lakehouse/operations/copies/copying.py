"""Copy a whole lake to another directory or store while the streams run, and adopt a copy.

A lake's files never change. They are copied byte for byte, together with each table's log up to the chosen
version (`choosing`). Ids, versions, positions, change feeds, properties and times are therefore the same as
in the original. All tables' files are copied first, followed by the logs, from bronze to gold. A copy
therefore remains consistent while it is updated, and a rerun completes an interrupted copy.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from urllib.parse import unquote

from py4j.protocol import Py4JError

from lakehouse.common.errors import TableError
from lakehouse.common.paths import location
from lakehouse.engine.formats.schemas import DIRECTORY as SCHEMAS
from lakehouse.engine.progress import sent
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.operations.copies import marker as markers
from lakehouse.operations.copies.choosing import Chosen, choose, newest
from lakehouse.operations.copies.marker import Copied, Marker
from lakehouse.storage import tables
from lakehouse.storage.spark import files as storage
from lakehouse.storage.spark.query_errors import what_of
from lakehouse.storage.tables import Lake
from lakehouse.storage.tables.adoption import Adoption, adoption_in
from lakehouse.storage.tables.entries import LOG
from lakehouse.streams.definition import Stream

_AT_ONCE = 8  # files copied in parallel, because store latency dominates
_ATTEMPTS = 3
_OF_LOG = re.compile(r"(\d{20})\.(json|crc|checkpoint\..*parquet)")
_HINT = "_last_checkpoint"  # without it, Delta lists the log to find its last checkpoint
_FEED = "_change_data/"
_OPS = "ops"


@dataclass
class Counted:
    """The number of tables in the copy, and the number of files and bytes that this run has copied."""

    tables: int = 0
    files: int = 0
    bytes: int = 0


Tell = Callable[[str, int, int], None]
"""A progress callback. Its arguments are a table's name, the number of copied files, and the total."""


@dataclass
class Copying:
    """A copy operation from `lake` to `to`. `tell` is called after each file."""

    lake: Lake
    to: Lake
    streams: Sequence[Stream]
    tell: Tell = lambda _table, _done, _all: None
    done: Counted = field(default_factory=Counted)

    def run(self) -> Marker:
        """Copy the lake, or update an existing copy. Return the marker file's contents.

        A rerun copies only missing files. Raises TableError if the destination is neither empty nor a copy of
        this lake, is not writable, or has been changed since it was copied. Also raises TableError if files
        are removed faster than they can be copied.
        """
        refuse_nesting(self.lake.root, self.to.root)
        try:
            standing = self._standing()
            for _ in range(_ATTEMPTS):
                made = self._attempt(standing)
                if made is not None:
                    return made
        except (OSError, Py4JError) as error:
            raise TableError(
                f"{self.lake.root} could not be copied to {self.to.root}: {what_of(error)}. To continue, "
                "run the same command again; copied files are kept"
            ) from error
        raise TableError(
            f"files of {self.lake.root} were removed faster than they could be copied. Set "
            "maintenance.keep_versions to a longer time than a copy takes, then run the copy again"
        )

    def _standing(self) -> Marker:
        """Return the marker of the copy at the destination, or a new marker if the destination is empty.

        Raises TableError for any other directory.
        """
        spark, root = self.to.spark, self.to.root
        found = markers.read(spark, root)
        if found is None:
            if storage.names(spark, root):
                raise TableError(f"{root} is not empty and not a copy of a lake; choose another location")
            return Marker(self.lake.root)
        for layer in storage.names(spark, root):
            for name in () if layer.startswith("_") else storage.names(spark, f"{root}/{layer}"):
                self._refuse_other(layer, name, found)
        return found

    def _refuse_other(self, layer: str, name: str, marker: Marker) -> None:
        table, version = f"{layer}.{name}", newest(self.to, layer, name)
        noted = marker.known.get(table)
        if version < 0 or layer == _OPS:  # commands that run on the copy record events in ops
            return
        if noted is None or version > noted.version:
            raise TableError(
                f"{table} at {self.to.root} was written to after it was copied, so it is no longer an exact "
                "copy; choose another location"
            )
        path = self.lake.path(layer, name)
        id_ = tables.table_id(self.lake.spark, path) if self.lake.exists(layer, name) else None
        if id_ != noted.id:
            there = "is gone" if id_ is None else f"has id {id_}"
            raise TableError(
                f"{self.to.root} is a copy of a different lake, or {table} was recreated since: the copy has "
                f"id {noted.id}, and the table at {path} {there}. Choose another location"
            )

    def _attempt(self, standing: Marker) -> Marker | None:
        """Copy everything once. Return None if files were removed, so newer versions must be chosen."""
        self.done = Counted()
        notes, at = self._notes(), markers.now()
        chosen = choose(self.lake, self.streams)
        towards = {one.qualified_name: self._copied(one) for one in chosen}
        marker = replace(standing, towards={**standing.known, **towards})
        markers.write(self.to.spark, self.to.root, marker)
        lying = {one: self._copy_files(one) for one in chosen}
        if not all(self._is_whole(one, lying[one]) for one in chosen):
            return None
        for one in chosen:
            if one.layer == _OPS:
                self._forget_own(one, marker)
        if not all(self._copy_log(one, at_once=standing.tables is None) for one in reversed(chosen)):
            return None
        for one in chosen:
            self._forget_old(one, lying[one])
        for file, text in notes.items():
            storage.write_text(self.to.spark, file, text)
        if storage.on_this_machine(self.to.spark, self.to.root) is not None:
            os.sync()
        made = Marker(self.lake.root, at, towards)
        markers.write(self.to.spark, self.to.root, made)
        return made

    def _notes(self) -> dict[str, str]:
        """Return the contents of the export notes and record schemas, keyed by destination path.

        The notes are read before the versions are chosen, so no chosen version is older than the notes.
        """
        found, spark = dict[str, str](), self.lake.spark
        for file in storage.names(spark, f"{self.lake.root}/{SCHEMAS}"):
            if file.endswith(".json") and not file.startswith("."):
                text = storage.read_text(spark, f"{self.lake.root}/{SCHEMAS}/{file}")
                found[f"{self.to.root}/{SCHEMAS}/{file}"] = text
        of_gold = [("gold", name) for name in storage.names(spark, f"{self.lake.root}/gold")]
        for table in [*of_gold, (DEAD_LETTERS.layer, DEAD_LETTERS.name)]:
            source, target = (sent.directory_of(one.path(*table)) for one in (self.lake, self.to))
            for file in storage.names(spark, source):
                if file.endswith(".json") and not file.startswith("."):
                    found[f"{target}/{file}"] = storage.read_text(spark, f"{source}/{file}")
        return found

    def _copied(self, one: Chosen) -> Copied:
        return Copied(tables.table_id(self.lake.spark, self.lake.path(one.layer, one.name)), one.version)

    def _copy_files(self, one: Chosen) -> dict[str, int] | None:
        """Copy a table's files, except its log. Return all file sizes, or None if some files were removed."""
        lying, there = _files(self.lake, one), _files(self.to, one)
        missing = {name: size for name, size in lying.items() if there.get(name) != size}
        self.done.tables += 1
        return lying if self._copy(one, missing, at_once=True) else None

    def _is_whole(self, one: Chosen, lying: Mapping[str, int] | None) -> bool:
        """Return whether all files in the table's chosen version were copied."""
        if lying is None:
            return False
        path = self.lake.path(one.layer, one.name)
        named = {unquote(file.path) for file in tables.files(self.lake.spark, path, one.version)}
        return named <= lying.keys()

    def _copy_log(self, one: Chosen, *, at_once: bool) -> bool:
        """Copy a table's log, oldest commits first. Return False if a log file was removed meanwhile."""
        lying, there = (_log(lake, one) for lake in (self.lake, self.to))
        missing = {name: size for name, size in lying.items() if there.get(name) != size}
        commits = {name: missing.pop(name) for name in sorted(missing) if name.endswith(".json")}
        is_whole = self._copy(one, missing, at_once=True) and self._copy(one, commits, at_once=at_once)
        if is_whole:
            self._remove(one, there.keys() - lying.keys())
        return is_whole

    def _forget_own(self, one: Chosen, marker: Marker) -> None:
        """Remove commits that commands made on the copy, because their versions clash with the original's."""
        known = (marker.tables or {}).get(one.qualified_name)
        last = -1 if known is None else known.version
        names = storage.names(self.to.spark, f"{self.to.path(one.layer, one.name)}/{LOG}")
        own = [name for name in names if name == _HINT or _version(name) > last]
        self._remove(one, [f"{LOG}/{name}" for name in own])

    def _forget_old(self, one: Chosen, lying: Mapping[str, int] | None) -> None:
        """Remove a table's files from the copy if the original no longer contains them."""
        self._remove(one, _files(self.to, one).keys() - (lying or {}).keys())

    def _copy(self, one: Chosen, files: Mapping[str, int], *, at_once: bool) -> bool:
        source, target = (lake.path(one.layer, one.name) for lake in (self.lake, self.to))

        def copied(name: str) -> bool:
            return storage.copy(self.lake.spark, f"{source}/{name}", f"{target}/{name}")

        self.tell(one.qualified_name, 0, len(files))
        with ThreadPoolExecutor(_AT_ONCE if at_once else 1) as pool:
            are_there = []
            for number, is_there in enumerate(pool.map(copied, files), start=1):
                are_there.append(is_there)
                self.tell(one.qualified_name, number, len(files))
        self.done.files += sum(are_there)
        self.done.bytes += sum(
            size for size, is_there in zip(files.values(), are_there, strict=True) if is_there
        )
        return all(are_there)

    def _remove(self, one: Chosen, names: Iterable[str]) -> None:
        path = self.to.path(one.layer, one.name)
        for name in names:
            storage.delete(self.to.spark, f"{path}/{name}")


def refuse_nesting(root: str, to: str) -> None:
    """Raise TableError if either directory contains the other."""
    one, other = (f"{location(place).rstrip('/')}/" for place in (root, to))
    if one.startswith(other) or other.startswith(one):
        raise TableError(f"one of {to} and {root} contains the other; copy the lake to another location")


def _files(lake: Lake, one: Chosen) -> dict[str, int]:
    """Return the size of each data file and change feed file of a table, keyed by file name."""
    lying = storage.lying(lake.spark, lake.path(one.layer, one.name))
    return {name: size for name, size in lying.items() if not name.startswith("_") or name.startswith(_FEED)}


def _log(lake: Lake, one: Chosen) -> dict[str, int]:
    """Return the size of each log file of a table up to the chosen version, keyed by file name."""
    lying = storage.lying(lake.spark, f"{lake.path(one.layer, one.name)}/{LOG}")
    return {f"{LOG}/{name}": size for name, size in lying.items() if 0 <= _version(name) <= one.version}


def _version(name: str) -> int:
    found = _OF_LOG.fullmatch(name.rpartition("/")[2])
    return -1 if found is None else int(found[1])


def note_adoption(lake: Lake) -> Marker:
    """Record in each exported table that the copy was adopted. Return the copy's marker.

    The exported tables are the gold tables and the dead letters. Versions after the adoption belong to the
    copy.

    A rerun changes nothing. Raises TableError if the lake is not a copy, if the copy is unfinished or was
    written to, or if a table is not safe to read.
    """
    marker = markers.refuse_unfinished(lake)
    if marker is None:
        raise TableError(
            f"{lake.root} is not a copy, or has already been adopted: run `lakehouse run` without --adopt"
        )
    for table in marker.known:
        lake.exists(*table.split(".", 1))  # raises if the table is not safe to read
    at_ms = int(time.time() * 1000)
    for table in marker.known:
        if table.startswith("gold.") or table == DEAD_LETTERS.qualified_name:
            _note(lake, table, marker, at_ms)
    return marker


def _note(lake: Lake, table: str, marker: Marker, at_ms: int) -> None:
    place = table.split(".", 1)
    path, last = lake.path(*place), newest(lake, *place)
    if last <= marker.known[table].version:
        if last >= 0:
            tables.note(lake.spark, path, [Adoption(at_ms, last).move])
        return
    adoption = adoption_in(tables.transactions(lake.spark, path))
    copied_ms = datetime.fromisoformat(marker.at).timestamp() * 1000
    if adoption is None or adoption.at_ms < copied_ms:
        raise TableError(
            f"{table} at {path} was written to after it was copied, so its versions may differ from "
            "the original's. Copy the lake again, to another location"
        )
