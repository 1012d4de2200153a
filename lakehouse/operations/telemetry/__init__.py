"""Monitor the pipeline's activity, backlog and health for terminals, Prometheus, the API and alerts.

Observer ─ observe ── Observation ─┬─ lakehouse status
(tables' logs, broker)             ├─ ObservationCollector ── /metrics of any process
                                   └─ the API, alerts
DriverMetrics ──────────────────────── /metrics of `lakehouse run --telemetry-port`
Heartbeat ── HOME/running ── Observer  which processes run a stream
"""

from lakehouse.operations.telemetry.exposition import ObservationCollector
from lakehouse.operations.telemetry.health import backlogs_of, summary_of, waiting_of, worst_first
from lakehouse.operations.telemetry.lag import Observer, observe
from lakehouse.operations.telemetry.values import (
    Audit,
    Backlog,
    EventTimes,
    LayerLag,
    Observation,
    PartitionLag,
    QueryRun,
    QueryState,
    Refused,
    Run,
    StreamGate,
    StreamState,
    TableState,
)
from lakehouse.operations.telemetry.words import Health, StoreState, Word

__all__ = [
    "Audit",
    "Backlog",
    "EventTimes",
    "Health",
    "LayerLag",
    "Observation",
    "ObservationCollector",
    "Observer",
    "PartitionLag",
    "QueryRun",
    "QueryState",
    "Refused",
    "Run",
    "StoreState",
    "StreamGate",
    "StreamState",
    "TableState",
    "Word",
    "backlogs_of",
    "observe",
    "summary_of",
    "waiting_of",
    "worst_first",
]
