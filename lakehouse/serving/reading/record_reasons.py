"""Explain why a record is not in a layer, based on an observation of its stream. Does no I/O.

The observation must be older than the read that did not find the record. Otherwise the record could have been
processed in between.
"""

from __future__ import annotations

from lakehouse.operations.telemetry import LayerLag, PartitionLag, QueryState, StreamState


def not_landed(state: StreamState, topic: str, partition: int, offset: int) -> str | None:
    """Return the reason why bronze cannot contain the record yet, or None if bronze has read past it."""
    known = [one for one in state.partitions if one.topic == topic]
    lag = next((one for one in known if one.partition == partition), None)
    if lag is None or lag.position is None:
        return _unknown_partition(state, topic, partition, known)
    if offset < lag.position:
        return None
    why = f"not landed yet: bronze reads partition {partition} from offset {lag.position:,} on"
    if lag.end is None or offset < lag.end:
        return why
    return f"{why}, and the partition's last committed record is before offset {lag.end:,}"


def unread(state: StreamState, query: str, source: str) -> str | None:
    """Return the reason why a query might not have processed a row of `source` yet.

    Return None if the query has read every row.
    """
    lag = _lag(state, query, source)
    if lag is None:
        return f"it is unknown how far {query} has read {source}{_because(state)}"
    if lag.records is None:
        return f"it is unknown how far {query} has read {source}: {lag.reason}"
    if lag.records == 0:
        return None
    rows = "1 row" if lag.records == 1 else f"{lag.records:,} rows"
    return f"{rows} of {source} wait{'s' if lag.records == 1 else ''} for {query}"


def unsent(state: StreamState, query: QueryState | None, source: str, version: int | None) -> str | None:
    """Return the reason why rows of the gold table `source` might not have been sent, or None if all were.

    `query` is the state of the table's export, and `version` the table's version, or None if unknown.
    """
    if query is None or version is None:
        return f"it is unknown which version of {source} has been sent{_because(state)}"
    if query.done is None:
        return "nothing has been sent yet"
    parts = [] if query.done >= version else [unread(state, query.name, source)]
    if state.gate is not None and not state.gate.is_open:
        parts.append(f"the gate is closed: {'; '.join(state.gate.reasons)}")
    if lacking := behind(query):
        parts.append(f"{' and '.join(lacking)} may lack rows that were sent to other stores")
    return "; ".join(part for part in parts if part is not None) or None


def behind(query: QueryState) -> tuple[str, ...]:
    """Return the names of the stores that lack rows of an export."""
    return tuple(one.name for one in query.stores if one.lacks_rows)


def rows_waiting(state: StreamState, query: str, source: str) -> int | None:
    """Return how many rows of `source` wait for a query, or None if that is unknown."""
    lag = _lag(state, query, source)
    return None if lag is None else lag.records


def _unknown_partition(state: StreamState, topic: str, partition: int, known: list[PartitionLag]) -> str:
    reason = next((one.reason for one in known if one.reason is not None), None)
    if known and reason is None:
        there = ", ".join(str(one.partition) for one in known)
        return f"topic {topic} has no partition {partition}, only {there}"
    return f"bronze has no position in partition {partition}{_because(state, reason)}"


def _lag(state: StreamState, query: str, source: str) -> LayerLag | None:
    return next((one for one in state.layers if (one.query, one.source) == (query, source)), None)


def _because(state: StreamState, reason: str | None = None) -> str:
    why = state.lake_reason or reason
    return "" if why is None else f": {why}"
