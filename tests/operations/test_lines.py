"""The lines a run prints, as text and as JSON."""

from __future__ import annotations

import io
import json

import pytest

from lakehouse.common.terminal import Console
from lakehouse.engine.layers.step import BatchResult
from lakehouse.engine.runtime.runner import BatchDone
from lakehouse.operations.lines import JsonLines, Lines, TextLines, shown_lines
from lakehouse.operations.telemetry import Observation
from lakehouse.operations.telemetry.queries import streams_by_query
from lakehouse.settings import Settings
from tests.support.streams import STREAMS

DONE = BatchDone(
    "silver.metrics_events", 7, BatchResult(1200, {"metrics_events": 1199, "dead_letters": 1}), 0.25
)
TEXT = "silver.metrics_events batch 7: 1,200 rows, 0.2 s: 1,199 metrics_events, 1 dead_letters"


def nothing_seen() -> Observation:
    raise AssertionError("lines without state do not look at the streams")


def test_a_micro_batch_is_a_line_of_text() -> None:
    out = io.StringIO()
    lines = TextLines(Console(file=out, width=20))
    lines.batch(DONE)
    lines.notice("gold.metrics_1m [red] failed:\x1b[2J\n\u202eclean")
    lines.say("running")
    failed = r"gold.metrics_1m [red] failed:\x1b[2J\n\u{202e}clean"
    assert out.getvalue() == f"{TEXT}\n{failed}\nrunning\n"


def test_a_micro_batch_is_a_line_of_json_with_its_stream_layer_and_batch() -> None:
    written: list[str] = []
    lines = JsonLines(written.append)
    with lines.following(streams_by_query(STREAMS), nothing_seen):
        lines.batch(DONE)
        lines.batch(BatchDone("gold.call_records", None, BatchResult(1, {"call_records": 1}), 0.0))
    lines.notice("größer\nals\x1b\x9b\u202e")
    first, second, third = map(json.loads, written)
    assert {name: value for name, value in first.items() if name != "at"} == {
        "kind": "batch",
        "message": TEXT,
        "stream": "metrics",
        "layer": "silver",
        "table": "metrics_events",
        "batch": 7,
        "rows": 1200,
        "written": {"metrics_events": 1199, "dead_letters": 1},
        "seconds": 0.25,
    }
    assert (second["stream"], second["layer"], second["batch"]) == ("calls", "gold", None)
    assert (third["kind"], third["message"]) == ("notice", "größer\nals\x1b\x9b\u202e")
    assert all(line.isprintable() for line in written)


def started(lines: Lines) -> None:
    """Report a start, from the connections to the first rounds."""
    lines.wait("connecting to Kafka")
    with lines.following(streams_by_query(STREAMS), nothing_seen):
        lines.wait("starting Spark")
        lines.wait("warming up")
        lines.wait(None)
        lines.wait("creating tables")
        for stream in STREAMS:
            lines.on_round(stream.name)


PHASES = ["connecting to Kafka", "starting Spark", "warming up", "creating tables"]


def test_without_a_terminal_a_start_is_a_plain_line_for_each_thing_that_it_waits_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with shown_lines(["metrics"], ["bronze"], Settings(), "1 second") as lines:
        started(lines)
    assert capsys.readouterr() == ("".join(f"{phase}\n" for phase in PHASES), "")


def test_a_start_is_lines_of_json_of_a_documented_kind(capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings.model_validate({"run": {"log_format": "json"}})
    with shown_lines(["metrics"], ["bronze"], settings, "1 second") as lines:
        started(lines)
    written = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line.keys(), line["kind"]) for line in written] == [({"at", "kind", "message"}, "said")] * 4
    assert [line["message"] for line in written] == PHASES
