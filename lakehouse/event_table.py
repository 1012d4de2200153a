"""ops.events: what has happened to the pipeline, appended by every process and read without Spark too.

Grain: one row an event; key: id. The columns are those of `lakehouse.events.Event`. `at` is UTC, to the
microsecond, by the clock of the process's host. Rows are only appended; a batch is there once, though a
try to append it has failed after it had been written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial

from pyspark.sql.types import StructType
from rich.console import Console

from lakehouse.events import Event, EventLog, Kind, kind_of, note, noting
from lakehouse.failures import what_of
from lakehouse.settings import Settings
from lakehouse.tables import TableSpec, direct
from lakehouse.tables.specs import EPOCH

SCHEMA = (
    StructType()
    .add("id", "string")
    .add("at", "timestamp")
    .add("kind", "string")
    .add("stream", "string")
    .add("layer", "string")
    .add("table", "string")
    .add("actor", "string")
    .add("host", "string")
    .add("pid", "long")
    .add("code_version", "string")
    .add("message", "string")
    .add("details", "string")
)
EVENTS = TableSpec("ops", "events", SCHEMA, stats=("at", "kind", "stream"))
_MICROSECOND = timedelta(microseconds=1)


@contextmanager
def recorded(settings: Settings, actor: str) -> Iterator[None]:
    """Keep what is noted within the block in ops.events, and what the block fails with.

    Where the table cannot be written, that is said once on standard error and nothing else comes of it.
    """
    with noting(EventLog(actor, partial(append, settings.lake), _warn)):
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
    """Append events; `again`: without those that are there from a try that seemed to fail."""
    if again:
        earliest = _micros(min(event.at for event in events))
        found = direct.read(lake, EVENTS, f"SELECT id FROM rows WHERE {_since(earliest)}")  # noqa: S608
        there = {row["id"] for row in found}
        events = [event for event in events if event.id not in there]
    if events:
        direct.append(lake, EVENTS, [asdict(event) for event in events])


def newest(
    lake: str,
    *,
    limit: int,
    since: datetime | None = None,
    kinds: Collection[Kind] = (),
    streams: Collection[str] = (),
) -> list[Event]:
    """Return the newest events of these kinds and streams (none: all), the oldest of them first.

    Events that concern no stream alone are left out where streams are named.
    """
    conditions = [] if since is None else [_since(_micros(since))]
    conditions += [
        f"{name} IN ({', '.join(map(_quoted, values))})"
        for name, values in (("kind", kinds), ("stream", streams))
        if values
    ]
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    query = f"SELECT * FROM rows {where} ORDER BY at DESC, id LIMIT {limit}"  # noqa: S608
    names = [*SCHEMA.names]
    found = direct.read(lake, EVENTS, query)
    return [Event(**{name: row.get(name) for name in names}) for row in reversed(found)]


def compact(lake: str) -> str | None:
    """Make few files of the many small ones that batches leave, and say so; null where there are few.

    Where that fails, it is said on standard error: the events are there all the same.
    """
    try:
        before, after = direct.compact(lake, EVENTS)
    except Exception as failure:  # noqa: BLE001 - deltalake's, of whatever file system it is
        _warn(f"{EVENTS.qualified_name} could not be compacted: {what_of(failure)}")
        return None
    return f"{EVENTS.qualified_name}: {before:,} files became {after:,}" if after < before else None


def _warn(text: str) -> None:
    Console(stderr=True).print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)


def _since(micros: int) -> str:
    return f"at >= arrow_cast({micros}, 'Timestamp(Microsecond, Some(\"UTC\"))')"


def _micros(moment: datetime) -> int:
    return (moment - EPOCH) // _MICROSECOND


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
