"""What telemetry reads from ops.events, appended and compacted as every process does it."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from lakehouse.common.events import Event, Kind
from lakehouse.engine.ops_tables.event_table import append, compact
from lakehouse.operations.telemetry import Audit, Refused
from lakehouse.operations.telemetry.delta_log import Log
from lakehouse.operations.telemetry.small_tables import AuditsAndStops
from tests.support import pipeline

AT = pipeline.utc("2026-11-22T09:00:00")


def event(kind: Kind, stream: str | None, at: datetime, **details: object) -> Event:
    return Event(
        str(uuid.uuid4()), at, kind, stream, None, None, "tests", "here", 7, "0", "", json.dumps(details)
    )


def test_the_last_audit_of_a_stream_counts_whatever_order_it_was_appended_in(tmp_path: Path) -> None:
    lake, later = str(tmp_path), AT + timedelta(hours=1)
    found = AuditsAndStops(Log(f"{tmp_path}/ops/events"))
    found.refresh()
    assert found.audit_of("sales") is None

    append(lake, [event(Kind.AUDIT, "sales", later, clean=False), event(Kind.AUDIT, "calls", AT, clean=True)])
    found.refresh()
    append(lake, [event(Kind.AUDIT, "sales", AT, clean=True), event(Kind.GATE, "sales", later, clean=True)])
    found.refresh()
    odd = [
        replace(event(Kind.AUDIT, "sales", later + timedelta(hours=1)), details=text)
        for text in ("no json", "[]", "7", "{}", "null", None)
    ]
    append(lake, [*odd, *(replace(one, kind=Kind.STOP) for one in odd)])  # written by others
    found.refresh()
    assert [found.audit_of(name) for name in ("sales", "calls", "metrics")] == [
        Audit(later, is_clean=False),
        Audit(AT, is_clean=True),
        None,
    ]


def test_each_file_is_read_once_and_files_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    lake, events = str(tmp_path), tmp_path / "ops" / "events"
    for days in range(3):
        append(lake, [event(Kind.AUDIT, "sales", AT + timedelta(days=days), clean=False)])
    found = AuditsAndStops(Log(str(events)))
    found.refresh()
    assert (found.audit_of("sales"), found.unread) == (Audit(AT + timedelta(days=2), is_clean=False), 0)
    for file in sorted(events.glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)[:2]:
        file.unlink()
    append(lake, [event(Kind.AUDIT, "sales", AT + timedelta(days=3), clean=True)])

    found.refresh()

    newest, fresh = Audit(AT + timedelta(days=3), is_clean=True), AuditsAndStops(Log(str(events)))
    fresh.refresh()
    assert (found.audit_of("sales"), found.unread) == (newest, 0)
    assert (fresh.audit_of("sales"), fresh.unread) == (newest, 2)


def test_a_stop_is_one_of_every_layer_that_the_process_ran_and_is_known_after_compaction(
    tmp_path: Path,
) -> None:
    lake, found = str(tmp_path), AuditsAndStops(Log(f"{tmp_path}/ops/events"))
    for number in range(30):
        at = AT + timedelta(minutes=number)
        append(lake, [event(Kind.STOP, "sales", at, layers=["gold"] if number else ["silver", "gold"])])
        append(lake, [event(Kind.START, "sales", at + timedelta(seconds=1), layers=["gold"])])
    expected = {"silver": AT, "gold": AT + timedelta(minutes=29)}
    found.refresh()
    assert found.stops_of("sales") == expected
    assert found.stops_of("calls") == {}

    assert compact(lake) is not None
    found.refresh()
    fresh = AuditsAndStops(Log(f"{tmp_path}/ops/events"))
    fresh.refresh()
    assert (found.stops_of("sales"), fresh.stops_of("sales")) == (expected, expected)


def test_the_last_note_on_each_table_says_what_was_refused(tmp_path: Path) -> None:
    lake, found = str(tmp_path), AuditsAndStops(Log(f"{tmp_path}/ops/events"))
    cause = {"rule": "late", "column": "event_time", "count": 1200, "place": "t/0/7"}
    whole = {"table": "silver.b", "judged": 2000, "refused": 1200, "limit": 0.05, "over": True}
    later = AT + timedelta(hours=1)
    append(lake, [event(Kind.REFUSED, "sales", later, **whole, causes=[cause, cause | {"column": None}])])
    append(lake, [event(Kind.REFUSED, "sales", AT, **whole | {"refused": 3}, causes=[])])
    append(
        lake, [event(Kind.REFUSED, "sales", AT, **whole | {"table": "silver.a", "over": False}, causes=[])]
    )
    append(
        lake, [event(Kind.REFUSED, "sales", later, **whole), event(Kind.REFUSED, "sales", later, causes=7)]
    )

    found.refresh()

    assert found.refused_of("calls") == ()
    assert found.refused_of("sales") == (
        Refused("silver.a", AT, 2000, 1200, 0.05, is_over=False),
        Refused("silver.b", later, 2000, 1200, 0.05, True, ("1,200 late of event_time", "1,200 late")),
    )
