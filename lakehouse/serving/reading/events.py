"""Read the ops tables for the API: events, gates, the latest expectation results, and the streams' history.

A table that does not exist yet is treated as empty.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from lakehouse.common.events import Event, Kind
from lakehouse.engine.ops_tables import event_table
from lakehouse.engine.ops_tables.event_table import EVENTS
from lakehouse.engine.ops_tables.history import HISTORY, Sample
from lakehouse.operations.quality.results import GATES, RESULTS
from lakehouse.serving.answers import in_camel_case
from lakehouse.serving.reading import delta
from lakehouse.serving.reading.delta import Found, Snapshot, Table
from lakehouse.storage.tables.specs import EPOCH, TableSpec, from_micros, path_of
from lakehouse.streams.messages.layout import Row


def told(event: Event) -> dict[str, Any]:
    """Return an event as JSON values. Its `details` are decoded with their keys unchanged."""
    whole: dict[str, Any] = in_camel_case(asdict(event))
    return whole | {"details": details_of(event)}


def details_of(event: Event) -> Any:
    """Return an event's decoded details, or their text if they are not JSON.

    NaN and infinities become strings. Tracebacks are removed, because they can contain record values that not
    every caller is allowed to read.
    """
    try:
        details = None if event.details is None else json.loads(event.details, parse_constant=str)
    except ValueError:
        return event.details
    if isinstance(details, dict):
        details.pop("traceback", None)
    return details


def audit_of(events: Sequence[Event]) -> Mapping[str, Any] | None:
    """Merge the streams' latest audits into one, or return None if none of them contains checks."""
    found = [(event, details_of(event)) for event in events]
    events = [event for event, details in found if isinstance(details, dict) and "checks" in details]
    if not events:
        return None
    checks = [
        {"stream": event.stream, "at": in_camel_case(event.at), **check}
        for event in events
        for check in details_of(event)["checks"]
    ]
    last = max(events, key=lambda event: event.at)
    is_clean = not any(check["differences"] or check.get("not_compared") for check in checks)
    return {"at": in_camel_case(last.at), "actor": last.actor, "isClean": is_clean, "checks": checks}


class Ops:
    """The ops tables in a lake. All methods block, and raise TableAwayError or TableError if a read fails."""

    def __init__(self, lake: str) -> None:
        self._lake = lake
        specs = (GATES, RESULTS, EVENTS, HISTORY)
        self._tables = {one.qualified_name: Table(path_of(lake, one.layer, one.name)) for one in specs}

    def versions(self) -> dict[str, tuple[int, int]]:
        """Return the generation and version of each readable table, keyed by SQL name."""
        return delta.versions_of(self._tables)

    def gates(self) -> Found[list[Row]]:
        """Return the current state of each stream's gate. Gates that were never checked are omitted."""
        return _read(self._tables[GATES.qualified_name], GATES, "stream", "changed_at")

    def results(self) -> Found[list[Row]]:
        """Return the expectation results from the latest check of each table."""
        return _read(self._tables[RESULTS.qualified_name], RESULTS, "table", "checked_at")

    def happenings(
        self,
        *,
        limit: int,
        since: datetime | None,
        before: tuple[datetime, str] | None,
        kinds: Collection[Kind],
        streams: Collection[str],
    ) -> Found[list[Event]]:
        """Return the newest events of these kinds and streams, newest first.

        An empty `kinds` or `streams` matches all events. If `before`, the time and id of an event, is given,
        only earlier events are returned.
        """

        def read(_snapshot: object) -> list[Event]:
            found = event_table.newest(
                self._lake, limit=limit, since=since, before=before, kinds=kinds, streams=streams
            )
            return found[::-1]

        return delta.read_or(self._tables[EVENTS.qualified_name], read, [])

    def audits(self, streams: Sequence[str]) -> Found[list[Event]]:
        """Return the latest audit of each audited stream."""

        def read(_snapshot: object) -> list[Event]:
            return [
                event
                for stream in streams
                for event in event_table.newest(self._lake, limit=1, kinds=[Kind.AUDIT], streams=[stream])
            ]

        return delta.read_or(self._tables[EVENTS.qualified_name], read, [])

    def history(self, since: datetime) -> Found[Mapping[str, Sequence[Sample]]]:
        """Return the samples in ops.history from this time on, keyed by stream."""

        def read(snapshot: Snapshot) -> Mapping[str, Sequence[Sample]]:
            found = dict[str, list[Sample]]()
            where = [delta.since("at", (since - EPOCH) // timedelta(microseconds=1))]
            for row in delta.all_rows(snapshot, HISTORY.schema.names, where):
                one = Sample(**{**row, "at": from_micros(row["at"])})
                found.setdefault(one.stream, []).append(one)
            return found

        return delta.read_or(self._tables[HISTORY.qualified_name], read, {})


def _read(table: Table, spec: TableSpec, by: str, at: str) -> Found[list[Row]]:
    return delta.read_or(table, lambda snapshot: _newest(snapshot, spec, by, at), [])


def _newest(snapshot: Snapshot, spec: TableSpec, by: str, at: str) -> list[Row]:
    """For each value of the column `by`, return the rows with the greatest value of the column `at`."""
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
