"""Expose an Observation as OpenMetrics, in any process with access to the lake and the broker.

    registry.register(ObservationCollector(observer.latest))

Values are in base units. Labels are names of streams, layers, tables, topics and partitions, never user names
or keys. An unknown value has no sample, so it is not mistaken for 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lakehouse.common.errors import StoreWord
from lakehouse.operations.telemetry.values import Observation, StreamState
from lakehouse.operations.telemetry.words import StoreState, Word

_Samples = list[tuple[list[str], float]]


class ObservationCollector(Collector):
    """A Prometheus collector for the metrics in the observation that `look` returns."""

    def __init__(self, look: Callable[[], Observation]) -> None:
        self._look = look

    def describe(self) -> list[Metric]:
        """Return no metrics, so registration does not wait for an observation."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Call `look`, and yield all metrics."""
        seen = self._look()
        yield _gauge("up", "Whether the lake and the broker could be read.", ["what"], _reached(seen))
        for name, help_, labels, samples_of in _METRICS:
            samples = [sample for state in seen.streams for sample in samples_of(state)]
            yield _gauge(name, help_, labels, samples)
        ages = [
            ([state.name], (seen.at - state.audit.at).total_seconds())
            for state in seen.streams
            if state.audit is not None
        ]
        yield _gauge("audit_age_seconds", "Time since a stream's last audit.", ["stream"], ages)


