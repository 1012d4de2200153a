"""Lakes that consist only of Delta logs, because telemetry reads little else.

A table's id is its name, so silver's position in bronze is `silver.sales_events reads bronze.sales_events`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support import pipeline

Action = Mapping[str, Any]

DAY = "2026-11-22T{}"
ENDS = ((25, 13), (28, 14))
"""The end offsets of bronze's two micro-batches in each of two partitions."""

SCHEMA = {
    "type": "struct",
    "fields": [{"name": "own_time", "type": "timestamp", "nullable": True, "metadata": {}}],
}
SOURCES = {
    "metrics_events": "metrics-events",
    "call_analytics": "analyticsTopic",
    "call_metrics": "metricsTopic",
    "sales_events": "sales-events-v1",
    "transactions": "transactions-topic",
}
GOLD = {
    "metrics_1m": ["metrics_events"],
    "metrics_summary_10m": ["metrics_events"],
    "call_records": ["call_analytics", "call_metrics"],
    "product_sales": ["sales_events"],
    "user_transactions_5m": ["transactions"],
}


@dataclass(frozen=True)
class Logs:
    """The logs of a lake's tables, in `root`."""

    root: Path

    def path(self, table: str) -> Path:
        return self.root.joinpath(*table.split("."))

    def file(self, table: str, version: int) -> Path:
        """Return the file of a commit."""
        return self.path(table) / "_delta_log" / f"{version:020}.json"

    def commit(self, table: str, at: str, actions: Iterable[Action]) -> int:
        """Write the next commit, and return its version."""
        version = len(list((self.path(table) / "_delta_log").glob("*.json")))
        info = {"timestamp": ms(at), "operation": "WRITE", "operationParameters": {}}
        text = "\n".join(json.dumps(action) for action in ({"commitInfo": info}, *actions))
        self.file(table, version).write_text(f"{text}\n", encoding="utf-8")
        return version

    def create(self, table: str, at: str, *, id_: str | None = None, **properties: str) -> None:
        """Write the commit that creates a table."""
        (self.path(table) / "_delta_log").mkdir(parents=True)
        metadata = {
            "id": id_ or table,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(SCHEMA),
            "partitionColumns": [],
            "configuration": properties,
            "createdTime": ms(at),
        }
        protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
        self.commit(table, at, [{"protocol": protocol}, {"metaData": metadata}])

    def append(self, table: str, at: str, rows: Sequence[int], noted: Mapping[str, int] | None = None) -> int:
        """Write a commit with notes, and with one file for each number of rows; the first file is the oldest.

        Each file is one second older than the next, and the last one is one second older than the commit.
        """
        return self.commit(table, at, [*noting(noted or {}, at), *added(rows, at)])

    def merge(self, table: str, at: str, *, updated: int, inserted: int) -> int:
        """Write a commit that replaces a file and adds a change-feed file."""
        own = self.path(table) / "_change_data" / f"{ms(at)}.parquet"
        own.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"own_time": [None] * (2 * updated + inserted)}), own)
        feed = {"path": f"_change_data/{own.name}", "partitionValues": {}, "size": 1, "dataChange": False}
        gone = removed("old.parquet", updated, at)
        return self.commit(table, at, [gone, *added([updated + inserted], at), {"cdc": feed}])

    def step_back(self, table: str) -> None:
        """Remove the newest commit, as if it had not been written yet."""
        sorted((self.path(table) / "_delta_log").glob("*.json"))[-1].unlink()

    def note_sent(self, table: str, topic: str, version: int, files: int | None = None) -> Path:
        """Write an export's note, as of 08:14, and return its file."""
        file = self.path(table) / "_lakehouse_export" / f"{topic}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"table": table, "version": version, "files": files}), encoding="utf-8")
        at_s = ms(DAY.format("08:14:00")) / 1000
        os.utime(file, (at_s, at_s))
        return file


def caught_up(root: Path) -> Logs:
    """Create a lake with two micro-batches of each query, all caught up except the exports.

    - bronze: 38 records in two files (13 and 25), and 4 in two (1 and 3); at 08:12:00 and 08:13:00.2
    - silver: 34 rows and 4, at 08:12:20 and 08:13:20; the newest is of 08:12:59
    - gold: 3 rows and 2, at 08:12:40 and 08:13:40
    """
    logs = Logs(root)
    for source, topic in SOURCES.items():
        bronze, silver = f"bronze.{source}", f"silver.{source}"
        noted = [{f"{bronze} reads {topic}:9Zc/{n}": end for n, end in enumerate(ends)} for ends in ENDS]
        logs.create(bronze, DAY.format("08:10:00"))
        logs.append(bronze, DAY.format("08:12:00"), (13, 25), noted[0])
        logs.append(bronze, DAY.format("08:13:00.200"), (1, 3), noted[1])
        logs.create(silver, DAY.format("08:10:00"), **{"lakehouse.allowed_lateness_s": "604800"})
        logs.append(silver, DAY.format("08:12:20"), (34,), {f"{silver} reads {bronze}": 2})
        logs.append(silver, DAY.format("08:13:20"), (4,), {f"{silver} reads {bronze}": 3})
    for name, sources in GOLD.items():
        gold = f"gold.{name}"
        logs.create(gold, DAY.format("08:10:00"))
        reads = [f"{gold} reads silver.{source}" for source in sources]
        logs.append(gold, DAY.format("08:12:40"), (3,), dict.fromkeys(reads, 2))
        logs.append(gold, DAY.format("08:13:40"), (2,), dict.fromkeys(reads, 3))
    logs.create("gold.sales_notifications", DAY.format("08:10:00"))
    return logs


def added(rows: Sequence[int], at: str, *, change: bool = True) -> list[Action]:
    """Return files with the given numbers of rows, oldest first."""
    return [
        {
            "add": {
                "path": f"{ms(at)}-{number}.parquet",
                "partitionValues": {},
                "size": 100 * count,
                "modificationTime": ms(at) - 1000 * (len(rows) - number),
                "dataChange": change,
                "stats": stats(count),
            }
        }
        for number, count in enumerate(rows)
    ]


def removed(path: str, rows: int, at: str, *, change: bool = True) -> Action:
    """Return the removal of a file."""
    gone = {"path": path, "deletionTimestamp": ms(at), "dataChange": change, "stats": stats(rows)}
    return {"remove": gone}


def noting(noted: Mapping[str, int], at: str) -> list[Action]:
    """Return the transactions that record a query's position in a commit."""
    return [
        {"txn": {"appId": name, "version": version, "lastUpdated": ms(at)}} for name, version in noted.items()
    ]


def stats(rows: int) -> str:
    return json.dumps({"numRecords": rows, "maxValues": {"own_time": DAY.format("08:12:59.000Z")}})


def ms(at: str) -> int:
    """Return a UTC time in ISO 8601 as milliseconds since the epoch."""
    return pipeline.micros(pipeline.utc(at)) // 1000
