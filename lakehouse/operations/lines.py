"""A run's output: readable text lines, or JSON lines for log collectors.

Each JSON line contains `at` (ISO 8601, UTC), `kind` (said, notice or batch) and `message`. A line about a
micro-batch also contains stream, layer, table, batch (the table version that was written or sent, or null for
clock-driven work), rows, written and seconds.

A live run on a terminal instead redraws one line per stream, with notices above:

    stream   health    records/s              bronze              silver …              waiting
    metrics  well          9,998   0.3 s, 1.9 s ago    0.6 s, 1.3 s ago …   31,022, 3.1 s
    sales    starting          0                   -                   - …     1,204, 0.8 s
    creating tables (2 s)

This module imports neither Spark nor the engine, so the first lines appear before those are imported.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.table import Table

from lakehouse.common.printable import printable_json
from lakehouse.common.quantities import told_s
from lakehouse.common.terminal import Console
from lakehouse.engine.layers import LAYERS, LayerName
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.engine.runtime.watch import Watch

if TYPE_CHECKING:
    from lakehouse.engine.runtime.runner import BatchDone
    from lakehouse.operations.telemetry import Observation, StreamState
    from lakehouse.settings import Settings


class Lines(Watch, ABC):
    """A run's output. Implementations are thread-safe."""

    @abstractmethod
    def say(self, text: str) -> None:
        """Report progress."""

    @abstractmethod
    def notice(self, text: str) -> None:
        """Report a failure, a recovery or an allowed loss."""

    @abstractmethod
    def batch(self, done: BatchDone) -> None:
        """Report a finished micro-batch."""

    def wait(self, what: str | None) -> None:
        """Report what the run is waiting for before its first micro-batches, or None if it is not waiting."""
        if what is not None:
            self.say(what)

    @abstractmethod
    def following(
        self, stream_of: Mapping[str, str], look: Callable[[], Observation]
    ) -> AbstractContextManager[None]:
        """Return a context manager during which micro-batches and the streams' state are reported.

        `stream_of` maps each query's name to its stream's name. `look` returns the current state of all
        streams.
        """


@contextmanager
def shown_lines(
    streams: Sequence[str], layers: Sequence[LayerName], settings: Settings, trigger: str
) -> Iterator[Lines]:
    """Yield the output of a run of these streams, and show it during the block."""
    console = Console()
    if settings.run.log_format == "json":
        yield JsonLines(lambda line: print(f"{line}\n", end="", file=console.file, flush=True))
    elif trigger == AVAILABLE_NOW or not console.is_interactive:
        yield TextLines(console)
    else:
        lines = LiveLines(console, streams, layers)
        with lines.shown():
            yield lines


class TextLines(Lines):
    """Readable text lines."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        """Report progress."""
        self._console.print(text, soft_wrap=True)

    def notice(self, text: str) -> None:
        """Report a failure, a recovery or an allowed loss."""
        self._console.print(text, soft_wrap=True)

    def batch(self, done: BatchDone) -> None:
        """Report a finished micro-batch."""
        self._console.print(_text_of(done), soft_wrap=True)

    def following(
        self,
        stream_of: Mapping[str, str],  # noqa: ARG002
        look: Callable[[], Observation],  # noqa: ARG002
    ) -> AbstractContextManager[None]:
        """Return a context manager that does nothing, because text lines do not show the streams' state."""
        return nullcontext()


class JsonLines(Lines):
    """JSON lines for a log collector. `write` is called with each line, without a newline."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._stream_of: Mapping[str, str] = {}

    def following(
        self,
        stream_of: Mapping[str, str],
        look: Callable[[], Observation],  # noqa: ARG002
    ) -> AbstractContextManager[None]:
        """Add the stream's name to each line about a micro-batch. The streams' state is not reported."""
        self._stream_of = stream_of
        return nullcontext()

    def say(self, text: str) -> None:
        """Report progress."""
        self._line("said", text)

    def notice(self, text: str) -> None:
        """Report a failure, a recovery or an allowed loss."""
        self._line("notice", text)

    def batch(self, done: BatchDone) -> None:
        """Report a finished micro-batch."""
        layer, _, table = done.query.partition(".")
        facts = {
            "stream": self._stream_of.get(done.query),
            "layer": layer,
            "table": table,
            "batch": done.batch,
            "rows": done.result.rows,
            "written": dict(done.result.written),
            "seconds": round(done.duration_s, 3),
        }
        self._line("batch", _text_of(done), facts)

    def _line(self, kind: str, message: str, facts: Mapping[str, object] | None = None) -> None:
        line = {"at": datetime.now(UTC).isoformat(), "kind": kind, "message": message, **(facts or {})}
        self._write(printable_json(line))


def _text_of(done: BatchDone) -> str:
    became = ", ".join(f"{count:,} {name}" for name, count in done.result.written.items())
    what = "by the clock" if done.batch is None else f"batch {done.batch}"
    return f"{done.query} {what}: {done.result.rows:,} rows, {done.duration_s:.1f} s: {became}"


_A_SECOND = 1  # redraws per second
_RATE_OVER_S = 30.0
_NARROW = 100  # below this width, the time since the last write is omitted


@dataclass(frozen=True)
class _Written:
    """A layer's last micro-batch with rows: its duration, and its end on the monotonic clock, in seconds."""

    took_s: float
    at: float