def _gauge(name: str, help_: str, labels: list[str], samples: _Samples) -> Metric:
    family = GaugeMetricFamily(f"lakehouse_{name}", help_, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family


def _reached(seen: Observation) -> _Samples:
    is_read = all(reason is None for reason in (seen.lake_reason, *(one.lake_reason for one in seen.streams)))
    return [(["lake"], float(is_read)), (["broker"], float(seen.broker_reason is None))]


def _lag_records(state: StreamState) -> _Samples:
    lags = state.partitions
    return [
        ([state.name, lag.topic, str(lag.partition)], float(lag.records))
        for lag in lags
        if lag.records is not None
    ]


def _lag_seconds(state: StreamState) -> _Samples:
    lags = state.partitions
    return [
        ([state.name, lag.topic, str(lag.partition)], lag.seconds) for lag in lags if lag.seconds is not None
    ]


def _layer_lag_records(state: StreamState) -> _Samples:
    lags = state.layers
    return [
        ([state.name, lag.layer, _table(lag.query), lag.source], float(lag.records))
        for lag in lags
        if lag.records is not None
    ]


def _layer_lag_seconds(state: StreamState) -> _Samples:
    lags = state.layers
    return [
        ([state.name, lag.layer, _table(lag.query), lag.source], lag.seconds)
        for lag in lags
        if lag.seconds is not None
    ]


def _table(query: str) -> str:
    return query.partition(".")[2]


def _versions(state: StreamState) -> _Samples:
    return [([state.name, one.name], float(one.version)) for one in state.tables]


def _files(state: StreamState) -> _Samples:
    return [([state.name, one.name], float(one.files)) for one in state.tables]


def _bytes(state: StreamState) -> _Samples:
    return [([state.name, one.name], float(one.size_bytes)) for one in state.tables]


def _rows(state: StreamState) -> _Samples:
    return [([state.name, one.name], float(one.rows)) for one in state.tables if one.rows is not None]


def _committed(state: StreamState) -> _Samples:
    return [([state.name, one.name], _seconds(one.committed_at)) for one in state.tables if one.committed_at]


def _done(state: StreamState) -> _Samples:
    return [
        ([state.name, one.layer, _table(one.name)], float(one.done))
        for one in state.queries
        if one.done is not None
    ]


def _done_times(state: StreamState) -> _Samples:
    return [
        ([state.name, one.layer, _table(one.name)], _seconds(one.done_at))
        for one in state.queries
        if one.done_at
    ]


def _newest(state: StreamState) -> _Samples:
    return [([state.name, one.table], _seconds(one.newest)) for one in state.event_times]


def _watermarks(state: StreamState) -> _Samples:
    return [([state.name, one.table], _seconds(one.watermark)) for one in state.event_times]


def _freshness(state: StreamState) -> _Samples:
    return [] if state.freshness_s is None else [([state.name], state.freshness_s)]


def _letters(state: StreamState) -> _Samples:
    return [] if state.open_letters is None else [([state.name], float(state.open_letters))]


def _refused(state: StreamState) -> _Samples:
    return [([state.name, one.table], one.refused / one.judged) for one in state.refused if one.judged]


def _refused_over(state: StreamState) -> _Samples:
    return [([state.name, one.table], float(one.is_over)) for one in state.refused]


def _gates(state: StreamState) -> _Samples:
    return [] if state.gate is None else [([state.name], float(state.gate.is_open))]


def _audits(state: StreamState) -> _Samples:
    return [] if state.audit is None else [([state.name], float(state.audit.is_clean))]


def _layers_run(state: StreamState) -> _Samples:
    layers = dict.fromkeys(query.layer for query in state.queries)
    return [([state.name, layer], float(sum(layer in run.layers for run in state.runs))) for layer in layers]


def _health(state: StreamState) -> _Samples:
    return [([state.name, word.value], float(word is state.health.word)) for word in Word]


def _health_since(state: StreamState) -> _Samples:
    return [] if state.health.since is None else [([state.name], _seconds(state.health.since))]


def _stores(state: StreamState) -> Iterator[tuple[list[str], StoreState]]:
    """Yield the state of each store of each export, with its labels."""
    for query in state.queries:
        for store in query.stores:
            yield [state.name, _table(query.name), store.name], store


def _store_words(state: StreamState) -> _Samples:
    return [([*of, word.value], float(word is one.word)) for of, one in _stores(state) for word in StoreWord]


def _store_since(state: StreamState) -> _Samples:
    return [(of, _seconds(one.since)) for of, one in _stores(state) if one.since is not None]


def _seconds(moment: datetime) -> float:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()


_PARTITION = ["stream", "topic", "partition"]
_LAYER = ["stream", "layer", "table", "source"]
_TABLE = ["stream", "table"]
_QUERY = ["stream", "layer", "table"]
_STORE = ["stream", "table", "store"]

_METRICS: tuple[tuple[str, str, list[str], Callable[[StreamState], _Samples]], ...] = (
    ("lag_records", "Records in a topic partition that bronze has not landed.", _PARTITION, _lag_records),
    (
        "lag_seconds",
        "Age of the first unread record by its Kafka timestamp, or 0 if there is none.",
        _PARTITION,
        _lag_seconds,
    ),
    (
        "layer_lag_records",
        "Rows in a table that a later layer has not processed.",
        _LAYER,
        _layer_lag_records,
    ),
    (
        "layer_lag_seconds",
        "Age of the first commit with unread rows, or 0 if there is none.",
        _LAYER,
        _layer_lag_seconds,
    ),
    ("freshness_seconds", "Time since silver's newest event time.", ["stream"], _freshness),
    ("event_time_seconds", "Latest event time in a silver table, since the epoch.", _TABLE, _newest),
    ("watermark_seconds", "Event time before which a record is late, since the epoch.", _TABLE, _watermarks),
    ("table_version", "Newest version of a table.", _TABLE, _versions),
    ("table_files", "Data files in a table.", _TABLE, _files),
    ("table_size_bytes", "Size of a table's data files.", _TABLE, _bytes),
    ("table_rows", "Rows in a table.", _TABLE, _rows),
    ("table_committed_seconds", "Time of a table's newest commit, since the epoch.", _TABLE, _committed),
    ("query_version", "Version of a query's target table, or the last version exported.", _QUERY, _done),
    ("query_done_seconds", "Time of a query's last micro-batch, since the epoch.", _QUERY, _done_times),
    ("dead_letters_open", "Open dead letters.", ["stream"], _letters),
    ("refused_ratio", "Share of validated records that silver refused, as last reported.", _TABLE, _refused),
    (
        "refused_over_limit",
        "Whether the refused share exceeds the setting run.refused_limit.",
        _TABLE,
        _refused_over,
    ),
    ("gate_open", "Whether a stream's gate is open, for streams that have one.", ["stream"], _gates),
    (
        "audit_clean",
        "Whether a stream's last audit was complete and clean.",
        ["stream"],
        _audits,
    ),
    ("layer_processes", "Processes that run a layer of a stream.", ["stream", "layer"], _layers_run),
    ("health", "1 for the word that describes a stream's health, otherwise 0.", ["stream", "word"], _health),
    (
        "health_since_seconds",
        "Time when a stream's health began, since the epoch.",
        ["stream"],
        _health_since,
    ),
    (
        "store_state",
        "1 for the word that describes the state of a store of a gold table's export, otherwise 0.",
        [*_STORE, "word"],
        _store_words,
    ),
    ("store_since_seconds", "Time when a store's state began, since the epoch.", _STORE, _store_since),
)
