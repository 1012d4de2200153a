"""What a run reports to its observers, besides its micro-batches.

Several threads call these methods. What they raise goes to the log: no step fails because of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec

_P = ParamSpec("_P")
log = logging.getLogger(__name__)


def unraised(tell: Callable[_P, None]) -> Callable[_P, None]:
    """Return an observer that logs its own exceptions, such as a closed output."""

    def told(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            tell(*args, **kwargs)
        except Exception:
            log.exception("an observer of the run has failed")

    return told


class Watch:
    """Ignores everything; observers override what they want to know.

    Names are those of steps, of their work by the clock, and of gates, as in messages.
    """

    def on_phases(self, name: str, durations_ms: Mapping[str, int]) -> None:
        """Note how long a step took to plan a micro-batch and to process it: `plan` and `process`."""

    def on_failure(self, name: str, reason: str) -> None:
        """Note what has failed."""

    def on_recovery(self, name: str) -> None:
        """Note what works again."""

    def on_restart(self, name: str) -> None:
        """Note a step that is made again after a failure."""


class Watches(Watch):
    """Reports to several observers, in order."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self._watches = watches

    def on_phases(self, name: str, durations_ms: Mapping[str, int]) -> None:
        """Report to each how long the phases took."""
        for one in self._watches:
            unraised(one.on_phases)(name, durations_ms)

    def on_failure(self, name: str, reason: str) -> None:
        """Report to each what has failed."""
        for one in self._watches:
            unraised(one.on_failure)(name, reason)

    def on_recovery(self, name: str) -> None:
        """Report to each what works again."""
        for one in self._watches:
            unraised(one.on_recovery)(name)

    def on_restart(self, name: str) -> None:
        """Report to each that a query restarts."""
        for one in self._watches:
            unraised(one.on_restart)(name)
