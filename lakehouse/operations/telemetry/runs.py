"""The processes that run streams, by their heartbeat files in HOME/running.

    running/<host>-<pid>.json   rewritten by its process every two seconds, removed when it ends

A killed process leaves its file. The process counts as gone once the file is ten seconds old, or immediately
if it ran on this host and no longer exists; the next reader removes the file. Readers and runs must share
HOME. Times are ISO 8601 in UTC.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from lakehouse.common.state_files import drafts_of
from lakehouse.operations.telemetry.values import QueryRun, QueryState, Run

GONE = timedelta(seconds=10)
"""A process without a heartbeat for this time counts as gone."""


def directory_of(home: Path) -> Path:
    """Return the directory of the heartbeat files."""
    return home / "running"


def file_of(home: Path, host: str, pid: int) -> Path:
    """Return the heartbeat file of a process."""
    return directory_of(home) / f"{host}-{pid}.json"


def read_runs(home: Path, now: datetime) -> list[Run]:
    """Return the live processes, oldest first, and remove the files of dead ones."""
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
    """Return the processes that run a stream, each with the stream's queries only, which have these names."""
    return tuple(
        replace(run, queries=tuple(one for one in run.queries if one.name in names))
        for run in runs
        if stream in run.streams
    )


def unrun(
    queries: Sequence[QueryState], runs: Sequence[Run], stops: Mapping[str, datetime], now: datetime
) -> dict[str, datetime | None]:
    """Return the layers of a stream that no process runs, and since when (UTC); null: unknown.

    `stops` has the time when each layer was last stopped. A layer with a micro-batch in the last ten seconds
    counts as running, perhaps by a process with another HOME.
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
    """Return the content of a process's heartbeat file."""
    return json.dumps(
        {
            "host": run.host,
            "pid": run.pid,
            "layers": run.layers,
            "streams": run.streams,
            "startedAt": run.started_at.isoformat(),
            "beatAt": run.beat_at.isoformat(),
            "telemetryPort": run.telemetry_port,
            "queries": [
                {
                    "name": one.name,
                    "batch": one.batch,
                    "at": None if one.at is None else one.at.isoformat(),
                    "rows": one.rows,
                    "rowsPerS": one.rows_per_s,
                    "phasesS": dict(one.phases_s),
                    "error": one.error,
                    "restarts": one.restarts,
                }
                for one in run.queries
            ],
        }
    )


def from_json(text: str | bytes) -> Run:
    """Return the state in a heartbeat file; raises ValueError, KeyError or TypeError for other content."""
    found: dict[str, Any] = json.loads(text)
    return Run(
        str(found["host"]),
        int(found["pid"]),
        tuple(found["layers"]),
        tuple(found["streams"]),
        _moment(found["startedAt"]),
        _moment(found["beatAt"]),
        found["telemetryPort"],
        tuple(
            QueryRun(
                one["name"],
                one["batch"],
                None if one["at"] is None else _moment(one["at"]),
                one["rows"],
                one["rowsPerS"],
                one["phasesS"],
                one["error"],
                one["restarts"],
            )
            for one in found["queries"]
        ),
    )


def _read(file: Path) -> Run | None:
    try:
        return from_json(file.read_bytes())
    except Exception:  # noqa: BLE001 - just removed, or not a heartbeat file
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


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
