"""What a live run shows on a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from lakehouse.common.terminal import Console
from lakehouse.engine.layers import LAYERS, LayerName
from lakehouse.engine.layers.step import BatchResult
from lakehouse.engine.runtime.runner import BatchDone
from lakehouse.operations.lines import LiveLines
from lakehouse.operations.telemetry import Health, Observation, PartitionLag, StreamState, Word
from lakehouse.operations.telemetry.queries import streams_by_query
from tests.support import pipeline
from tests.support.streams import METRICS, SALES
from tests.support.terminals import left

NOON = pipeline.utc("2026-03-01T12:00:00")


class Terminal:
    """Lines of metrics and sales on a terminal, at a time in seconds that the test sets."""

    def __init__(self, *layers: LayerName, width: int = 160) -> None:
        self.now = 100.0
        self.lags: Sequence[PartitionLag] = ()
        self.out = io.StringIO()
        self.console = Console(file=self.out, width=width, force_terminal=True, color_system=None)
        names = ("metrics", "sales")
        self.lines = LiveLines(self.console, names, layers or LAYERS, clock=lambda: self.now)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Look at the streams during the block; both have finished a round."""
        with self.lines.following(streams_by_query((METRICS, SALES)), self.look):
            for name in ("metrics", "sales"):
                self.lines.on_round(name)
            yield

    def look(self) -> Observation:
        well, lags = Health(Word.WELL, "every record has been processed"), tuple(self.lags)
        states = (
            StreamState(name, well, lags, (), (), (), (), 0, None, None, None)
            for name in ("metrics", "sales")
        )
        return Observation(NOON, tuple(states))

    def done(self, query: str, rows: int, took_s: float, *, at: float) -> None:
        self.now = at
        self.lines.batch(BatchDone(query, 0, BatchResult(rows), took_s))

    def rows(self) -> list[str]:
        with self.console.capture() as captured:
            self.console.print(self.lines.drawn())
        return [" ".join(line.split()) for line in captured.get().splitlines()]


def test_a_stream_has_a_line_of_rates_seconds_ages_and_what_waits() -> None:
    terminal = Terminal()
    terminal.lags = [PartitionLag("t", 0, 5, 1205, 1200, 3.14), PartitionLag("t", 1, 5, 39, 34, None)]
    with terminal.running():
        for second in (101, 104, 107):
            terminal.done("bronze.metrics_events", 30_000, 0.31, at=second)
            terminal.done("silver.metrics_events", 29_000, 0.62, at=second + 0.5)
        terminal.done("gold.metrics_summary_10m", 29_000, 0.9, at=108)
        terminal.done("gold.metrics_1m", 0, 0.1, at=109)  # no rows, so no news
        terminal.now = 110
        assert terminal.rows() == [
            "stream health records/s bronze silver gold export waiting",
            "metrics well 10,000 0.3 s, 3 s ago 0.6 s, 2.5 s ago 0.9 s, 2 s ago - 1,234, 3.1 s",
            "sales well 0 - - - - 1,234, 3.1 s",
        ]


def test_a_rate_is_of_the_last_half_minute() -> None:
    terminal = Terminal("bronze")
    with terminal.running():
        for second in (100, 110, 120):
            terminal.done("bronze.metrics_events", 1000, 0.1, at=second)
        assert terminal.rows()[1] == "metrics well 100 0.1 s, 0 s ago ?"
        terminal.now = 145
        assert terminal.rows()[1] == "metrics well 0 0.1 s, 25 s ago ?"


def test_a_narrow_terminal_has_no_ages_and_what_is_not_known_is_a_question_mark() -> None:
    terminal = Terminal("silver", "gold", width=80)
    terminal.lags = [PartitionLag("t", 0, 5, None, None, None, "no broker")]
    with terminal.running():
        terminal.done("gold.metrics_1m", 7, 1.0, at=101)
        assert terminal.rows()[:2] == [
            "stream health records/s silver gold waiting",
            "metrics well 0 - 1 s ?",
        ]


