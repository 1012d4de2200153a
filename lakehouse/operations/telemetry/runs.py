"""Write and read heartbeat files in HOME/running, which show the processes that run streams.

    running/<host>-<pid>.json   rewritten by its process every two seconds, removed when the process ends

A killed process leaves its file behind. The process counts as gone once the file is ten seconds old, or
immediately if it ran on this host and no longer exists. The next reader removes the file. Readers and runs
must share HOME. Times are in UTC, in ISO 8601 format.

A background thread writes the file. Layers do not wait for this thread, and its failures do not affect them.
A failed write is reported once and retried.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from pydantic import TypeAdapter

from lakehouse.common.background import beside
from lakehouse.common.state_files import drafts_of, make_private, write_whole
from lakehouse.engine.runtime.watch import Watch
from lakehouse.operations.telemetry.queries import query_of
from lakehouse.operations.telemetry.values import QueryRun, QueryState, Run

if TYPE_CHECKING:
    from lakehouse.engine.runtime.runner import BatchDone

GONE = timedelta(seconds=10)
"""A process counts as gone after this time without a heartbeat."""
EVERY_S = 2.0
_RUN = TypeAdapter(Run)


def directory_of(home: Path) -> Path:
    """Return the directory that contains the heartbeat files."""
    return home / "running"


def file_of(home: Path, host: str, pid: int) -> Path:
    """Return the path of a process's heartbeat file."""
    return directory_of(home) / f"{host}-{pid}.json"


def read_runs(home: Path, now: datetime) -> list[Run]:
    """Return the live processes, oldest first, and remove dead processes' files."""
    found = []
    for file in directory_of(home).glob("*.json"):
        run = _read(file)
        if run is None:
            continue
        if _lives(run, now):
            found.append(run)
        else:
            _clear(file)
    return sorted(found, key=lambda run: (run.started_at, run.host, run.pid))


def of_stream(runs: Sequence[Run], stream: str, names: Sequence[str]) -> tuple[Run, ...]:
    """Return the processes that run a stream, limited to the queries with the given names."""
    return tuple(
        replace(run, queries=tuple(one for one in run.queries if one.name in names))
        for run in runs
        if stream in run.streams
    )


def unrun(
    queries: Sequence[QueryState], runs: Sequence[Run], stops: Mapping[str, datetime], now: datetime
) -> dict[str, datetime | None]:
    """Return the layers that no process runs, with the time when each one last ran (UTC; None if unknown).

    `stops` contains the time of each layer's last stop. A layer with a micro-batch in the last ten seconds
    counts as running, possibly in a process with another HOME.
    """
    found: dict[str, datetime | None] = {}
    for layer in dict.fromkeys(query.layer for query in queries):
        if any(layer in run.layers for run in runs):
            continue
        last = max((one.done_at for one in queries if one.layer == layer and one.done_at), default=None)
        stopped = stops.get(layer)
        if last is not None and now - last <= GONE and (stopped is None or stopped < last):
            continue
        found[layer] = max((at for at in (last, stopped) if at is not None), default=None)
    return found


def as_json(run: Run) -> str:
    """Return the JSON content for a process's heartbeat file, with names in camelCase."""
    return json.dumps(_RUN.dump_python(run, by_alias=True), default=datetime.isoformat)


def _read(file: Path) -> Run | None:
    try:
        return _RUN.validate_json(file.read_bytes())
    except Exception:  # noqa: BLE001 - the file was just removed, or is not a heartbeat file
        return None


def _lives(run: Run, now: datetime) -> bool:
    return now - run.beat_at <= GONE and (run.host != socket.gethostname() or _is_alive(run.pid))


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # the process belongs to another user
        return True


def _clear(file: Path) -> None:
    for path in (file, *drafts_of(file)):
        with suppress(OSError):
            path.unlink(missing_ok=True)


class Heartbeat(Watch):
    """The state of this process and its queries, for its heartbeat file. Thread-safe."""

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
        """Record a written micro-batch. Clock-driven work does not count as a micro-batch."""
        if done.batch is not None:
            rows = done.result.rows
            per_s = round(rows / done.duration_s, 1) if done.duration_s > 0 else None
            found = {"batch": done.batch, "at": datetime.now(UTC), "rows": rows, "rows_per_s": per_s}
            self._change(done.query, lambda _: found)

    def on_phases(self, name: str, durations_ms: Mapping[str, int]) -> None:
        """Record the durations of a micro-batch's phases."""
        phases_s = {phase: took_ms / 1000 for phase, took_ms in durations_ms.items()}
        self._change(name, lambda _: {"phases_s": phases_s})

    def on_failure(self, name: str, reason: str) -> None:
        """Record a query's failure, and the time of the first one since it last worked."""
        now = datetime.now(UTC)
        self._change(name, lambda known: {"error": reason, "failed_at": known.failed_at or now})

    def on_recovery(self, name: str) -> None:
        """Record that a failed query has recovered."""
        self._change(name, lambda _: {"error": None, "failed_at": None})

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
    """Keep this process's heartbeat file up to date during the block, and remove it afterwards."""
    file = file_of(home, socket.gethostname(), os.getpid())

    def keep(ended: threading.Event) -> None:
        is_told = False
        while not ended.is_set():
            try:
                make_private(file.parent)
                write_whole(file, as_json(heartbeat.run()))
                is_told = False
            except Exception as error:  # noqa: BLE001 - the thread must survive every failure
                if not is_told:
                    on_notice(
                        f"other processes cannot see this one, because {file} cannot be written: {error}"
                    )
                is_told = True
            ended.wait(EVERY_S)

    try:
        with beside("heartbeat", keep, patience_s=EVERY_S):
            yield
    finally:
        with suppress(OSError):
            file.unlink(missing_ok=True)
