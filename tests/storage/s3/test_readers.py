"""Readers without a JVM report the same for a lake on S3 as for one on a disk."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs
from pydantic import SecretStr
from starlette.testclient import TestClient

from lakehouse.common.events import EventLog, Kind, note, noting
from lakehouse.common.rows_as_text import as_json
from lakehouse.engine.ops_tables import event_table
from lakehouse.engine.ops_tables.event_table import EVENTS
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.operations.alerts.gathering import gather
from lakehouse.operations.alerts.rules import DeadLetterRule
from lakehouse.operations.catalog import duckdb_sql as duck
from lakehouse.operations.erasure.subjects import subjects_in
from lakehouse.operations.erasure.verifying import verify
from lakehouse.operations.quality.results import GATES
from lakehouse.operations.telemetry import Observation, Observer
from lakehouse.operations.telemetry.delta_log import Log
from lakehouse.operations.telemetry.small_tables import AuditsAndStops
from lakehouse.serving.app import make_app
from lakehouse.serving.security.access import Access
from lakehouse.settings import Settings
from lakehouse.storage.tables import direct
from lakehouse.streams.registry import load
from tests.support import log_lakes as lakes
from tests.support import pipeline
from tests.support import s3_proxy as proxy
from tests.support.seaweed import BUCKET, files_of, reach
from tests.support.served_lakes import MINUTE_MS, NOON_MS, ServedLake, letter, minute
from tests.support.streams import METRICS_1M, STREAMS

pytestmark = pytest.mark.soak

NOW = pipeline.utc("2026-11-22T09:00:00")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
CLOSED = {"stream": "metrics", "changed_at": NOON, "is_open": False, "reasons": ["too old"]}
NOBODY = "127.0.0.1:1"


@pytest.fixture
def lake(store: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return an empty lake on S3 that readers without a JVM can reach."""
    reach(store, monkeypatch)
    return f"s3a://{BUCKET}/readers-{uuid.uuid4().hex}"


def on_lake(settings: Settings, lake: str, directory: Path) -> Settings:
    changes: dict[str, Any] = {
        "lake": lake,
        "home": directory / "home",
        "kafka.bootstrap_servers": NOBODY,
        "redis.url": SecretStr("redis://127.0.0.1:1/0"),
    }
    return settings.changed(changes)


def uploaded(store: str, directory: Path, lake: str) -> None:
    fs.copy_files(
        str(directory), lake.removeprefix("s3a://"), fs.LocalFileSystem(), files_of(store), use_threads=False
    )


