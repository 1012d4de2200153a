"""Windowed statistics: metrics_1m and metrics_summary_10m."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypedDict

from tests.oracles.judging import MINUTE_US, Event

PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}

Windows = dict[tuple[str, str, int], "Statistics"]


@dataclass(frozen=True)
class Metric(Event):
    """A clean record of metrics_events."""

    service_id: str
    metric_name: str
    value: float
    environment: str | None = None


@dataclass(frozen=True)
class Grain:
    """A table of windows, with one row for each two names (from `names`) and window of `length_us`."""

    columns: tuple[str, str]
    names: Callable[[Metric], tuple[str, str]]
    length_us: int


METRICS_1M = Grain(
    ("service_id", "metric_name"), lambda record: (record.service_id, record.metric_name), MINUTE_US
)
METRICS_SUMMARY_10M = Grain(
    ("environment", "metric_name"),
    lambda record: ("default" if record.environment is None else record.environment, record.metric_name),
    10 * MINUTE_US,
)


class Statistics(TypedDict):
    """A window's row except for its key and is_final, and its values, sorted."""

    count: int
    sum: float
    min: float
    max: float
    avg: float
    variance: float | None
    stddev: float | None
    p50: float
    p90: float
    p95: float
    p99: float
    last_event_time_us: int
    values: list[float]


def windows(records: Iterable[Metric], grain: Grain) -> Windows:
    """Return the rows of a table of windows by their two names and the window start in microseconds."""
    groups: dict[tuple[str, str, int], list[Metric]] = defaultdict(list)
    for record in records:
        start_us = record.event_time_us // grain.length_us * grain.length_us
        groups[*grain.names(record), start_us].append(record)
    return {
        key: statistics([record.value for record in group], max(record.event_time_us for record in group))
        for key, group in groups.items()
    }


def metrics_1m(records: Iterable[Metric]) -> Windows:
    """Return the rows of gold.metrics_1m by (service_id, metric_name, window start in microseconds)."""
    return windows(records, METRICS_1M)


def metrics_summary_10m(records: Iterable[Metric]) -> Windows:
    """Return the rows of gold.metrics_summary_10m by (environment, metric_name, window start)."""
    return windows(records, METRICS_SUMMARY_10M)


def statistics(values: Iterable[float], last_event_time_us: int = 0) -> Statistics:
    """Describe some values, with moments from two passes, and percentiles by nearest rank."""
    ordered = sorted(values)
    count = len(ordered)
    total = _total(ordered)
    mean = total / count
    variance = _total((value - mean) ** 2 for value in ordered) / (count - 1) if count > 1 else None
    return Statistics(
        count=count,
        sum=total,
        min=ordered[0],
        max=ordered[-1],
        avg=mean,
        variance=variance,
        stddev=None if variance is None else math.sqrt(variance),
        p50=percentile(ordered, 0.50),
        p90=percentile(ordered, 0.90),
        p95=percentile(ordered, 0.95),
        p99=percentile(ordered, 0.99),
        last_event_time_us=last_event_time_us,
        values=ordered,
    )


def statistics_without_moments(values: Iterable[float]) -> dict[str, float]:
    """Describe values by the statistics that cannot overflow: count, minimum, maximum and percentiles."""
    ordered = sorted(values)
    percentiles = {name: percentile(ordered, p) for name, p in PERCENTILES.items()}
    return {"count": len(ordered), "min": ordered[0], "max": ordered[-1]} | percentiles


def percentile(ordered: Sequence[float], p: float) -> float:
    """Return the nearest rank: the smallest value that is at least as great as a share `p` of all values."""
    at_least = next(rank for rank in range(1, len(ordered) + 1) if rank / len(ordered) >= p)
    return ordered[at_least - 1]


def rank_error(ordered: Sequence[float], p: float, estimate: float) -> float:
    """Return how far, as a share of all values, the ranks of `estimate` are from the rank `p`.

    The result is zero if `estimate` is a valid percentile, because equal values share a range of ranks.
    """
    below, up_to = bisect_left(ordered, estimate), bisect_right(ordered, estimate)
    return max(0.0, below / len(ordered) - p, p - up_to / len(ordered))


def _total(values: Iterable[float]) -> float:
    """Return the sum, correctly rounded, or infinity if it does not fit into a double."""
    listed = list(values)
    try:
        return math.fsum(listed)
    except OverflowError:
        return sum(listed)
