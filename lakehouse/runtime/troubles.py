"""Failures of a run: who is told, when a retry is due, and what the run ends with.

A query can fail, or what it does by the wall clock, or a stream's gate; each has a name. In a live run it is
retried after a pause that doubles with each consecutive failure. A run that catches up retries three times
and then leaves it. Each failure, and its end, is an event too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lakehouse.errors import LakehouseError, StreamError
from lakehouse.events import Kind, kind_of, note, place_of
from lakehouse.runtime.watch import Watch
from lakehouse.spark.query_errors import what_of

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
RETRIES = 3  # in a run that catches up
_MOST_DOUBLINGS = 30


def pause_s(failures: int) -> float:
    """Return the seconds between the last of this many consecutive failures and the next attempt."""
    return min(FIRST_PAUSE_S * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), LONGEST_PAUSE_S)


@dataclass(frozen=True)
class _Trouble:
    """The stream that fails, its error, the consecutive failures, and when the next attempt is due."""

    stream: str
    error: LakehouseError
    failures: int
    due: float | None


class Troubles:
    """What currently fails in a run of these streams, in the order in which it began to.

    `notice` is told of each failure that the run survives, and of its end; `watch` of every one. `retries`
    limits consecutive retries, null for no limit. For use by one thread.
    """

    def __init__(
        self,
        streams: Iterable[str],
        notice: Callable[[str], None],
        *,
        retries: int | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._streams = frozenset(streams)
        self._notice = notice
        self._retries = retries
        self._watch = watch or Watch()
        self._found: dict[str, _Trouble] = {}

    def add(self, name: str, stream: str, cause: BaseException) -> None:
        """Note a failure, and report when it is retried.

        Raises the failure instead if every stream now has one: nothing is left to run.
        """
        failures = self._failures(name) + 1
        if self._retries is not None and failures > self._retries:
            due = None
            again = f"has failed {failures} times and is left to the next run"
        else:
            pause = pause_s(failures)
            due = time.monotonic() + pause
            again = f"failed; retrying in {pause:g} s"
        self._note(name, stream, cause, due)
        if self._streams <= {one.stream for one in self._found.values()}:
            self._tell(name, cause, f"{name} failed, and nothing is left to run: {what_of(cause)}")
            self.raise_any()
        told = f"{name} {again}: {what_of(cause)}"
        self._tell(name, cause, told)
        self._notice(told)

    def add_last(self, name: str, stream: str, cause: BaseException) -> None:
        """Note a failure that is not retried in this run."""
        self._note(name, stream, cause, None)
        self._tell(name, cause, f"{name} failed and is left to the next run: {what_of(cause)}")

    def is_over(self, name: str) -> None:
        """Note that what failed works again; does nothing if it had not failed."""
        over = self._found.pop(name, None)
        if over is not None:
            note(Kind.RECOVERY, f"{name} works again", stream=over.stream, **place_of(name))
            self._watch.on_recovery(name)
            self._notice(f"{name} works again")

    def __contains__(self, name: str) -> bool:
        """Tell whether it currently fails."""
        return name in self._found

    def will_be_tried(self, name: str) -> bool:
        """Tell whether it currently fails and will be retried at some time."""
        return name in self._found and self._found[name].due is not None

    def is_due(self, name: str) -> bool:
        """Tell whether it is time to try it: it works, or its pause is over."""
        if name not in self._found:
            return True
        due = self._found[name].due
        return due is not None and time.monotonic() >= due

    def raise_any(self) -> None:
        """Raise the first failure, which names the others, unless nothing fails."""
        if not self._found:
            return
        (_, first), *others = self._found.items()
        if not others:
            raise first.error
        names = ", ".join(name for name, _ in others)
        cause = first.error.__cause__ or first.error
        raise type(first.error)(f"{first.error}; failed too: {names}") from cause

    def _failures(self, name: str) -> int:
        return self._found[name].failures if name in self._found else 0

    def _tell(self, name: str, cause: BaseException, message: str) -> None:
        found = self._found[name]
        note(
            kind_of(cause),
            message,
            stream=found.stream,
            **place_of(name),
            details={"name": name, "error": type(cause).__name__, "failures": found.failures},
        )

    def _note(self, name: str, stream: str, cause: BaseException, due: float | None) -> None:
        self._found[name] = _Trouble(stream, _error(name, cause), self._failures(name) + 1, due)
        self._watch.on_failure(name, what_of(cause))


def _error(name: str, cause: BaseException) -> LakehouseError:
    if isinstance(cause, LakehouseError):
        return cause
    error = StreamError(f"{name} failed: {what_of(cause)}")
    error.__cause__ = cause
    return error
