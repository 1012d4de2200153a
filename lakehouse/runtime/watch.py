"""What a run reports to its observers, besides its micro-batches.

Several threads call these methods, which must not raise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class Watch:
    """Ignores everything; observers override what they want to know.

    Names are those of queries, of their work by the clock, and of gates, as in messages. With `wants_phases`
    the run asks Spark after each micro-batch how long its phases took, which costs a call.
    """

    wants_phases = False

    def on_phases(self, name: str, durations_ms: Mapping[str, int]) -> None:
        """Note how long the phases of a query's micro-batch took, by Spark's names for them."""

    def on_failure(self, name: str, reason: str) -> None:
        """Note what has failed."""

    def on_recovery(self, name: str) -> None:
        """Note what works again."""

    def on_restart(self, name: str) -> None:
        """Note a query that restarts."""


class Watches(Watch):
    """Reports to several observers, in order."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self._watches = watches
        self.wants_phases = any(one.wants_phases for one in watches)

    def on_phases(self, name: str, durations_ms: Mapping[str, int]) -> None:
        """Report to each how long the phases took."""
        for one in self._watches:
            one.on_phases(name, durations_ms)

    def on_failure(self, name: str, reason: str) -> None:
        """Report to each what has failed."""
        for one in self._watches:
            one.on_failure(name, reason)

    def on_recovery(self, name: str) -> None:
        """Report to each what works again."""
        for one in self._watches:
            one.on_recovery(name)

    def on_restart(self, name: str) -> None:
        """Report to each that a query restarts."""
        for one in self._watches:
            one.on_restart(name)