def test_status_says_the_same_with_a_request_for_each_table_that_has_not_changed(
    store: str,
    lake: str,
    session_settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logs = lakes.caught_up(tmp_path / "disk")
    here = Observer(STREAMS, on_lake(session_settings, str(logs.root), tmp_path))
    uploaded(store, logs.root, lake)
    with proxy.before(store) as requests:
        reach(requests.endpoint, monkeypatch)
        there = Observer(STREAMS, on_lake(session_settings, lake, tmp_path))
        assert there.observe(NOW) == here.observe(NOW)
        requests.seen.clear()
        assert there.observe(NOW) == here.observe(NOW)
        assert Counter((one.method, one.status) for one in requests.seen) == {("HEAD", 404): 25}
        logs.append("bronze.metrics_events", lakes.DAY.format("08:20:00"), (6, 1))
        uploaded(store, logs.root / "bronze", f"{lake}/bronze")
        found = there.observe(NOW)
    assert found == here.observe(NOW)
    waiting = [lag.records for lag in found.streams[0].layers if lag.query == "silver.metrics_events"]
    assert waiting == [7]


def test_a_log_begins_at_its_checkpoint(lake: str, session_settings: Settings, tmp_path: Path) -> None:
    """The tables of rows, letters and gates were written by deltalake."""
    made = ServedLake(on_lake(session_settings, lake, tmp_path))
    for _ in range(3):
        table = made.write(METRICS_1M, [minute(), minute("checkout")])
    table.create_checkpoint()
    made.write(METRICS_1M, [minute("third")])
    made.write_spec(DEAD_LETTERS, [letter(n, stream="metrics", first_seen=NOON) for n in range(3)])
    made.write_spec(GATES, [CLOSED])
    (metrics,) = (
        one for one in Observer(STREAMS, made.settings).observe(NOW).streams if one.name == "metrics"
    )
    assert [(one.name, one.version, one.rows) for one in metrics.tables] == [("gold.metrics_1m", 3, 7)]
    assert metrics.open_letters == 3
    assert metrics.gate is not None
    assert (metrics.gate.is_open, metrics.gate.reasons) == (False, ("too old",))


def test_ids_are_found_in_the_same_places(
    store: str, lake: str, session_settings: Settings, tmp_path: Path
) -> None:
    made = ServedLake(on_lake(session_settings, str(tmp_path / "disk"), tmp_path))
    made.write(METRICS_1M, [minute("service-4711")]).create_checkpoint()
    made.write(METRICS_1M, [minute("checkout")], mode="overwrite")
    uploaded(store, tmp_path / "disk", lake)
    subjects = subjects_in(b"service-4711\n")

    def found(root: str) -> list[tuple[Any, ...]]:
        settings = on_lake(session_settings, root, tmp_path)
        report = verify(subjects, settings, load(settings), lambda _: None, only=["lake"])
        assert report.unread == ()
        return [(one.name, one.kind, one.parts, one.lines) for one in report.places]

    there = found(lake)
    assert there == found(str(tmp_path / "disk"))
    assert Counter(kind for _, kind, _, _ in there) == {"old version": 1, "log": 1, "checkpoint": 1}


def test_the_api_answers_from_gold_letters_and_ops(
    lake: str, session_settings: Settings, tmp_path: Path
) -> None:
    made = ServedLake(on_lake(session_settings, lake, tmp_path))
    app = make_app(made.settings, load(made.settings), Access(None))
    with TestClient(app, base_url="http://localhost:8080") as client:

        def got(path: str) -> Any:
            answer = client.get(path)
            assert answer.status_code == 200, answer.text
            return answer.json()

        made.write(METRICS_1M, [minute(), minute("checkout", avg=4.0)])
        made.write_spec(DEAD_LETTERS, [letter(n, "bad") for n in range(3)])
        made.write_spec(GATES, [CLOSED])
        with noting(EventLog("a test", partial(event_table.append, lake), print)):
            note(Kind.AUDIT, "clean", stream="metrics", details={"clean": True, "checks": []})
        assert client.get("/health/ready").status_code == 200
        latest = got("/api/metrics/latest?service=checkout&metric=cpu")
        assert (latest["source"], latest["version"], latest["data"]["avg"]) == ("gold", 0, 4.0)
        made.write(METRICS_1M, [minute("checkout", start_ms=NOON_MS + MINUTE_MS, avg=5.0)])
        time.sleep(0.6)  # a table there is checked twice a second
        latest = got("/api/metrics/latest?service=checkout&metric=cpu")
        assert (latest["source"], latest["version"], latest["data"]["avg"]) == ("gold", 1, 5.0)
        (counted,) = got("/api/v1/dead-letters/counts")["counts"]
        assert counted == {"stream": "metrics", "rule": "bad", "status": "open", "count": 3}
        assert [one["offset"] for one in got("/api/v1/dead-letters?limit=2")["letters"]] == [2, 1]
        assert got(f"/api/v1/dead-letters/{1:064x}/record")["bytes"]["text"] == "{}"
        assert [(one["stream"], one["isOpen"]) for one in got("/api/v1/gates")["gates"]] == [
            ("metrics", False)
        ]
        assert [one["message"] for one in got("/api/v1/happenings")["happenings"]] == ["clean"]
        assert got("/api/v1/status")["lakeReason"] is None


def test_events_telemetry_and_duckdb_read_and_write_there(lake: str) -> None:
    with noting(EventLog("a test", partial(event_table.append, lake), print)):
        note(Kind.AUDIT, "first", stream="sales", details={"clean": False})
        note(Kind.AUDIT, "second", stream="sales", details={"clean": True})
    for number in range(25):
        event = dict.fromkeys(EVENTS.schema.names) | {"id": str(number), "at": NOON, "kind": "start"}
        direct.append(lake, EVENTS, [event])
    assert [event.message for event in event_table.newest(lake, limit=2)] == ["first", "second"]
    found = AuditsAndStops(Log(f"{lake}/ops/events"))
    found.refresh()
    audit = found.audit_of("sales")
    assert (found.unread, audit and audit.is_clean) == (0, True)
    before, after = direct.compact(lake, EVENTS)
    assert before >= 26
    assert after == 1
    statement = "SELECT kind, count(*) AS n FROM ops.events GROUP BY 1 ORDER BY 1"
    answer = json.loads(as_json(duck.ask(lake, STREAMS, statement, limit=9)))
    assert answer == [{"kind": "audit", "n": 2}, {"kind": "start", "n": 25}]


def test_what_has_landed_is_counted(lake: str, session_settings: Settings, tmp_path: Path) -> None:
    made = ServedLake(on_lake(session_settings, lake, tmp_path))
    made.write_spec(DEAD_LETTERS, [letter(n, stream="metrics", first_seen=NOON) for n in range(2)])
    rule = DeadLetterRule(name="r", kind="dead_letter_rate", over=0.1, within_s=60)
    at = Observation(NOON + timedelta(seconds=30), ())
    facts = gather(at, lake, STREAMS, [rule], warn=pytest.fail)
    assert facts.landed["r"]["metrics"].letters == 2
