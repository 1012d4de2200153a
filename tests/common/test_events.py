"""Events are noted from anywhere, kept once and in order, and never get in anybody's way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StructType

from lakehouse.cli.commands.audit import note_audit
from lakehouse.common.errors import LakehouseError, PositionError, StreamError
from lakehouse.common.events import Event, EventLog, Kind, note, noting, place_of
from lakehouse.engine.layers import LAYERS
from lakehouse.engine.ops_tables import event_table
from lakehouse.engine.ops_tables.event_table import EVENTS, newest, recorded
from lakehouse.engine.runtime.signals import Stop
from lakehouse.engine.runtime.troubles import Failure, Troubles
from lakehouse.operations.audit import Check, Difference, Report
from lakehouse.operations.running import noted_run
from lakehouse.settings import Settings
from lakehouse.storage.tables import TableSpec, direct
from tests.support.commands import run_command
from tests.support.pipeline import await_
from tests.support.streams import METRICS, SALES

PROCESSES = 4
EACH = 40

WRITER = """
import sys
import time
from functools import partial
from lakehouse.engine.ops_tables.event_table import append
from lakehouse.common.events import EventLog, Kind, note, noting

lake, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with noting(EventLog(name, partial(append, lake), print, gather_s=0.01, patience_s=300)):
    for number in range(count):
        note(Kind.START, str(number), stream=name)
        time.sleep(0.005)
"""


class Appended:
    """Keeps batches in place of a table; the first `failing` attempts raise."""

    def __init__(self, failing: int = 0) -> None:
        self.batches: list[list[Event]] = []
        self.agains: list[bool] = []
        self.failing = failing

    def __call__(self, events: Sequence[Event], again: bool) -> None:
        self.agains.append(again)
        if self.failing:
            self.failing -= 1
            raise OSError("No space left on device\nand a stack trace")
        self.batches.append(list(events))

    @property
    def messages(self) -> list[str]:
        return [event.message for batch in self.batches for event in batch]


@pytest.fixture
def lake_settings(lake_settings: Settings) -> Settings:
    return lake_settings.changed({"lake": f"{lake_settings.lake} [1] é 100% #?"})


@pytest.fixture
def lake(lake_settings: Settings) -> str:
    return lake_settings.lake


def log_of(lake: str) -> EventLog:
    """Return a log that appends to the lake's table as processes do."""
    return EventLog("a test", partial(event_table.append, lake), print, patience_s=300)


def test_events_are_appended_in_the_order_in_which_they_were_noted_by_one_commit(lake: str) -> None:
    before = datetime.now(UTC)
    with noting(log_of(lake)):
        note(Kind.START, "sales starts", stream="sales", layer="gold", table="gold.product_sales")
        details = {"checks": [1, 2], "when": datetime(2026, 3, 1, tzinfo=UTC), "by": "ü"}
        note(Kind.AUDIT, "clean", details=details)
        note(Kind.STOP, "sales has caught up", stream="sales")

    start, audit, stop = newest(lake, limit=10)
    assert (start.kind, start.message) == ("start", "sales starts")
    assert (start.stream, start.layer, start.table) == ("sales", "gold", "gold.product_sales")
    assert (start.actor, start.pid, start.details) == ("a test", os.getpid(), None)
    assert (audit.kind, audit.stream, audit.layer, audit.table) == ("audit", None, None, None)
    assert audit.details == '{"checks": [1, 2], "when": "2026-03-01 00:00:00+00:00", "by": "ü"}'
    assert (stop.kind, stop.message) == ("stop", "sales has caught up")
    assert before <= start.at < audit.at < stop.at <= datetime.now(UTC) + timedelta(milliseconds=1)
    assert len({event.id for event in (start, audit, stop)}) == 3
    assert DeltaTable(direct.location(lake, EVENTS)).version() == 1  # created, then appended to once


def test_what_is_noted_where_nothing_keeps_events_goes_nowhere(lake: str) -> None:
    with noting(log_of(lake)):
        pass
    note(Kind.START, "nobody listens")

    assert newest(lake, limit=10) == []
    assert not Path(lake).exists()


