"""Facts are read from the lake that an earlier version has made, and what cannot be read is said."""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from lakehouse.alerts.facts import Audit, Landed
from lakehouse.alerts.gathering import Audits, gather
from lakehouse.alerts.rules import DeadLetterRule, MetricRule
from lakehouse.errors import TableError
from lakehouse.events import Event, EventLog, Kind, note, noting
from lakehouse.ops import event_table
from lakehouse.settings import Settings
from lakehouse.streams import STREAMS
from lakehouse.telemetry import Observation
from tests import old_lakes

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
CENTURY_S = 36_525 * 24 * 3600
LETTERS = DeadLetterRule(name="letters", kind="dead_letter_rate", over=0.1, within_s=CENTURY_S)
RECENT = LETTERS.model_copy(update={"name": "recent", "within_s": 1e-3})


def now() -> Observation:
    return Observation(datetime.now(UTC), ())


@pytest.fixture
def lake(lake_settings: Settings, tmp_path: Path) -> str:
    return old_lakes.unpack(lake_settings, tmp_path).lake


def rows(lake: str, table: str, query: str) -> list[dict[str, object]]:
    found = QueryBuilder().register("t", DeltaTable(f"{lake}/{table}")).execute(query).read_all()
    plain: list[dict[str, object]] = pa.table(found).to_pylist()
    return plain


def test_landed_records_and_dead_letters_are_counted_by_stream(lake: str) -> None:
    said: list[str] = []
    facts = gather(now(), lake, STREAMS, [LETTERS, RECENT], audits=Audits(), warn=said.append)
    letters = Counter(str(row["stream"]) for row in rows(lake, "silver/dead_letters", "SELECT stream FROM t"))
    expected = {
        stream.name: Landed(
            sum(len(rows(lake, f"bronze/{one.table}", "SELECT 1 FROM t")) for one in stream.sources),
            letters[stream.name],
        )
        for stream in STREAMS
    }
    assert facts.landed["letters"] == expected
    assert set(facts.landed["recent"].values()) == {Landed(0, 0)}
    assert sum(letters.values()) > 0
    assert said == []


def test_windows_are_those_of_the_metric_that_are_over_and_young_enough(lake: str) -> None:
    every = rows(
        lake,
        "gold/metrics_1m",
        "SELECT service_id, metric_name, window_start, window_end, p99 FROM t ORDER BY window_end",
    )
    middle = every[len(every) // 2]
    rule = MetricRule(name="m", kind="metric", metric=str(middle["metric_name"]), statistic="p99", over=1)
    end = middle["window_end"]
    assert isinstance(end, datetime)
    facts = gather(Observation(end, ()), lake, STREAMS, [rule], audits=Audits(), warn=print)
    since = end - timedelta(seconds=3600 + 120)
    expected = {
        (one["service_id"], one["window_start"], one["p99"])
        for one in every
        if one["metric_name"] == rule.metric
        and isinstance(one["window_end"], datetime)
        and isinstance(one["window_start"], datetime)
        and one["window_end"] <= end
        and one["window_start"] >= since
    }
    assert {(one.service, one.start, one.value) for one in facts.windows["m"]} == expected
    assert len(expected) > 0


def test_the_newest_audit_of_each_stream_counts(lake: str) -> None:
    def append(events: object, again: bool) -> None:
        event_table.append(lake, events, again)  # type: ignore[arg-type]

    with noting(EventLog("a test", append, print)):
        note(Kind.AUDIT, "first", stream="sales", details={"clean": False})
        note(Kind.AUDIT, "second", stream="sales", details={"clean": True})
        note(Kind.AUDIT, "other", stream="calls", details={"clean": False})
    audits = Audits()
    facts = gather(now(), lake, STREAMS, [], audits=audits, warn=print)
    noted = {event.message: event.at for event in event_table.newest(lake, limit=9)}
    expected = {
        "sales": Audit(noted["second"], is_clean=True),
        "calls": Audit(noted["other"], is_clean=False),
    }
    assert facts.audits == expected


def test_audits_that_were_read_long_ago_are_not_read_again(tmp_path: Path) -> None:
    lake, events = str(tmp_path), tmp_path / "ops" / "events"
    for days in range(3):
        event_table.append(lake, [audit_event(NOON + timedelta(days=days), is_clean=False)])
    audits, first = Audits(), Audit(NOON + timedelta(days=2), is_clean=False)
    assert audits.last(lake, NOON + timedelta(days=2)) == {"sales": first}
    for file in sorted(events.glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)[:2]:
        file.unlink()
    event_table.append(lake, [audit_event(NOON + timedelta(days=3), is_clean=True)])

    found = audits.last(lake, NOON + timedelta(days=3))

    assert found == {"sales": Audit(NOON + timedelta(days=3), is_clean=True)}
    with pytest.raises(TableError, match=r"^ops\.events at .* could not be read"):
        Audits().last(lake, NOON + timedelta(days=3))


def audit_event(at: datetime, *, is_clean: bool) -> Event:
    """Return the event of an audit of sales."""
    details = json.dumps({"clean": is_clean})
    who = ("a test", "host", 1, "0")
    return Event(uuid.uuid4().hex, at, Kind.AUDIT, "sales", None, None, *who, "audited", details)


def test_what_cannot_be_read_is_said_and_left_out(lake: str) -> None:
    said: list[str] = []
    for path in Path(lake, "gold", "metrics_1m", "_delta_log").glob("*.json"):
        path.write_bytes(b"{")
    rule = MetricRule(name="m", kind="metric", metric="cpu", over=1, stale_s=CENTURY_S)
    facts = gather(now(), lake, STREAMS, [rule], audits=Audits(), warn=said.append)
    assert facts.windows == {}
    assert [text.split(":")[0] for text in said] == ["gold.metrics_1m could not be read"]
    shutil.rmtree(lake)
    assert gather(now(), lake, STREAMS, [rule], audits=Audits(), warn=said.append).windows == {"m": []}
