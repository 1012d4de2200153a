"""Results of checks, read without Spark: gates and the last results of the expectations.

Tables that do not exist yet are empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from lakehouse.engine.ops_tables.event_table import EVENTS
from lakehouse.operations.quality.results import GATES, RESULTS
from lakehouse.serving.reading import delta
from lakehouse.serving.reading.delta import Found, Snapshot, Table
from lakehouse.storage.tables.specs import TableSpec, path_of
from lakehouse.streams.messages.layout import Row


class Ops:
    """The tables of `ops`; its methods block, and raise TableAwayError."""

    def __init__(self, lake: str) -> None:
        specs = (GATES, RESULTS, EVENTS)
        self._tables = {one.qualified_name: Table(path_of(lake, one.layer, one.name)) for one in specs}

    def versions(self) -> dict[str, tuple[int, int]]:
        """Return generation and version of each readable table by its name in SQL."""
        return delta.versions_of(self._tables)

    def gates(self) -> Found[list[Row]]:
        """Return the last state of each stream's gate; a gate that was never checked is missing."""
        return _read(self._tables[GATES.qualified_name], GATES, "stream", "changed_at")

    def results(self) -> Found[list[Row]]:
        """Return the findings of each table's last run."""
        return _read(self._tables[RESULTS.qualified_name], RESULTS, "table", "checked_at")


def _read(table: Table, spec: TableSpec, by: str, at: str) -> Found[list[Row]]:
    return delta.read_or(table, lambda snapshot: _newest(snapshot, spec, by, at), [])


def _newest(snapshot: Snapshot, spec: TableSpec, by: str, at: str) -> list[Row]:
    """Return the rows with the greatest `at` for each value of `by`."""
    last = dict[Any, int]()
    for part in snapshot.rows((by, at), None):
        _note(last, delta.as_rows(_greatest(part, by, at), (by, at)), by, at)
    if not last:
        return []
    since = delta.since(at, min(last.values()))
    parts = (delta.as_rows(part, spec.schema.names) for part in snapshot.rows(spec.schema.names, since))
    found = [row for rows in parts for row in rows if row[at] == last.get(row[by])]
    return sorted(found, key=lambda row: str(row[by]))


def _greatest(part: pa.Table, by: str, at: str) -> pa.Table:
    return part.group_by([by]).aggregate([(at, "max")]).rename_columns([by, at])


def _note(last: dict[Any, int], rows: Sequence[Row], by: str, at: str) -> None:
    for row in rows:
        last[row[by]] = max(row[at], last.get(row[by], row[at]))
