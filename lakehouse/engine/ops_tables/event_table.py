"""ops.events: the pipeline's event log. Every process appends to it, and it can be read without Spark.

Grain: one row per event; key: id. The columns are the fields of `lakehouse.common.events.Event`. `at` is the
time on the host's clock (UTC, in microseconds). Rows are only appended. A batch of events is written only
once, even if it is retried because an attempt failed after writing it.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from functools import partial

from lakehouse.common.events import Event, EventLog, Kind, kind_of, note, noting
from lakehouse.common.terminal import warn
from lakehouse.storage.spark.query_errors import what_of
from lakehouse.storage.tables import TableSpec, described, direct

SCHEMA = described(
    ("id", "string", "The event's id."),
    ("at", "timestamp", "When the event happened, UTC."),
    ("kind", "string", "The kind of event, such as start, stop, failure, recovery or audit."),
    ("stream", "string", "The stream; null if the event concerns several streams or none."),
    ("layer", "string", "The layer; null if the event concerns several layers or none."),
    ("table", "string", "The table, as layer.name; null if the event concerns several tables or none."),
    ("actor", "string", "The command that recorded the event."),
    ("host", "string", "The host on which the command ran."),
    ("pid", "long", "The command's process id."),
    ("code_version", "string", "The version of lakehouse."),
    ("message", "string", "What happened, in one sentence."),
    ("details", "string", "Details as JSON; null if there are none."),
)
EVENTS = TableSpec("ops", "events", SCHEMA, stats=("at",), comment="One row per event.")


@contextmanager
def recorded(lake: str, actor: str) -> Iterator[None]:
    """Write the block's events, and an exception that ends the block, to ops.events.

    If the table cannot be written, prints a warning to standard error, and the block continues.
    """
    with noting(EventLog(actor, partial(append, lake), warn)):
        try:
            yield
        except Exception as failure:
            note(
                kind_of(failure),
                f"{actor} ended: {what_of(failure)}",
                details={"error": type(failure).__name__},
            )
            raise


def append(lake: str, events: Sequence[Event], again: bool = False) -> None:  # noqa: FBT001, FBT002
    """Append events; with `again`, omit the events that a failed attempt has already written."""
    if again:
        earliest = min(event.at for event in events)
        there = {event.id for event in newest(lake, limit=sys.maxsize, since=earliest)}
        events = [event for event in events if event.id not in there]
    if events:
        direct.append(lake, EVENTS, [asdict(event) for event in events])


def newest(
    lake: str,
    *,
    limit: int,
    since: datetime | None = None,
    before: tuple[datetime, str] | None = None,
    kinds: Collection[Kind] = (),
    streams: Collection[str] = (),
) -> list[Event]:
    """Return the newest events of these kinds and streams (all, if none are given), oldest first.

    If `streams` is given, events that do not concern a single stream are omitted. `since` is the earliest
    time to include. `before` is the time and id of an event; only earlier events are returned. Only files
    that could contain such events are read. Raises TableError if the table cannot be read.
    """
    found: list[Event] = []
    for upto, read in direct.newest_first(lake, EVENTS, "at"):
        if upto is not None and (_is_before(upto, since) or (len(found) == limit and upto < found[0].at)):
            break
        events = [Event(**row) for row in read()]
        found += [
            event
            for event in events
            if not _is_before(event.at, since)
            and (before is None or (event.at, event.id) < before)
            and (not kinds or event.kind in kinds)
            and (not streams or event.stream in streams)
        ]
        found = sorted(found, key=lambda event: (event.at, event.id))[-limit:]
    return found


def compact(lake: str) -> str | None:
    """Merge small files of the table; return a message about the result, or None if no files were merged.

    A failure is reported on standard error. It loses no events.
    """
    try:
        before, after = direct.compact(lake, EVENTS)
    except Exception as failure:  # noqa: BLE001 - deltalake and file systems raise many kinds of errors
        warn(f"{EVENTS.qualified_name} could not be compacted: {what_of(failure)}")
        return None
    return f"{EVENTS.qualified_name}: {before:,} files became {after:,}" if after < before else None


def _is_before(moment: datetime, bound: datetime | None) -> bool:
    return bound is not None and moment < bound
