"""The output of a run: text lines for people, or JSON lines for log collectors.

Each JSON line has `at` (ISO 8601, UTC), `kind` (said, notice or batch) and `message`. A micro-batch's line
also has stream, layer, table, batch (the version that it wrote or sent; null for clock-driven work), rows,
written and seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from lakehouse.common.printable import printable_json
from lakehouse.common.terminal import Console
from lakehouse.operations.telemetry.queries import streams_by_query
from lakehouse.streams.definition import Stream

if TYPE_CHECKING:
    from lakehouse.engine.runtime.runner import BatchDone


class Lines(Protocol):
    """The output of a run. Implementations are thread-safe."""

    def say(self, text: str) -> None:
        """Report progress."""

    def notice(self, text: str) -> None:
        """Report a failure, a recovery or an allowed loss."""

    def batch(self, done: BatchDone) -> None:
        """Report a finished micro-batch."""


class TextLines:
    """Lines for people."""

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
    """Lines for a log collector; `write` gets each line without a newline."""

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
