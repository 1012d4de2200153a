"""What a run tells whoever watches it, beside its micro-batches.

It is told by several threads, and must not raise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class Watch:
    """Watches nothing; who watches overrides what it wants to know.

    Names are those of queries, of what they do by the clock and of gates, as messages have them.
    `wants_phases` has the run ask Spark after each micro-batch how long its phases took, which costs a call.
    """

    wants_phases = False

    def on_phases(self, name: str, durations_ms: Mapping[str, int]) -> None:
        """Take note of how long the phases of a query's micro-batch took, by Spark's names for them."""

    def on_failure(self, name: str, reason: str) -> None:
        """Take note of what has failed."""

    def on_recovery(self, name: str) -> None:
        """Take note of what works again."""

    def on_restart(self, name: str) -> None:
        """Take note of a query that starts again."""


class Watches(Watch):
    """Tells several, in their order."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self._watches = watches
        self.wants_phases = any(one.wants_phases for one in watches)

    def on_phases(self, name: str, durations_ms: Mapping[str, int]) -> None:
        """Tell each how long the phases took."""
        for one in self._watches:
            one.on_phases(name, durations_ms)

    def on_failure(self, name: str, reason: str) -> None:
        """Tell each what has failed."""
        for one in self._watches:
            one.on_failure(name, reason)

    def on_recovery(self, name: str) -> None:
        """Tell each what works again."""
        for one in self._watches:
            one.on_recovery(name)

    def on_restart(self, name: str) -> None:
        """Tell each of a query that starts again."""
        for one in self._watches:
            one.on_restart(name)
