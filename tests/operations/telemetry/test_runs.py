"""Which processes run a stream: the files they keep while alive, and when they count as gone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakehouse.engine.layers.step import BatchResult
from lakehouse.engine.runtime.runner import BatchDone
from lakehouse.operations.telemetry import QueryRun, QueryState, Run
from lakehouse.operations.telemetry.runs import (
    Heartbeat,
    as_json,
    beating,
    directory_of,
    file_of,
    of_stream,
    read_runs,
    unrun,
)
from tests.support import pipeline
from tests.support.pipeline import await_

AT = pipeline.utc("2026-11-22T09:00:00")
RUN = Run(
    "elsewhere",
    7,
    ("bronze", "silver"),
    ("metrics", "sales"),
    pipeline.utc("2026-11-22T08:00:00"),
    AT,
    9464,
    (
        QueryRun("silver.metrics_events", 4, AT, 12, 48.0, {"process": 0.25}, "the disk is full", 2, AT),
        QueryRun("silver.sales_events"),
    ),
)


def keep(home: Path, run: Run) -> Path:
    file = file_of(home, run.host, run.pid)
    file.parent.mkdir(exist_ok=True)
    file.write_text(as_json(run))
    return file


def test_a_file_reads_back_as_what_was_written(tmp_path: Path) -> None:
    keep(tmp_path, RUN)
    assert read_runs(tmp_path, AT) == [RUN]


def test_a_file_has_camel_case_and_iso_8601() -> None:
    found = json.loads(as_json(RUN))
    assert found | {"queries": found["queries"][:1]} == {
        "host": "elsewhere",
        "pid": 7,
        "layers": ["bronze", "silver"],
        "streams": ["metrics", "sales"],
        "startedAt": "2026-11-22T08:00:00+00:00",
        "beatAt": "2026-11-22T09:00:00+00:00",
        "telemetryPort": 9464,
        "queries": [
            {
                "name": "silver.metrics_events",
                "batch": 4,
                "at": "2026-11-22T09:00:00+00:00",
                "rows": 12,
                "rowsPerS": 48.0,
                "phasesS": {"process": 0.25},
                "error": "the disk is full",
                "restarts": 2,
                "failedAt": "2026-11-22T09:00:00+00:00",
            }
        ],
    }


def test_a_process_of_another_host_is_gone_after_ten_seconds_and_its_file_is_cleared(tmp_path: Path) -> None:
    file = keep(tmp_path, RUN)
    file.with_name(f".{file.name}.killed.tmp").write_text("half")
    assert read_runs(tmp_path, AT + timedelta(seconds=10)) == [RUN]
    assert read_runs(tmp_path, AT + timedelta(seconds=10, microseconds=1)) == []
    assert list(directory_of(tmp_path).iterdir()) == []


def test_a_process_of_this_host_that_was_killed_is_gone_at_once(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mine = replace(RUN, host=socket.gethostname(), pid=process.pid)
    keep(tmp_path, mine)
    assert read_runs(tmp_path, AT) == [mine]
    process.kill()
    await_(lambda: read_runs(tmp_path, AT) == [])  # although it has not been reaped yet
    process.communicate()
    assert not file_of(tmp_path, mine.host, mine.pid).exists()


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    directory_of(tmp_path).mkdir()
    (directory_of(tmp_path) / "notes.json").write_text("[1, 2]")
    (directory_of(tmp_path) / "broken.json").write_text("{")
    assert read_runs(tmp_path, AT) == []
    assert len(list(directory_of(tmp_path).iterdir())) == 2


def test_without_a_directory_nothing_runs(tmp_path: Path) -> None:
    assert read_runs(tmp_path / "nowhere", AT) == []


def test_a_stream_has_the_processes_that_run_it_with_its_own_queries() -> None:
    other = replace(RUN, pid=8, streams=("calls",))
    assert of_stream([RUN, other], "sales", ["silver.sales_events"]) == (
        replace(RUN, queries=(QueryRun("silver.sales_events"),)),
    )


def query(layer: str, done_at: datetime | None) -> QueryState:
    return QueryState(f"{layer}.a", layer, None, done_at)


def test_layers_that_nothing_runs_are_so_since_they_were_stopped_or_last_wrote() -> None:
    before = AT - timedelta(minutes=5)
    queries = [query("bronze", before), query("silver", before), query("gold", before), query("export", None)]
    run = replace(RUN, layers=("bronze",))
    stops = {"bronze": before, "silver": AT - timedelta(minutes=1), "gold": AT - timedelta(minutes=6)}
    assert unrun(queries, [run], stops, AT) == {
        "silver": AT - timedelta(minutes=1),
        "gold": before,  # restarted after it was stopped, then killed
        "export": None,
    }


def test_a_layer_that_has_just_written_is_run_by_somebody_unless_it_was_stopped_since() -> None:
    queries = [query("silver", AT - timedelta(seconds=9))]
    assert unrun(queries, [], {}, AT) == {}
    assert unrun(queries, [], {"silver": AT - timedelta(seconds=8)}, AT) == {
        "silver": AT - timedelta(seconds=8)
    }


@pytest.mark.soak
def test_a_process_has_its_file_while_it_lives_and_none_afterwards(tmp_path: Path) -> None:
    heartbeat = Heartbeat(["silver"], ["metrics"], 9464)
    file = file_of(tmp_path, socket.gethostname(), os.getpid())
    with beating(heartbeat, tmp_path, pytest.fail):
        await_(file.exists)
        heartbeat.on_batch(BatchDone("silver.metrics_events", 3, BatchResult(100), 0.5))
        heartbeat.on_batch(BatchDone("silver.metrics_events", None, BatchResult(7), 0.5))
        heartbeat.on_phases("silver.metrics_events", {"process": 1500})
        heartbeat.on_restart("silver.metrics_events")
        heartbeat.on_failure("silver.metrics_events by the clock", "the disk is full")

        def queries() -> tuple[QueryRun, ...]:
            (found,) = read_runs(tmp_path, datetime.now(UTC))
            assert (found.layers, found.streams, found.telemetry_port) == (("silver",), ("metrics",), 9464)
            return found.queries

        await_(lambda: queries() != ())
        (one,) = queries()
        assert one.at is not None
        assert one.failed_at is not None
        assert replace(one, at=None, failed_at=None) == QueryRun(
            "silver.metrics_events", 3, None, 100, 200.0, {"process": 1.5}, "the disk is full", 1
        )
        heartbeat.on_recovery("silver.metrics_events by the clock")
        await_(lambda: queries()[0].error is None)
        assert queries()[0].failed_at is None
    assert list(directory_of(tmp_path).iterdir()) == []
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}


def test_a_home_that_cannot_be_written_is_told_of_once_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "running").write_text("in the way")
    said: list[str] = []
    with beating(Heartbeat(["silver"], ["metrics"], None), tmp_path, said.append):
        await_(lambda: said != [])
        (tmp_path / "running").unlink()
        await_(lambda: len(read_runs(tmp_path, datetime.now(UTC))) == 1)
    (line,) = said
    assert line.startswith(f"other processes cannot see this one, because {tmp_path}/running/")