def test_events_are_appended_while_the_process_goes_on() -> None:
    write = Appended()
    with noting(EventLog("a test", write, print, gather_s=0.05)):
        note(Kind.START, "first")
        await_(lambda: write.messages == ["first"])
        note(Kind.STOP, "second")
        await_(lambda: write.messages == ["first", "second"])

    assert len(write.batches) == 2
    assert write.agains == [False, False]


def test_what_many_threads_note_is_there_once_and_at_a_time_of_its_own(lake: str) -> None:
    def many(name: int) -> None:
        for number in range(100):
            note(Kind.START, f"{name} {number}")

    with noting(log_of(lake)):
        threads = [threading.Thread(target=many, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    found = newest(lake, limit=1000)
    said = [f"{name} {number}" for name in range(4) for number in range(100)]
    assert sorted(event.message for event in found) == sorted(said)
    assert len({event.at for event in found}) == 400


def test_a_batch_that_fails_is_tried_again_with_what_has_come_and_both_are_said_once() -> None:
    write, said = Appended(failing=3), list[str]()
    with noting(EventLog("a test", write, said.append, gather_s=0.01, pause_s=0.05)):
        note(Kind.START, "first")
        await_(lambda: write.failing < 3)
        note(Kind.FAILURE, "second")
        await_(lambda: bool(write.messages))
        note(Kind.STOP, "third")

    assert write.messages == ["first", "second", "third"]
    assert write.agains == [False, True, True, True, False]
    assert said == [
        "ops.events cannot be written; everything else continues: No space left on device",
        "ops.events is being written again",
    ]


def test_of_more_than_can_wait_the_oldest_go_and_are_counted() -> None:
    write, said = Appended(failing=1), list[str]()
    with noting(EventLog("a test", write, said.append, capacity=3, gather_s=0.01, pause_s=0.3)):
        note(Kind.START, "0")
        await_(lambda: not write.failing)
        for number in range(1, 6):
            note(Kind.START, str(number))
        await_(lambda: bool(write.messages))

    lost = "3 events were lost: more than 3 were queued, so the oldest were dropped"
    assert write.messages == ["3", "4", "5", lost]
    assert write.batches[-1][-1].kind == "events_lost"
    assert write.batches[-1][-1].details == '{"events": 3}'
    assert said[1:] == ["ops.events is being written again", lost]


def test_what_is_left_at_the_end_is_counted() -> None:
    write, said = Appended(failing=1_000), list[str]()
    with noting(EventLog("a test", write, said.append, capacity=2, gather_s=0.01)):
        for number in range(5):
            note(Kind.START, str(number))

    assert said == [
        "ops.events cannot be written; everything else continues: No space left on device",
        "5 events could not be written to ops.events",
    ]


def test_a_store_that_hangs_keeps_nobody() -> None:
    never, said = threading.Event(), list[str]()

    def hang(_events: Sequence[Event], _again: bool) -> None:
        never.wait()

    log = EventLog("a test", hang, said.append, gather_s=0, patience_s=0.1)
    log.note(Kind.START, "first")
    log.close()
    never.set()

    assert said == ["ops.events has not responded for 0.1 s: the last events may be missing"]


def test_a_lake_that_cannot_be_written_is_said_once_and_stops_nothing(
    lake_settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(lake_settings.lake).write_text("a file, where the lake is to be")
    with recorded(lake_settings.lake, "a test"):
        note(Kind.START, "first")
        note(Kind.STOP, "second")

    said = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in said] == [
        "ops.events cannot be written; everything else continues",
        "2 events could not be written to ops.events",
    ]


def test_a_try_that_seemed_to_fail_leaves_no_event_twice(lake: str) -> None:
    def write_and_fail(events: Sequence[Event], again: bool) -> None:
        event_table.append(lake, events, again)
        if not again:
            raise OSError("the answer was lost")

    with noting(EventLog("a test", write_and_fail, lambda _text: None, gather_s=0.01, pause_s=0.01)):
        note(Kind.START, "first")
        await_(lambda: len(newest(lake, limit=10)) == 1)
        note(Kind.STOP, "second")

    assert [event.message for event in newest(lake, limit=10)] == ["first", "second"]


@pytest.mark.soak
def test_processes_that_append_at_once_lose_and_double_nothing(lake: str) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", WRITER, lake, f"process {number}", str(EACH)])
        for number in range(PROCESSES)
    ]
    assert [process.wait() for process in processes] == [0] * PROCESSES

    found = newest(lake, limit=10_000)
    assert len(found) == len({event.id for event in found}) == PROCESSES * EACH
    for number, process in enumerate(processes):
        own = [event for event in found if event.stream == f"process {number}"]
        assert [event.message for event in own] == [str(place) for place in range(EACH)]
        assert {(event.actor, event.pid) for event in own} == {(f"process {number}", process.pid)}


def appended_at_once(lake: str, spec: TableSpec, monkeypatch: pytest.MonkeyPatch, step: str) -> list[str]:
    """Append a row from each of four threads, which wait for one another before their first `step`."""
    taken, barrier, original = threading.local(), threading.Barrier(PROCESSES), getattr(direct, step)

    def together(*arguments: object) -> object:
        if not hasattr(taken, "once"):
            taken.once = True
            barrier.wait(30)
        return original(*arguments)

    monkeypatch.setattr(direct, step, together)
    with ThreadPoolExecutor(PROCESSES) as pool:
        at = datetime(2026, 3, 1, 12, tzinfo=UTC)
        rows = [{"id": f"row {number}", "at": at} for number in range(PROCESSES)]
        list(pool.map(lambda row: direct.append(lake, spec, [row]), rows))
    return sorted(event.id for event in newest(lake, limit=100))


def metadata_commits(lake: str) -> int:
    log = Path(direct.location(lake, EVENTS), "_delta_log")
    return sum('"metaData"' in file.read_text() for file in log.glob("*.json"))


def test_a_table_that_four_make_at_once_is_made_once_and_has_what_each_appends(
    lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = appended_at_once(lake, EVENTS, monkeypatch, "properties_when_made")
    assert ids == ["row 0", "row 1", "row 2", "row 3"]
    assert metadata_commits(lake) == 1


def test_columns_that_four_add_at_once_are_added_once_and_each_appends(
    lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = StructType([EVENTS.schema["id"], EVENTS.schema["at"]])
    few = TableSpec("ops", "events", columns, stats=("at",))
    direct.append(lake, few, [{"id": "before", "at": datetime(2026, 3, 1, 11, tzinfo=UTC)}])
    ids = appended_at_once(lake, EVENTS, monkeypatch, "_lacking")
    assert ids == ["before", "row 0", "row 1", "row 2", "row 3"]
    assert metadata_commits(lake) == 2


def test_the_table_is_made_as_spark_makes_the_others(lake: str) -> None:
    with noting(log_of(lake)):
        note(Kind.START, "first")

    metadata = DeltaTable(direct.location(lake, EVENTS)).metadata()
    assert metadata.configuration == {
        "delta.enableDeletionVectors": "false",
        "delta.checkpointInterval": "100",
        "delta.checkpoint.writeStatsAsStruct": "true",
        "delta.enableChangeDataFeed": "false",
        "delta.dataSkippingStatsColumns": "at",
        "delta.isolationLevel": "WriteSerializable",
        "lakehouse.format": "1",
        "lakehouse.columns": json.dumps({one.name: one.dataType.simpleString() for one in EVENTS.schema}),
    }
    table = DeltaTable(direct.location(lake, EVENTS))
    assert json.loads(table.schema().to_json()) == json.loads(EVENTS.schema.json())
    assert (table.protocol().min_reader_version, table.protocol().min_writer_version) == (1, 2)


def test_a_table_of_another_version_of_the_code_gets_the_columns_that_it_lacks_and_keeps_its_own(
    lake: str,
) -> None:
    older = TableSpec(
        "ops", "events", StructType([EVENTS.schema[name] for name in ("id", "at", "message")]), stats=("at",)
    )
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    direct.append(lake, older, [{"id": "a", "at": at, "message": "of an older version"}])
    with noting(log_of(lake)):
        note(Kind.START, "of this version", stream="sales")
    direct.append(lake, older, [{"id": "b", "at": at, "message": "of the older version again"}])

    found = [(event.message, event.kind, event.stream) for event in newest(lake, limit=10)]
    assert sorted(found) == [
        ("of an older version", None, None),
        ("of the older version again", None, None),
        ("of this version", "start", "sales"),
    ]


def test_the_newest_events_are_found_by_time_kind_and_stream(lake: str) -> None:
    with noting(log_of(lake)):
        for number in range(3):
            note(Kind.START, f"start {number}", stream="sales")
            note(Kind.STOP, f"stop {number}", stream="it's")
    found = newest(lake, limit=10)

    def messages(**asked: object) -> list[str]:
        return [event.message for event in newest(lake, **{"limit": 10} | asked)]  # type: ignore[arg-type]

    assert messages(limit=2) == ["start 2", "stop 2"]
    assert messages(kinds=[Kind.START]) == ["start 0", "start 1", "start 2"]
    assert messages(streams=["it's"], limit=2) == ["stop 1", "stop 2"]
    assert messages(since=found[3].at, kinds=[Kind.START, Kind.STOP]) == ["stop 1", "start 2", "stop 2"]
    assert messages(since=found[5].at + timedelta(microseconds=1)) == []


def test_many_small_files_become_few_and_no_event_changes(lake: str) -> None:
    for number in range(25):
        with noting(log_of(lake)):
            note(Kind.START, str(number))
    before = newest(lake, limit=100)

    assert event_table.compact(lake) == "ops.events: 25 files became 1"
    assert newest(lake, limit=100) == before
    assert [event.message for event in before] == [str(number) for number in range(25)]
    assert event_table.compact(lake) is None


def test_no_table_has_no_events_and_nothing_to_compact(lake: str) -> None:
    assert newest(lake, limit=10) == []
    assert event_table.compact(lake) is None


@pytest.mark.parametrize(
    ("failure", "kind", "message"),
    [
        (PositionError("put it back"), "refusal", "a test ended: put it back"),
        (StreamError("gold.a failed"), "failure", "a test ended: gold.a failed"),
        (ValueError("no such thing"), "failure", "a test ended: ValueError: no such thing"),
    ],
)
def test_what_a_process_ends_with_is_an_event(
    lake_settings: Settings, failure: Exception, kind: str, message: str
) -> None:
    with pytest.raises(type(failure)), recorded(lake_settings.lake, "a test"):
        raise failure

    (event,) = newest(lake_settings.lake, limit=10)
    assert (event.kind, event.message) == (kind, message)
    assert event.details == json.dumps({"error": type(failure).__name__})


def test_failures_of_a_run_and_their_end_are_events(lake: str) -> None:
    found = Troubles(["gold.t", "export.t", "silver.u"], lambda _text: None)
    clock = "gold.t by the clock"
    with noting(log_of(lake)):
        found.add(Failure(clock, "a", ValueError("no such thing\nand its stack trace")))
        found.add(Failure(clock, "a", ValueError("no such thing")))
        found.end(clock)
        found.end(clock)
        found.add(Failure("export.t", "a", PositionError("put it back"), "micro-batch 5"))
        found.add_last(Failure("gate of a", "a", OSError("disk")))
        found.add(Failure("gold.t", "a", ValueError("no such thing")))
        with pytest.raises(LakehouseError):
            found.add(Failure("silver.u", "b", ValueError("no such thing")))

    events = newest(lake, limit=10)
    assert [(event.kind, event.stream, event.layer, event.table) for event in events] == [
        ("failure", "a", "gold", "gold.t"),
        ("failure", "a", "gold", "gold.t"),
        ("recovery", "a", "gold", "gold.t"),
        ("refusal", "a", "export", "gold.t"),
        ("failure", "a", None, None),
        ("failure", "a", "gold", "gold.t"),
        ("failure", "b", "silver", "silver.u"),
    ]
    assert [event.message for event in events] == [
        "gold.t by the clock failed; retrying in 1 s: ValueError: no such thing",
        "gold.t by the clock failed; retrying in 2 s: ValueError: no such thing",
        "gold.t by the clock works again",
        "export.t failed; retrying in 1 s: put it back",
        "gate of a failed and is left for the next run: OSError: disk",
        "gold.t failed; retrying in 1 s: ValueError: no such thing",
        "silver.u failed, and nothing is left to run: ValueError: no such thing",
    ]
    assert json.loads(events[0].details or "") == {
        "name": "gold.t by the clock",
        "error": "ValueError",
        "failures": 1,
        "where": "",
        "traceback": "gold.t by the clock of a failed\nValueError: no such thing\nand its stack trace",
    }
    assert events[1].details == '{"name": "gold.t by the clock", "error": "ValueError", "failures": 2}'
    assert json.loads(events[3].details or "")["where"] == "micro-batch 5"


def test_an_audit_is_an_event_of_each_stream_with_the_counts_of_its_checks(lake: str) -> None:
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    example = Difference({"product": "p"}, "is not there")
    report = Report(
        at,
        (
            Check("sales", "landed", "bronze.sales_events", 10, 0),
            Check("sales", "gold", "gold.product_sales", 5, 2, (example,)),
            Check("metrics", "landed", "bronze.metrics_events", 7, 0),
        ),
    )
    with noting(log_of(lake)):
        for stream in ("metrics", "sales", "calls"):
            note_audit(report, stream)

    metrics, sales = newest(lake, limit=10)
    assert (metrics.kind, metrics.stream, metrics.message) == ("audit", "metrics", "audit of metrics: clean")
    whole: dict[str, Any] = {"not_compared": []}
    assert (sales.kind, sales.stream, sales.message) == ("audit", "sales", "audit of sales: 2 differences")
    assert json.loads(sales.details or "") == {
        "clean": False,
        "at": "2026-03-01T12:00:00+00:00",
        "checks": [
            {"name": "landed", "subject": "bronze.sales_events", "compared": 10, "differences": 0} | whole,
            {"name": "gold", "subject": "gold.product_sales", "compared": 5, "differences": 2} | whole,
        ],
    }


def test_a_run_notes_its_start_and_how_it_has_ended_for_each_stream(lake: str) -> None:
    stop = Stop()
    with noting(log_of(lake)):
        with noted_run([METRICS, SALES], LAYERS, "1 second", stop):
            pass
        with noted_run([SALES], ["gold"], "available-now", stop):
            stop.request()
        with pytest.raises(OSError, match="disk"), noted_run([SALES], ["gold"], "available-now", stop):
            raise OSError("disk")

    found = newest(lake, limit=10)
    assert [(event.kind, event.stream, event.layer, event.message) for event in found] == [
        ("start", "metrics", None, "all layers started, trigger 1 second"),
        ("start", "sales", None, "all layers started, trigger 1 second"),
        ("stop", "metrics", None, "all layers caught up"),
        ("stop", "sales", None, "all layers caught up"),
        ("start", "sales", "gold", "gold started, trigger available-now"),
        ("stop", "sales", "gold", "gold stopped"),
        ("start", "sales", "gold", "gold started, trigger available-now"),
        ("stop", "sales", "gold", "gold failed"),
    ]
    assert json.loads(found[-1].details or "") == {
        "layers": ["gold"],
        "trigger": "available-now",
        "ended": "failed",
    }


def test_only_names_of_queries_say_a_layer() -> None:
    assert place_of("bronze.metrics_events") == {"layer": "bronze", "table": "bronze.metrics_events"}
    assert place_of("export.metrics_1m") == {"layer": "export", "table": "gold.metrics_1m"}
    assert place_of("gate of sales") == {}
    assert place_of("a.b") == {}


def test_the_command_shows_what_has_happened_without_spark(lake: str) -> None:
    environment = {"LAKEHOUSE_LAKE": lake}
    nothing = run_command(environment, "events")
    with noting(log_of(lake)):
        note(Kind.START, "started", stream="sales", details={"layers": ["gold"]})
        note(Kind.STOP, "stopped [bold]", stream="metrics")
    (start, stop) = newest(lake, limit=10)

    shown = run_command(environment, "events", "--since", "1h")
    assert nothing.stdout == "no events\n"
    assert shown.stdout.index("started") < shown.stdout.index("stopped [bold]")
    asked = run_command(environment, "events", "--kind", "start", "--stream", "sales", "--format", "json")
    assert json.loads(asked.stdout) == [
        {
            "id": start.id,
            "at": start.at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "kind": "start",
            "stream": "sales",
            "layer": None,
            "table": None,
            "actor": "a test",
            "host": start.host,
            "pid": os.getpid(),
            "code_version": start.code_version,
            "message": "started",
            "details": {"layers": ["gold"]},
        }
    ]
    last = run_command(environment, "events", "--limit", "1", "--format", "json")
    assert [event["id"] for event in json.loads(last.stdout)] == [stop.id]
    assert run_command(environment, "events", "--since", "yesterday").returncode == 2
    assert run_command(environment, "events", "--stream", "no such").returncode == 2
