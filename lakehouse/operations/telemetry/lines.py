"""A run's output: readable text lines, or JSON lines for log collectors.

Each JSON line contains `at` (ISO 8601, UTC), `kind` (said, notice or batch) and `message`. A micro-batch's
line also contains stream, layer, table, batch (the version written or sent, or null for clock-driven work),
rows, written and seconds.

A live run on a terminal instead redraws one line per stream, with notices above:

    stream   health  records/s              bronze              silver …              waiting
    metrics  well        9,998   0.3 s, 1.9 s ago    0.6 s, 1.3 s ago …   31,022, 3.1 s
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from rich.live import Live
from rich.table import Table

from lakehouse.common.printable import printable_json
from lakehouse.common.quantities import told_s
from lakehouse.common.terminal import Console
from lakehouse.engine.layers.step import LAYERS, LayerName
from lakehouse.operations.telemetry.queries import streams_by_query
from lakehouse.operations.telemetry.values import Observation, StreamState
from lakehouse.streams.definition import Stream

if TYPE_CHECKING:
    from lakehouse.engine.runtime.runner import BatchDone


class Lines(Protocol):
    """A run's output. Implementations are thread-safe."""

    def say(self, text: str) -> None:
        """Report progress."""

    def notice(self, text: str) -> None:
        """Report a failure, a recovery or an allowed loss."""

    def batch(self, done: BatchDone) -> None:
        """Report a finished micro-batch."""


class TextLines:
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


class JsonLines:
    """JSON lines for a log collector. `write` is called with each line, without a newline."""

    def __init__(self, streams: Sequence[Stream], write: Callable[[str], None]) -> None:
        self._write = write
        self._stream_of = streams_by_query(streams)

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
    """A layer's last micro-batch with rows: its duration and its monotonic end time, in seconds."""

    took_s: float
    at: float


class LiveLines(TextLines):
    """Live terminal lines for the running `layers`. A micro-batch updates its stream's line.

    `look` returns the streams' state. `records/s` is the landing rate over the last half minute's
    micro-batches. For each layer, a line shows the duration of the last micro-batch with rows, and the time
    since the micro-batch was written or exported. `waiting` shows the number of records that have not yet
    landed, and the oldest record's age.
    """

    def __init__(
        self,
        console: Console,
        streams: Sequence[Stream],
        layers: Sequence[LayerName],
        *,
        look: Callable[[], Observation],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(console)
        self._look = look
        self._clock = clock
        self._layers = [layer for layer in LAYERS if layer in layers]
        self._streams = [stream.name for stream in streams]
        self._stream_of = streams_by_query(streams)
        self._lock = threading.Lock()
        self._written: dict[tuple[str, str], _Written] = {}
        self._landed: dict[str, deque[tuple[float, int]]] = defaultdict(deque)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the lines during the block. The last lines remain on the screen."""
        with Live(get_renderable=self.drawn, console=self._console, refresh_per_second=_A_SECOND):
            yield

    def batch(self, done: BatchDone) -> None:
        """Record a finished micro-batch."""
        if not done.result.rows:
            return
        stream, layer, now = self._stream_of.get(done.query, ""), done.query.partition(".")[0], self._clock()
        with self._lock:
            self._written[stream, layer] = _Written(done.duration_s, now)
            if layer == "bronze":
                self._landed[stream].append((now, done.result.rows))

    def drawn(self) -> Table:
        """Return the current lines."""
        states = {state.name: state for state in self._look().streams}
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for heading in ("stream", "health"):
            table.add_column(heading, no_wrap=True)
        for heading in ("records/s", *self._layers, "waiting"):
            table.add_column(heading, justify="right", no_wrap=True)
        with self._lock:
            now = self._clock()
            for name in self._streams:
                cells = (self._cell(self._written.get((name, layer)), now) for layer in self._layers)
                state = states[name]
                rate = f"{self._rate(name, now):,.0f}"
                table.add_row(name, state.health.word.value, rate, *cells, _waiting(state))
        return table

    def _cell(self, written: _Written | None, now: float) -> str:
        if written is None:
            return "-"
        took = told_s(written.took_s)
        return took if self._console.width < _NARROW else f"{took}, {told_s(now - written.at)} ago"

    def _rate(self, stream: str, now: float) -> float:
        """Return the landing rate in records/s since the first micro-batch of the last half minute."""
        landed = self._landed[stream]
        while landed and now - landed[0][0] > _RATE_OVER_S:
            landed.popleft()
        if len(landed) < 2:  # noqa: PLR2004 - both ends of a span
            return 0.0
        (begin, first), (end, _) = landed[0], landed[-1]
        return (sum(rows for _, rows in landed) - first) / max(end - begin, 1e-3)


def _waiting(state: StreamState) -> str:
    records = [lag.records for lag in state.partitions]
    if not records or None in records:
        return "?"
    seconds = max((lag.seconds or 0.0 for lag in state.partitions), default=0.0)
    return f"{sum(one or 0 for one in records):,}, {told_s(seconds)}"
