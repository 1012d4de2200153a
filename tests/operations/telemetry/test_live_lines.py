"""What a live run shows on a terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence

from lakehouse.common.terminal import Console
from lakehouse.engine.layers.step import LAYERS, BatchResult, LayerName
from lakehouse.engine.runtime.runner import BatchDone
from lakehouse.operations.telemetry import Health, Observation, PartitionLag, StreamState, Word
from lakehouse.operations.telemetry.lines import LiveLines
from tests.support import pipeline
from tests.support.streams import METRICS, SALES

NOON = pipeline.utc("2026-03-01T12:00:00")


class Terminal:
    """Lines of metrics and sales on a terminal, at a time in seconds that the test sets."""

    def __init__(self, *layers: LayerName, width: int = 160) -> None:
        self.now = 100.0
        self.lags: Sequence[PartitionLag] = ()
        self.out = io.StringIO()
        self.console = Console(file=self.out, width=width, force_terminal=True, color_system=None)
        self.lines = LiveLines(
            self.console,
            (METRICS, SALES),
            layers or LAYERS,
            look=self.look,
            clock=lambda: self.now,
        )

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
    for second in (100, 110, 120):
        terminal.done("bronze.metrics_events", 1000, 0.1, at=second)
    assert terminal.rows()[1] == "metrics well 100 0.1 s, 0 s ago ?"
    terminal.now = 145
    assert terminal.rows()[1] == "metrics well 0 0.1 s, 25 s ago ?"


def test_a_narrow_terminal_has_no_ages_and_what_is_not_known_is_a_question_mark() -> None:
    terminal = Terminal("silver", "gold", width=80)
    terminal.lags = [PartitionLag("t", 0, 5, None, None, None, "no broker")]
    terminal.done("gold.metrics_1m", 7, 1.0, at=101)
    assert terminal.rows()[:2] == ["stream health records/s silver gold waiting", "metrics well 0 - 1 s ?"]


def test_what_goes_wrong_stands_above_the_lines_which_stay_at_the_end() -> None:
    terminal = Terminal("export")
    with terminal.lines.shown():
        terminal.lines.notice("export.metrics_1m failed; retrying in 1 s")
        terminal.done("export.metrics_1m", 3, 0.2, at=101)
    said = terminal.out.getvalue()
    assert said.count("export.metrics_1m failed; retrying in 1 s") == 1
    assert said.index("failed; retrying") < said.rindex("records/s")
    assert "0.2 s, 0 s ago" in said
