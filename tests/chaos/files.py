"""Contents of tables' logs and directories, read from their files, without Spark.

Except for exports, a query is named after its table: `silver.sales_events`.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from lakehouse.settings import Settings
from tests.support.pipeline import Row, path_of, version_of, with_micros
from tests.support.streams import STREAMS, key_of

Note = tuple[str, int]
"""A query's position in a commit: `<query> reads <source>`, and the first unread position."""

SOURCES: Mapping[str, Sequence[str]] = {
    **{f"silver.{one.table}": (f"bronze.{one.table}",) for stream in STREAMS for one in stream.sources},
    **{
        f"gold.{table.name}": tuple(f"silver.{name}" for name in table.reads)
        for stream in STREAMS
        for table in stream.gold
    },
    **{f"export.{table.name}": (f"gold.{table.name}",) for stream in STREAMS for table in stream.tables},
}
"""The tables that each query reads; bronze reads Kafka."""
BRONZE = {f"bronze.{one.table}": one.topic for stream in STREAMS for one in stream.sources}
EXPORTS = {
    f"export.{table.name}": table.export.topic
    for stream in STREAMS
    for table in stream.tables
    if table.export.topic is not None
}
"""The topics that exports fill."""
QUERIES = {
    layer: [name for name in (*BRONZE, *SOURCES) if name.startswith(layer)]
    for layer in ("bronze", "silver", "gold", "export")
}
TABLES = [name for name in (*BRONZE, *SOURCES) if not name.startswith("export")] + [
    "silver.dead_letters",
    "gold.sales_notifications",
]


def commit_file(settings: Settings, table: str, version: int) -> Path:
    """Return the log file of a table's version."""
    return path_of(settings, table) / "_delta_log" / f"{version:020}.json"


def notes_of(commit: Path) -> list[Note]:
    """Return the queries' positions in a commit."""
    return [(txn["appId"], txn["version"]) for txn in _of(commit, "txn")]


def last_note(settings: Settings, table: str, application: str) -> int | None:
    """Return an application's position from the last commit that records it, or None if there is none."""
    for version in range(version_of(settings, table), -1, -1):
        for found, place in notes_of(commit_file(settings, table, version)):
            if found == application:
                return place
    return None


def repeated_notes(settings: Settings) -> Iterator[str]:
    """Yield positions in a table's commits that do not advance, which means that something was read twice."""
    for table in TABLES:
        reached: dict[str, int] = defaultdict(lambda: -1)
        for version in range(version_of(settings, table) + 1):
            for application, place in notes_of(commit_file(settings, table, version)):
                if place <= reached[application]:
                    yield f"{table} {version}: {application} {place}, after {reached[application]}"
                reached[application] = max(place, reached[application])


def table_id(settings: Settings, table: str) -> str:
    """Return the id that a table was given at its creation."""
    (metadata,) = _of(commit_file(settings, table, 0), "metaData")
    return str(metadata["id"])


def behind(settings: Settings, ends: Mapping[str, Mapping[int, int]]) -> list[str]:
    """Return the queries that have not read all existing rows; `ends` are the topics' ends by partition."""
    landing = [name for name, topic in BRONZE.items() if not _has_landed(settings, name, ends[topic])]
    return landing + [
        query
        for query, tables in SOURCES.items()
        if not all(_has_read(settings, query, table) for table in tables)
    ]


def _has_landed(settings: Settings, query: str, ends: Mapping[int, int]) -> bool:
    """Return whether a bronze query has landed every record of its topic, which chaos runs never recreate."""
    waiting, version = {str(n): end for n, end in ends.items() if end}, version_of(settings, query)
    while waiting and version >= 0:
        for application, place in notes_of(commit_file(settings, query, version)):
            if waiting.pop(application.rpartition("/")[2], place) > place:
                return False
        version -= 1
    return not waiting


def _has_read(settings: Settings, query: str, table: str) -> bool:
    """Return whether a query has read every commit of a table that is relevant to it."""
    exports, newest = query.startswith("export"), version_of(settings, table)
    if newest < 0:
        return False  # it has not been created yet
    if exports and any(one.endswith("_is_behind") for note in _export_notes(settings, table) for one in note):
        return False  # a sink is waiting to be filled
    first = sent(settings, table) if exports else _position(settings, query, table)
    commits = (commit_file(settings, table, n) for n in range(first, newest + 1))
    kinds = (set(_changes(commit)) for commit in commits)
    # Readers of the change feed read every commit that changes rows; readers of appends read only appends.
    is_corrected = table == "silver.transactions" and key_of(settings, "transactions", "sequence_by")
    follows = exports or is_corrected
    return not any(one if follows else one == {"add"} for one in kinds)


def _changes(commit: Path) -> Iterator[str]:
    """Yield the kind of each action in a commit that changes rows, which compaction does not."""
    for kind in ("add", "remove", "cdc"):
        yield from (kind for action in _of(commit, kind) if kind == "cdc" or action["dataChange"])


def _position(settings: Settings, query: str, table: str) -> int:
    """Return a table's first version that a query has not read, according to the table that it writes."""
    return last_note(settings, query, f"{query} reads {table_id(settings, table)}") or 0


def sent(settings: Settings, table: str) -> int:
    """Return the first version of a table that has not been exported, according to the notes next to it."""
    return max((int(note["version"]) for note in _export_notes(settings, table)), default=0)


def _export_notes(settings: Settings, table: str) -> Iterator[dict[str, Any]]:
    for file in (path_of(settings, table) / "_lakehouse_export").glob("*.json"):
        yield json.loads(file.read_text())


class Writing:
    """Finds tables that are being written to: they have new files that no commit contains."""

    def __init__(self, settings: Settings, tables: Iterable[str]) -> None:
        self._settings = settings
        self._before = {table: (version_of(settings, table), self._files(table)) for table in tables}

    def look(self) -> list[str]:
        """Return the tables that are being written to."""
        return [table for table in self._before if self._is_written(table)]

    def _is_written(self, table: str) -> bool:
        before, files = self._before[table]
        new = self._files(table) - files
        if not new:
            return False
        newest = version_of(self._settings, table)
        for version in range(before + 1, newest + 1):
            commit = commit_file(self._settings, table, version)
            files |= {
                file["path"].rpartition("/")[2] for kind in ("add", "cdc") for file in _of(commit, kind)
            }
        self._before[table] = newest, files
        return bool(new - files)

    def _files(self, table: str) -> set[str]:
        path = path_of(self._settings, table)
        directories = [one for one in (path, path / "_change_data") if one.is_dir()]
        return {
            entry.name for one in directories for entry in os.scandir(one) if entry.name.endswith(".parquet")
        }


def changes_of(settings: Settings, table: str) -> list[Row]:
    """Return the rows of a table's change feed from its beginning, with _change_type and _commit_version."""
    feed: Any = DeltaTable(str(path_of(settings, table))).load_cdf(starting_version=0)
    return [with_micros(row) for row in pa.table(feed.read_all()).to_pylist()]


def _of(commit: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Yield a commit's actions of a kind. Only a line feed ends a line; names may have other breaks."""
    lines = commit.read_text(encoding="utf-8").split("\n")
    actions = (json.loads(line) for line in lines if line)
    return (action[kind] for action in actions if kind in action)
