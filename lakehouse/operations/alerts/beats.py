"""Determine whether any process evaluates the alert rules.

The beat in the state topic contains the time of the last evaluation. If no process evaluates the rules, an
empty list of alerts does not mean that all is well.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lakehouse.common.errors import ServiceError
from lakehouse.operations.alerts.publishing import Beat, read_whole_state
from lakehouse.operations.telemetry import Observation
from lakehouse.settings.alerts import state_topic
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.topics import describe_topic
from lakehouse.storage.spark.query_errors import what_of

_EVERY_S = 20.0


def unwatched(beat: Beat | None, now: datetime) -> str | None:
    """Return a warning if `beat` is missing or too old, or None if it is recent."""
    if beat is not None and beat.is_fresh(now):
        return None
    last = "" if beat is None else f"; the last evaluation was at {beat.at:%F %T} UTC"
    return f"alerts are not evaluated: `lakehouse alert` is not running{last}"


@dataclass(frozen=True)
class Evaluated:
    """Whether a process evaluates the alert rules (None if unknown), and the reason unless it does.

    While the broker is unreachable, the reason is None, because the observation already contains it.
    """

    is_evaluated: bool | None
    reason: str | None = None


class Beats:
    """A reader of the beat for the alert topic `topic`. It reads at most every 20 s. Thread-safe."""

    def __init__(
        self, access: KafkaAccess, topic: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._access = access
        self._topic = topic
        self._clock = clock
        self._lock = threading.Lock()
        self._due = clock()
        self._found: Beat | ServiceError | None = None

    def at(self, seen: Observation) -> Evaluated:
        """Return whether a process was evaluating the rules at the time of an observation.

        The topic is not read if the observation says that the broker is unreachable.
        """
        if seen.broker_reason is not None:
            return Evaluated(None)
        with self._lock:
            if self._clock() >= self._due:
                self._found = self._read()
                self._due = self._clock() + _EVERY_S
            found = self._found
        if isinstance(found, ServiceError):
            return Evaluated(None, str(found))
        reason = unwatched(found, seen.at)
        return Evaluated(reason is None, reason)

    def _read(self) -> Beat | ServiceError | None:
        try:
            if describe_topic(self._access, state_topic(self._topic)) is None:
                return None
            return read_whole_state(self._access, self._topic)[1]
        except Exception as error:  # noqa: BLE001 - the client raises many kinds of errors
            return ServiceError(f"whether alerts are evaluated is unknown: {what_of(error)}")


class BeatCollector(Collector):
    """A Prometheus collector that reports whether the rules were being evaluated at the last observation."""

    def __init__(self, beats: Beats, look: Callable[[], Observation]) -> None:
        self._beats = beats
        self._look = look

    def describe(self) -> list[Metric]:
        """Return no metrics, so registration does not wait for an observation."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metric. If it is unknown whether the rules are evaluated, the metric has no sample."""
        family = GaugeMetricFamily(
            "lakehouse_alerts_evaluated", "Whether a process evaluates the alert rules."
        )
        found = self._beats.at(self._look()).is_evaluated
        if found is not None:
            family.add_metric([], float(found))
        yield family