class LiveLines(TextLines):
    """Live terminal lines for the running `layers`. A micro-batch updates its stream's line.

    A stream is shown as starting until its first micro-batch or its first round. Until all streams have
    started, a line below them shows what the run is waiting for. If no stream starts, the lines are erased at
    the end, and only the messages and the error remain on the screen.

    `records/s` is the landing rate over the last half minute's micro-batches. For each layer, a line shows
    the duration of the last micro-batch with rows, and the time since the micro-batch was written or
    exported. `waiting` shows the number of records that have not yet landed, and the oldest record's age.
    """

    def __init__(
        self,
        console: Console,
        streams: Sequence[str],
        layers: Sequence[LayerName],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(console)
        self._clock = clock
        self._layers = [layer for layer in LAYERS if layer in layers]
        self._streams = tuple(streams)
        self._stream_of: Mapping[str, str] = {}
        self._look: Callable[[], Observation | None] = lambda: None
        self._looking = threading.Lock()
        self._lock = threading.Lock()
        self._waits_for: tuple[str, float] | None = ("loading", clock())
        self._started: set[str] = set()
        self._written: dict[tuple[str, str], _Written] = {}
        self._landed: dict[str, deque[tuple[float, int]]] = defaultdict(deque)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the lines until the block ends. The last lines remain if a stream has started."""
        with (
            Live(get_renderable=self.drawn, console=self._console, refresh_per_second=_A_SECOND) as live,
            _leaving_on_sigterm(),
        ):
            live.refresh()  # the first automatic refresh comes after a second
            try:
                yield
            finally:
                live.transient = not self._started

    def wait(self, what: str | None) -> None:
        """Show below the streams' lines what the run is waiting for. None means that it is not waiting."""
        with self._lock:
            self._waits_for = None if what is None else (what, self._clock())
            if what is None:
                self._started.update(self._streams)

    @contextmanager
    def following(self, stream_of: Mapping[str, str], look: Callable[[], Observation]) -> Iterator[None]:
        """Show the streams' state. After the block, keep showing the last state without calling `look`."""
        with self._looking:
            self._stream_of, self._look = stream_of, look
        try:
            yield
        finally:
            with self._looking:
                last = look() if self._started else None
                self._look = lambda: last

    def on_round(self, stream: str) -> None:
        """Show that a stream has started."""
        with self._lock:
            self._start(stream)

    def batch(self, done: BatchDone) -> None:
        """Record a finished micro-batch."""
        if not done.result.rows:
            return
        stream, layer, now = self._stream_of.get(done.query, ""), done.query.partition(".")[0], self._clock()
        with self._lock:
            self._start(stream)
            self._written[stream, layer] = _Written(done.duration_s, now)
            if layer == "bronze":
                self._landed[stream].append((now, done.result.rows))

    def drawn(self) -> Group:
        """Return the current lines."""
        with self._looking:
            seen = self._look()
        states = {} if seen is None else {state.name: state for state in seen.streams}
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for heading in ("stream", "health"):
            table.add_column(heading, no_wrap=True)
        for heading in ("records/s", *self._layers, "waiting"):
            table.add_column(heading, justify="right", no_wrap=True)
        with self._lock:
            now = self._clock()
            for name in self._streams:
                cells = (self._cell(self._written.get((name, layer)), now) for layer in self._layers)
                state = states.get(name)
                word = "starting" if state is None or name not in self._started else state.health.word.value
                rate = f"{self._rate(name, now):,.0f}"
                table.add_row(name, word, rate, *cells, "-" if state is None else _waiting(state))
            below = [] if self._waits_for is None else [_told(*self._waits_for, now)]
        return Group(table, *below)

    def _start(self, stream: str) -> None:
        """Mark a stream as started. The caller must hold the lock."""
        self._started.add(stream)
        if self._started.issuperset(self._streams):
            self._waits_for = None

    def _cell(self, written: _Written | None, now: float) -> str:
        if written is None:
            return "-"
        took = told_s(written.took_s)
        return took if self._console.width < _NARROW else f"{took}, {told_s(now - written.at)} ago"

    def _rate(self, stream: str, now: float) -> float:
        """Return the records landed per second since the first micro-batch of the last half minute."""
        landed = self._landed[stream]
        while landed and now - landed[0][0] > _RATE_OVER_S:
            landed.popleft()
        if len(landed) < 2:  # noqa: PLR2004 - both ends of a span
            return 0.0
        (begin, first), (end, _) = landed[0], landed[-1]
        return (sum(rows for _, rows in landed) - first) / max(end - begin, 1e-3)


@contextmanager
def _leaving_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit with the usual exit status 143, so that the terminal's cursor is restored.

    Once Spark has started, the run's own handler takes precedence.
    """
    status = 128 + signal.SIGTERM
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(status))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _told(what: str, since: float, now: float) -> str:
    return f"{what} ({told_s(int(now - since))})"


def _waiting(state: StreamState) -> str:
    records = [lag.records for lag in state.partitions]
    if not records or None in records:
        return "?"
    seconds = max((lag.seconds or 0.0 for lag in state.partitions), default=0.0)
    return f"{sum(one or 0 for one in records):,}, {told_s(seconds)}"
