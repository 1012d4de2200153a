"""Handle failures in a run: report them, schedule retries, and build the error with which the run ends.

The parts of a run that can fail have names: steps, periodic work, and the gates of streams. A live run
retries a failed part after a pause that doubles with each consecutive failure. A catch-up retries it three
times, and then leaves it for the next run. Each failure and recovery is also recorded as an event. The event
for a first failure contains the traceback, which is truncated if it is long; the log contains all of it.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakehouse.common.errors import LakehouseError, StreamError
from lakehouse.common.events import Kind, kind_of, note, place_of
from lakehouse.engine.runtime.watch import Watch
from lakehouse.storage.spark.query_errors import what_of

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
RETRIES = 3  # in a catch-up
_MOST_DOUBLINGS = 30
_MOST_CHARACTERS = 20_000  # in a traceback in ops.events; the log contains the whole traceback
log = logging.getLogger(__name__)


def pause_s(failures: int) -> float:
    """Return the seconds to wait before the next attempt after this many consecutive failures."""
    return min(FIRST_PAUSE_S * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), LONGEST_PAUSE_S)


@dataclass(frozen=True)
class Failure:
    """The failure of a step, its periodic work or a gate: its name, stream, cause and micro-batch."""

    name: str
    stream: str
    cause: BaseException
    where: str = ""


@dataclass(frozen=True)
class _Trouble:
    """A current failure: stream, error, number of consecutive failures, and time of the next attempt."""

    stream: str
    error: LakehouseError
    failures: int
    due: float | None


class Troubles:
    """The current failures in a run with these steps, oldest first.

    `notice` is called for each recovery, and for failures passed to `add` and `tell`. `watch` is called for
    each recovery, and for failures passed to `add` and `add_last`. `retries` limits consecutive retries; None
    means no limit. `log_file` is the log file for tracebacks; if it is given, messages mention it.
    Thread-safe.
    """

    def __init__(
        self,
        steps: Iterable[str],
        notice: Callable[[str], None],
        *,
        retries: int | None = None,
        watch: Watch | None = None,
        log_file: Path | None = None,
    ) -> None:
        self._steps = frozenset(steps)
        self._notice = notice
        self._retries = retries
        self._watch = watch or Watch()
        self._log_file = log_file
        self._lock = threading.RLock()
        self._found: dict[str, _Trouble] = {}

    def add(self, failure: Failure) -> None:
        """Record a failure, and report when it will be retried.

        If every step is now failing, nothing is left to run, so the failure is raised instead.
        """
        name, cause = failure.name, failure.cause
        with self._lock:
            failures = self._failures(name) + 1
            if self._retries is not None and failures > self._retries:
                due = None
                again = f"has failed {failures} times and is left for the next run"
            else:
                pause = pause_s(failures)
                due = time.monotonic() + pause
                again = f"failed; retrying in {pause:g} s"
            self._note(failure, due)
            if self._steps and self._steps <= self._found.keys():
                self._tell(failure, f"{name} failed, and nothing is left to run: {what_of(cause)}")
                self.raise_any()
            told = f"{name} {again}: {what_of(cause)}"
            self._tell(failure, told)
            is_new = self._log_file is not None and failures == 1
        self._notice(f"{told} (traceback in {self._log_file})" if is_new else told)

    def add_last(self, failure: Failure) -> None:
        """Record a failure that is not retried in this run."""
        with self._lock:
            self._note(failure, None)
            self._tell(
                failure, f"{failure.name} failed and is left for the next run: {what_of(failure.cause)}"
            )

    def tell(self, failure: Failure, message: str) -> None:
        """Report a failure that the run works around immediately. The step does not count as failed."""
        with self._lock:
            self._tell(failure, message, is_new=True)
        self._notice(message)

    def end(self, name: str) -> None:
        """Record the recovery of a failed part; do nothing if the part had not failed."""
        with self._lock:
            over = self._found.pop(name, None)
        if over is not None:
            note(Kind.RECOVERY, f"{name} works again", stream=over.stream, **place_of(name))
            self._watch.on_recovery(name)
            self._notice(f"{name} works again")

    def __contains__(self, name: str) -> bool:
        """Return whether this part is currently failing."""
        return name in self._found

    def will_be_tried(self, name: str) -> bool:
        """Return whether this part is currently failing and will be retried."""
        found = self._found.get(name)
        return found is not None and found.due is not None

    def is_due(self, name: str) -> bool:
        """Return whether this part can run now, because it is not failing or its pause is over."""
        found = self._found.get(name)
        return found is None or (found.due is not None and time.monotonic() >= found.due)

    def raise_any(self) -> None:
        """Raise the oldest current failure, if there is one. The message also names other failed parts."""
        with self._lock:
            found = list(self._found.items())
        if not found:
            return
        (_, first), *others = found
        if not others:
            raise first.error
        names = ", ".join(name for name, _ in others)
        cause = first.error.__cause__ or first.error
        raise type(first.error)(f"{first.error}; also failed: {names}") from cause

    def _failures(self, name: str) -> int:
        found = self._found.get(name)
        return 0 if found is None else found.failures

    def _tell(self, failure: Failure, message: str, *, is_new: bool = False) -> None:
        name, cause = failure.name, failure.cause
        count = self._failures(name)
        details: dict[str, Any] = {"name": name, "error": type(cause).__name__, "failures": count}
        if is_new or count == 1:  # only for a first failure, because later tracebacks would be the same
            trace = trace_of(failure)
            details |= {"where": failure.where, "traceback": trace[:_MOST_CHARACTERS]}
            log.error("%s", trace)
        note(kind_of(cause), message, stream=failure.stream, **place_of(name), details=details)

    def _note(self, failure: Failure, due: float | None) -> None:
        name, cause = failure.name, failure.cause
        self._found[name] = _Trouble(failure.stream, _error(name, cause), self._failures(name) + 1, due)
        self._watch.on_failure(name, what_of(cause))


def trace_of(failure: Failure) -> str:
    """Return the full traceback of a failure, including Java's, below a line that names the failed part."""
    where = f" in {failure.where}" if failure.where else ""
    text = "".join(traceback.format_exception(failure.cause))
    return f"{failure.name} of {failure.stream} failed{where}\n{text.rstrip()}"


def _error(name: str, cause: BaseException) -> LakehouseError:
    if isinstance(cause, LakehouseError):
        return cause
    error = StreamError(f"{name} failed: {what_of(cause)}")
    error.__cause__ = cause
    return error
