"""What tables' logs and queries' checkpoints say, read from their files, without Spark.

A query's name is its checkpoint's and, but for exports, its table's: `silver.sales_events`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from lakehouse.settings import Settings
from lakehouse.streams import STREAMS
from tests.pipeline import Row, checkpoint_of, committed, path_of, version_of, with_micros

Write = tuple[str, int]
"""A transaction in a table's log: the application, `<query>:<id of its checkpoint>`, and the micro-batch."""

SOURCES: Mapping[str, Sequence[str]] = {
    **{f"silver.{one.table}": (f"bronze.{one.table}",) for stream in STREAMS for one in stream.sources},
    **{
        f"gold.{table.name}": tuple(f"silver.{name}" for name in table.reads)
        for stream in STREAMS
        for table in stream.gold
    },
    **{f"export.{table.name}": (f"gold.{table.name}",) for stream in STREAMS for table in stream.tables},
}
"""The tables that a query reads, in the order of its sources; bronze reads Kafka."""
BRONZE = {f"bronze.{one.table}": one.topic for stream in STREAMS for one in stream.sources}
QUERIES = {
    layer: [name for name in (*BRONZE, *SOURCES) if name.startswith(layer)]
    for layer in ("bronze", "silver", "gold", "export")
}
TABLES = [name for name in (*BRONZE, *SOURCES) if not name.startswith("export")] + [
    "silver.dead_letters",
    "gold.sales_notifications",
]


def commit_file(settings: Settings, table: str, version: int) -> Path:
    """Return the file of a table's log that a version is."""
    return path_of(settings, table) / "_delta_log" / f"{version:020}.json"


def writes_of(commit: Path) -> list[Write]:
    """Return the transactions of one commit."""
    actions = (json.loads(line) for line in commit.read_text(encoding="utf-8").splitlines())
    return [(action["txn"]["appId"], action["txn"]["version"]) for action in actions if "txn" in action]


def last_write(settings: Settings, table: str, application: str) -> int:
    """Return the last micro-batch of an application that a table has; -1 for none."""
    for version in range(version_of(settings, table), -1, -1):
        for found, batch in writes_of(commit_file(settings, table, version)):
            if found == application:
                return batch
    return -1


def has_write(settings: Settings, table: str, write: Write) -> bool:
    """Tell whether a micro-batch of an application is in a table's log."""
    commits = (commit_file(settings, table, n) for n in range(version_of(settings, table), -1, -1))
    return any(write in writes_of(commit) for commit in commits)


def doubled_writes(settings: Settings) -> Iterator[str]:
    """Say which micro-batches are in the log of a table more than once."""
    for table in TABLES:
        commits = (commit_file(settings, table, n) for n in range(version_of(settings, table) + 1))
        counts = Counter(write for commit in commits for write in writes_of(commit))
        yield from (f"{table} has {write} {times} times" for write, times in counts.items() if times > 1)


def position(settings: Settings, query: str) -> list[dict[str, Any]] | None:
    """Return up to where a query has read each of its sources; None before its first micro-batch is done."""
    done = committed(settings, query)
    if not done:
        return None
    lines = (checkpoint_of(settings, query) / "offsets" / str(done[-1])).read_text().splitlines()
    return [json.loads(line) for line in lines[2:]]


def behind(settings: Settings, ends: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return the queries that have not read all that there is; `ends` are the topics' by partition."""
    waiting = []
    for query, topic in BRONZE.items():
        read = position(settings, query)
        name = settings.topic(topic)
        if read is None or read[0][name] != ends[name]:
            waiting.append(query)
    for query, tables in SOURCES.items():
        read = position(settings, query)
        versions = [version_of(settings, table) for table in tables]
        caught_up = not any(versions) if read is None else all(map(_has_read, read, versions))
        if not caught_up:
            waiting.append(query)
    return waiting


def _has_read(place: Mapping[str, Any], version: int) -> bool:
    """Tell whether a place in a Delta source is behind all of a version; index -1 is the version's beginning.

    A micro-batch here takes whole versions: they are far smaller than what it takes at most.
    """
    past = (place["reservoirVersion"], place["index"]) > (version, -1)
    return past and not place["isStartingVersion"]


def changes_of(settings: Settings, table: str) -> list[Row]:
    """Return the rows of a table's change feed from its beginning, with _change_type and _commit_version."""
    feed: Any = DeltaTable(str(path_of(settings, table))).load_cdf(starting_version=0)
    return [with_micros(row) for row in pa.table(feed.read_all()).to_pylist()]
