"""Pipeline events, recorded from anywhere in the process and stored in ops.events.

`note` is cheap and never raises, so any code can call it. Within `noting`, an EventLog collects the events,
and its thread appends them about once a second. Micro-batches neither wait for this thread nor fail because
of it. Outside `noting`, events are discarded.

A SIGKILL loses the events of the last second. If too many unwritten events accumulate, the oldest are
dropped, counted and reported. No event is written twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypedDict, Unpack

from lakehouse.common.errors import LakehouseError, StreamError, first_line
from lakehouse.common.extras import code_version

CAPACITY = 1000
GATHER_S = 1.0
PAUSE_S = 30.0
PATIENCE_S = 20.0
# The layer of a query's table, keyed by the first part of the query's name.
_LAYERS = {"bronze": "bronze", "silver": "silver", "gold": "gold", "export": "gold"}
_MICROSECOND = timedelta(microseconds=1)


class Kind(StrEnum):
    """The kinds of events in ops.events."""

    START = "start"
    STOP = "stop"
    FAILURE = "failure"
    REFUSAL = "refusal"
    RECOVERY = "recovery"
    SCHEMA_CHANGE = "schema_change"
    DATA_LOSS = "data_loss"
    GATE = "gate"
    AUDIT = "audit"
    EXPECT = "expect"
    REFUSED = "refused"
    REPLAY = "replay"
    DISCARD = "discard"
    SKIP = "skip"
    RESOLVE = "resolve"
    REBUILD = "rebuild"
    MAINTENANCE = "maintenance"
    COPY = "copy"
    ALERT = "alert"
    EVENTS_LOST = "events_lost"


@dataclass(frozen=True)
class Event:
    """One event, with the columns of ops.events.

    `at` is in UTC and unique within a process. `stream`, `layer` and `table` (layer.name) are None if the
    event does not concern exactly one of them. `actor` is the command that ran as process `pid` on `host`.
    `details` is JSON or None, and `code_version` is the package's version.
    """

    id: str
    at: datetime
    kind: str
    stream: str | None
    layer: str | None
    table: str | None
    actor: str
    host: str
    pid: int
    code_version: str
    message: str
    details: str | None


Write = Callable[[Sequence[Event], bool], None]
"""A function that appends events. The flag is true after a failed call, which might have written some."""


class Place(TypedDict, total=False):
    """The layer and table derived from a query's name, as arguments for `note`."""

    layer: str | None
    table: str | None


class About(Place, total=False):
    """Optional arguments for `note`: the event's stream, layer and table, and its details, stored as JSON."""

    stream: str | None
    details: Mapping[str, Any] | None


def place_of(query: str) -> Place:
    """Return the layer and table derived from a query's name, such as gold.metrics_1m or export.metrics_1m.

    If the name does not begin with a layer, as for a gate, the result is empty.
    """
    layer, dot, rest = query.partition(".")
    table, *_ = rest.split(" ")
    if not dot or layer not in _LAYERS:
        return {}
    return {"layer": layer, "table": f"{_LAYERS[layer]}.{table}"}


def kind_of(failure: BaseException) -> Kind:
    """Return REFUSAL for a LakehouseError other than a StreamError, and FAILURE for anything else."""
    is_refusal = isinstance(failure, LakehouseError) and not isinstance(failure, StreamError)
    return Kind.REFUSAL if is_refusal else Kind.FAILURE


class EventLog:
    """Collects events from all threads. A background thread appends the events in batches.

    `warn` is called with a line when appending starts to fail, when it recovers, and when events are lost. A
    failed batch is retried every `pause_s` seconds, together with newer events. If more than `capacity`
    events are queued, the oldest are dropped.
    """

    def __init__(
        self,
        actor: str,
        write: Write,
        warn: Callable[[str], None],
        *,
        capacity: int = CAPACITY,
        gather_s: float = GATHER_S,
        pause_s: float = PAUSE_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._actor = actor
        self._write = write
        self._warn = warn
        self._capacity = capacity
        self._gather_s = gather_s
        self._pause_s = pause_s
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._waiting: deque[Event] = deque()
        self._last = datetime.min.replace(tzinfo=UTC)
        self._lost = 0
        self._fails = False
        self._closing = False
        self._thread: threading.Thread | None = None

    def note(self, kind: Kind, message: str, **about: Unpack[About]) -> None:
        """Queue an event, which the background thread appends."""
        details = about.get("details")
        text = None if details is None else _as_json(details)
        with self._changed:
            self._last = max(datetime.now(UTC), self._last + _MICROSECOND)
            self._waiting.append(
                Event(
                    id=str(uuid.uuid4()),
                    at=self._last,
                    kind=kind.value,
                    stream=about.get("stream"),
                    layer=about.get("layer"),
                    table=about.get("table"),
                    actor=self._actor,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    code_version=code_version(),
                    message=message,
                    details=text,
                )
            )
            self._forget_oldest()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="events", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Wait up to `patience_s` seconds until the queued events are appended, and warn if some are not."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(self._patience_s)
            with self._changed:
                hangs = self._thread.is_alive()
                left = len(self._waiting) + self._lost
            if hangs:
                self._warn(
                    f"ops.events has not responded for {self._patience_s:g} s: the last events may be missing"
                )
            elif left:
                self._warn(f"{left:,} events could not be written to ops.events")

    def _work(self) -> None:
        while batch := self._gathered():
            try:
                self._write(batch, self._fails)
            except BaseException as failure:  # noqa: BLE001 - reported and retried, including a Rust panic
                self._put_back(batch, failure)
                if self._closing:
                    return
            else:
                self._recover()

    def _gathered(self) -> list[Event]:
        """Wait for an event, then briefly for further events, and return all of them.

        The list is empty once the log is closing and no events are left.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            self._changed.wait_for(lambda: self._closing, self._pause_s if self._fails else self._gather_s)
            batch = list(self._waiting)
            self._waiting.clear()
            return batch

    def _put_back(self, batch: Sequence[Event], failure: BaseException) -> None:
        with self._changed:
            self._waiting.extendleft(reversed(batch))
            self._forget_oldest()
            is_first, self._fails = not self._fails, True
        if is_first:
            self._warn(f"ops.events cannot be written; everything else continues: {first_line(failure)}")

    def _recover(self) -> None:
        with self._changed:
            failed, self._fails = self._fails, False
            lost, self._lost = self._lost, 0
        if failed:
            self._warn("ops.events is being written again")
        if lost:
            text = (
                f"{lost:,} events were lost: more than {self._capacity:,} were queued, so the oldest were "
                "dropped"
            )
            self._warn(text)
            self.note(Kind.EVENTS_LOST, text, details={"events": lost})

    def _forget_oldest(self) -> None:
        while len(self._waiting) > self._capacity:
            self._waiting.popleft()
            self._lost += 1


_log: EventLog | None = None


@contextlib.contextmanager
def noting(log: EventLog) -> Iterator[None]:
    """During the block, send events to the log; then close it. Only one log can be active at a time."""
    global _log  # noqa: PLW0603 - one log per process, like the root logger
    before, _log = _log, log
    try:
        yield
    finally:
        _log = before
        log.close()


def note(kind: Kind, message: str, **about: Unpack[About]) -> None:
    """Record an event. Does nothing if no log is active."""
    if _log is not None:
        _log.note(kind, message, **about)


def _as_json(details: Mapping[str, Any]) -> str:
    try:
        return json.dumps(details, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return json.dumps({"unreadable": str(type(details))})
