"""The events that a run reports to its observers, except for written micro-batches.

The methods are called from several threads. Exceptions in observers are logged and never make a step fail.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec

_P = ParamSpec("_P")
log = logging.getLogger(__name__)


def unraised(tell: Callable[_P, None]) -> Callable[_P, None]:
    """Wrap an observer so that its exceptions are only logged, for example if its output is closed."""

    def told(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            tell(*args, **kwargs)
        except Exception:
            log.exception("an observer of the run failed")

    return told


class Watch:
    """An observer that ignores all reports; subclasses override the methods for the reports that they need.

    `name` is the name of a step, of its periodic work, or of a gate, as in messages.
    """

    def on_phases(self, name: str, durations_ms: Mapping[str, int]) -> None:
        """Report how long a step took to plan a micro-batch and to process it: `plan` and `process`."""

    def on_failure(self, name: str, reason: str) -> None:
        """Report that the part `name` has failed."""

    def on_recovery(self, name: str) -> None:
        """Report that the part `name` works again after a failure."""

    def on_restart(self, name: str) -> None:
        """Report that a step is being recreated after a failure."""

    def on_round(self, stream: str) -> None:
        """Report that a stream has finished a round, even if its steps could not be created."""


class Watches(Watch):
    """An observer that passes each report to several observers, in order."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self._watches = watches

    def on_phases(self, name: str, durations_ms: Mapping[str, int]) -> None:
        """Report the phases to each observer."""
        for one in self._watches:
            unraised(one.on_phases)(name, durations_ms)

    def on_failure(self, name: str, reason: str) -> None:
        """Report a failure to each observer."""
        for one in self._watches:
            unraised(one.on_failure)(name, reason)

    def on_recovery(self, name: str) -> None:
        """Report a recovery to each observer."""
        for one in self._watches:
            unraised(one.on_recovery)(name)

    def on_restart(self, name: str) -> None:
        """Report a restart to each observer."""
        for one in self._watches:
            unraised(one.on_restart)(name)

    def on_round(self, stream: str) -> None:
        """Report the round to each observer."""
        for one in self._watches:
            unraised(one.on_round)(stream)
