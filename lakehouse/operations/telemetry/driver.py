"""The metrics of a run, collected inside its process: micro-batches, rows by outcome, and failures.

The metrics are updated once per micro-batch, from values that the run has already computed.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram

from lakehouse.engine.runtime.watch import Watch
from lakehouse.operations.telemetry.queries import query_of, streams_by_query
from lakehouse.operations.telemetry.server import Readiness
from lakehouse.streams.definition import Stream

if TYPE_CHECKING:
    from lakehouse.engine.runtime.runner import BatchDone

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_QUERY = ("stream", "layer", "table")


class DriverMetrics(Watch):
    """A registry with a run's metrics, and the run's current failures. Thread-safe."""

    def __init__(self, streams: Sequence[Stream], stores: Mapping[str, str]) -> None:
        self.registry = CollectorRegistry()
        self._stream_of = streams_by_query(streams)
        self._lock = threading.Lock()
        self._failing: dict[str, str] = {}
        self._read = self._counter("records", "Rows read by micro-batches.", _QUERY)
        self._written = self._counter(
            "records_written",
            "Rows written by micro-batches, by outcome.",
            (*_QUERY, "outcome"),
        )
        self._refused = self._counter("records_refused", "Rows refused by silver.", _QUERY)
        self._failures = self._counter(
            "query_failures", "Failures of queries, of their clock-driven work, and of gates.", _QUERY
        )
        self._restarts = self._counter("query_restarts", "Query restarts after a failure.", _QUERY)
        self._duration = self._histogram(
            "batch_duration_seconds", "Micro-batch duration, by phase.", (*_QUERY, "phase")
        )
        self._stores = {
            store: self._histogram(
                f"{store}_write_seconds",
                f"Time that micro-batches spend writing to {label}.",
                _QUERY,
            )
            for store, label in stores.items()
        }

    def on_batch(self, done: BatchDone) -> None:
        """Count a written micro-batch."""
        labels = self._labels(done.query)
        self._read.labels(*labels).inc(done.result.rows)
        if done.result.refused:
            self._refused.labels(*labels).inc(done.result.refused)
        for outcome, rows in done.result.written.items():
            self._written.labels(*labels, outcome).inc(rows)
        if done.batch is None:  # clock-driven work has no phases
            self._duration.labels(*labels, "process").observe(done.duration_s)
        for store, took_s in done.result.seconds.items():
            self._stores[store].labels(*labels).observe(took_s)

    def on_phases(self, name: str, durations_ms: Mapping[str, int]) -> None:
        """Record the durations of a micro-batch's phases."""
        labels = self._labels(name)
        for phase, took_ms in durations_ms.items():
            self._duration.labels(*labels, phase).observe(took_ms / 1000)

    def on_failure(self, name: str, reason: str) -> None:
        """Count a failure. The process is not ready until the query or gate recovers."""
        with self._lock:
            self._failing[name] = reason
        self._failures.labels(*self._labels(name)).inc()

    def on_restart(self, name: str) -> None:
        """Count a restart of a query."""
        self._restarts.labels(*self._labels(name)).inc()

    def on_recovery(self, name: str) -> None:
        """Record that a failed query or gate has recovered."""
        with self._lock:
            self._failing.pop(name, None)

    def readiness(self) -> Readiness:
        """Return whether everything works, and any current failures."""
        with self._lock:
            reasons = tuple(f"{name}: {why}" for name, why in self._failing.items())
        return Readiness(not reasons, reasons)

    def _counter(self, name: str, help_: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"lakehouse_{name}", help_, labels, registry=self.registry)

    def _histogram(self, name: str, help_: str, labels: tuple[str, ...]) -> Histogram:
        return Histogram(f"lakehouse_{name}", help_, labels, buckets=_SECONDS, registry=self.registry)

    def _labels(self, name: str) -> tuple[str, str, str]:
        """Return the stream, layer and table of a query or gate, given its name. Unknown parts are empty."""
        query = query_of(name)
        if name.startswith("gate of "):
            return name.removeprefix("gate of "), "gate", ""
        layer, _, table = query.partition(".")
        return self._stream_of.get(query, ""), layer, table
