"""What fails in a run: who is told, when it is tried again, and what the run ends with.

What fails is a query, what it does by the wall clock, or the gate of a stream; each has a name. While a run
goes on it is tried again after a pause that doubles with each failure in a row; a run that catches up tries
three times more and then leaves it. Each failure, and its end, is an event too.
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
RETRIES = 3  # of what fails while a run catches up
_MOST_DOUBLINGS = 30


def pause_s(failures: int) -> float:
    """Return the seconds between the last of so many failures in a row and the next try."""
    return min(FIRST_PAUSE_S * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), LONGEST_PAUSE_S)


@dataclass(frozen=True)
class _Trouble:
    """Of which stream something fails, with what, how often in a row, and when it is due again."""

    stream: str
    error: LakehouseError
    failures: int
    due: float | None


class Troubles:
    """What fails in a run of these streams at present, in the order in which it began to.

    `notice` is told of each failure that the run goes on after, and when it is over, `watch` of every one.
    `retries` bounds how often in a row something is tried again, null for no bound. To be used by one thread.
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
        """Note a failure, and say when what failed is tried again.

        Raises the failure instead where every stream has one by now: nothing is left to keep up.
        """
        failures = self._failures(name) + 1
        if self._retries is not None and failures > self._retries:
            due = None
            again = f"has failed {failures} times and is left to the next run"
        else:
            pause = pause_s(failures)
            due = time.monotonic() + pause
            again = f"failed and is tried again in {pause:g} s"
        self._note(name, stream, cause, due)
        if self._streams <= {one.stream for one in self._found.values()}:
            self._tell(name, cause, f"{name} failed, and nothing is left to keep up: {what_of(cause)}")
            self.raise_any()
        told = f"{name} {again}: {what_of(cause)}"
        self._tell(name, cause, told)
        self._notice(told)

    def add_last(self, name: str, stream: str, cause: BaseException) -> None:
        """Note a failure of what is not tried again in this run."""
        self._note(name, stream, cause, None)
        self._tell(name, cause, f"{name} failed and is left to the next run: {what_of(cause)}")

    def is_over(self, name: str) -> None:
        """Note that what has failed works again; nothing where it had not failed."""
        over = self._found.pop(name, None)
        if over is not None:
            note(Kind.RECOVERY, f"{name} works again", stream=over.stream, **place_of(name))
            self._watch.on_recovery(name)
            self._notice(f"{name} works again")

    def __contains__(self, name: str) -> bool:
        """Tell whether it fails at present."""
        return name in self._found

    def will_be_tried(self, name: str) -> bool:
        """Tell whether it fails at present and is tried again some time."""
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
