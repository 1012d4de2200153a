"""The heartbeat file of a process that runs streams, for other processes (`telemetry.runs`).

A background thread writes the file every two seconds; layers neither wait for it nor fail because of it. A
failed write is reported once and retried.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakehouse.common.background import beside
from lakehouse.common.state_files import make_private, write_whole
from lakehouse.engine.runtime.watch import Watch
from lakehouse.operations.telemetry.queries import query_of
from lakehouse.operations.telemetry.runs import as_json, file_of
from lakehouse.operations.telemetry.values import QueryRun, Run

if TYPE_CHECKING:
    from lakehouse.engine.runtime.runner import BatchDone

EVERY_S = 2.0


class Heartbeat(Watch):
    """The state of this process and its queries. Thread-safe."""

    def __init__(self, layers: Sequence[str], streams: Sequence[str], telemetry_port: int | None) -> None:
        self._layers = tuple(layers)
        self._streams = tuple(streams)
        self._telemetry_port = telemetry_port
        self._started_at = datetime.now(UTC)
        self._lock = threading.Lock()
        self._queries: dict[str, QueryRun] = {}

    def run(self) -> Run:
        """Return the current state."""
        with self._lock:
            queries = tuple(self._queries.values())
        return Run(
            socket.gethostname(),
            os.getpid(),
            self._layers,
            self._streams,
            self._started_at,
            datetime.now(UTC),
            self._telemetry_port,
            queries,
        )

    def on_batch(self, done: BatchDone) -> None:
        """Note a written micro-batch; clock-driven work does not count as one."""
        if done.batch is not None:
            rows = done.result.rows
            per_s = round(rows / done.duration_s, 1) if done.duration_s > 0 else None
            found = {"batch": done.batch, "at": datetime.now(UTC), "rows": rows, "rows_per_s": per_s}
            self._change(done.query, lambda _: found)

    def on_phases(self, name: str, durations_ms: Mapping[str, int]) -> None:
        """Note the durations of a micro-batch's phases."""
        phases_s = {phase: took_ms / 1000 for phase, took_ms in durations_ms.items()}
        self._change(name, lambda _: {"phases_s": phases_s})

    def on_failure(self, name: str, reason: str) -> None:
        """Note a query's failure."""
        self._change(name, lambda _: {"error": reason})

    def on_recovery(self, name: str) -> None:
        """Note that a failed query works again."""
        self._change(name, lambda _: {"error": None})

    def on_restart(self, name: str) -> None:
        """Count a restart of a query."""
        self._change(name, lambda known: {"restarts": known.restarts + 1})

    def _change(self, name: str, changes: Callable[[QueryRun], Mapping[str, Any]]) -> None:
        query = query_of(name)
        with self._lock:
            known = self._queries.get(query, QueryRun(query))
            self._queries[query] = replace(known, **changes(known))


@contextmanager
def beating(heartbeat: Heartbeat, home: Path, on_notice: Callable[[str], None]) -> Iterator[None]:
    """Keep this process's file up to date during the block, and remove it afterwards."""
    file = file_of(home, socket.gethostname(), os.getpid())

    def keep(ended: threading.Event) -> None:
        is_told = False
        while not ended.is_set():
            try:
                _write(file, as_json(heartbeat.run()))
                is_told = False
            except Exception as error:  # noqa: BLE001 - the thread must survive every failure
                if not is_told:
                    on_notice(f"other processes cannot see this one, as {file} cannot be written: {error}")
                is_told = True
            ended.wait(EVERY_S)

    try:
        with beside("heartbeat", keep, patience_s=EVERY_S):
            yield
    finally:
        with suppress(OSError):
            file.unlink(missing_ok=True)


def _write(file: Path, text: str) -> None:
    make_private(file.parent)
    write_whole(file, text)