def test_what_goes_wrong_stands_above_the_lines_which_stay_at_the_end() -> None:
    terminal = Terminal("export")
    with terminal.lines.shown(), terminal.running():
        terminal.lines.notice("export.metrics_1m failed; retrying in 1 s")
        terminal.done("export.metrics_1m", 3, 0.2, at=101)
    said = terminal.out.getvalue()
    assert said.count("export.metrics_1m failed; retrying in 1 s") == 1
    assert said.index("failed; retrying") < said.rindex("records/s")
    assert "0.2 s, 0 s ago" in said


def test_the_lines_are_drawn_at_once_with_every_stream_starting() -> None:
    terminal = Terminal("bronze", "gold")
    with terminal.lines.shown():
        drawn = [" ".join(line.split()) for line in terminal.out.getvalue().splitlines()]
        assert drawn[-4].endswith("stream health records/s bronze gold waiting")
        assert drawn[-3:] == ["metrics starting 0 - - -", "sales starting 0 - - -", "loading (0 s)"]


def test_below_the_lines_is_what_the_start_waits_for_and_for_how_long() -> None:
    terminal = Terminal("bronze")
    terminal.lines.wait("connecting to Kafka")
    terminal.now = 103.9
    assert terminal.rows()[1:] == [
        "metrics starting 0 - -",
        "sales starting 0 - -",
        "connecting to Kafka (3 s)",
    ]

    terminal.lags = [PartitionLag("t", 0, 5, 1205, 1200, 3.14)]
    with terminal.lines.following(streams_by_query((METRICS, SALES)), terminal.look):
        terminal.lines.wait("starting Spark")
        terminal.now = 167
        assert terminal.rows()[1:] == [
            "metrics starting 0 - 1,200, 3.1 s",
            "sales starting 0 - 1,200, 3.1 s",
            "starting Spark (1 min 3 s)",
        ]


def test_a_stream_has_started_with_its_first_rows_or_its_first_round() -> None:
    terminal = Terminal("bronze")
    with terminal.lines.following(streams_by_query((METRICS, SALES)), terminal.look):
        terminal.lines.wait("creating tables")
        terminal.done("bronze.metrics_events", 7, 0.3, at=102)
        terminal.done("bronze.sales_events", 0, 0.3, at=102)
        assert terminal.rows()[1:] == [
            "metrics well 0 0.3 s, 0 s ago ?",
            "sales starting 0 - ?",
            "creating tables (2 s)",
        ]
        terminal.lines.on_round("sales")
        assert terminal.rows()[1:] == ["metrics well 0 0.3 s, 0 s ago ?", "sales well 0 - ?"]


def test_a_run_on_standby_shows_the_streams_once_it_is_warm() -> None:
    terminal = Terminal("bronze")
    with terminal.lines.following(streams_by_query((METRICS, SALES)), terminal.look):
        terminal.lines.wait("warming up")
        assert terminal.rows()[-1] == "warming up (0 s)"
        terminal.lines.wait(None)
        assert terminal.rows()[1:] == ["metrics well 0 - ?", "sales well 0 - ?"]


def test_a_start_that_fails_leaves_only_what_was_said_on_the_screen() -> None:
    terminal = Terminal("bronze")

    def fail() -> None:
        with terminal.lines.shown():
            terminal.lines.say("bronze of metrics, sales")
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert left(terminal.out.getvalue()) == ["bronze of metrics, sales"]


def test_the_last_lines_are_those_of_the_end_although_nobody_looks_anymore() -> None:
    terminal = Terminal("bronze")
    with terminal.lines.shown():
        with terminal.running():
            terminal.lags = [PartitionLag("t", 0, 5, 12, 7, 1.0)]
        terminal.lags = []
    assert [" ".join(line.split()) for line in left(terminal.out.getvalue())] == [
        "stream health records/s bronze waiting",
        "metrics well 0 - 7, 1 s",
        "sales well 0 - 7, 1 s",
    ]
