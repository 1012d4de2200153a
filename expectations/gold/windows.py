"""Expectations for tables with one row per tumbling window of event time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from great_expectations.expectations import Expectation

from lakehouse.streams.suites import no_rows, required, rows
from lakehouse.streams.window_lengths import WindowLength

STATISTICS = ("count", "sum", "min", "max", "avg", "p50", "p90", "p95", "p99", "last_event_time", "is_final")
_SIZE = "greatest(abs(min), abs(max))"
_SLACK = f"1e-9D * {_SIZE}"  # the average of equal numbers may be wrong in its last digit


def aligned(key: Sequence[str], length: WindowLength) -> list[Expectation]:
    """Expect windows of this length: their starts, and the end of each window after its start."""
    start, end = length.start("window_start"), length.end("window_start")
    return [
        rows(key, f"windows start at multiples of {length}", f"window_start = {start}"),
        rows(key, f"windows are {length} long", f"window_end = {end}"),
    ]


def statistics(key: Sequence[str]) -> list[Expectation]:
    """Expect the statistics of each window to be consistent with each other."""
    one_or_none = "({0} IS NULL) = (count = 1) AND coalesce({0} >= 0, true)"
    return [
        required(key, (*key, "window_end", *STATISTICS)),
        rows(key, "every window has a value", "count >= 1"),
        rows(
            key,
            "averages lie between minimum and maximum",
            f"avg >= min - {_SLACK} AND avg <= max + {_SLACK}",
        ),
        rows(
            key,
            "percentiles rise from minimum to maximum",
            "min <= p50 AND p50 <= p90 AND p90 <= p95 AND p95 <= p99 AND p99 <= max",
        ),
        rows(
            key,
            "deviations are null for one value and never negative",
            f"{one_or_none.format('variance')} AND {one_or_none.format('stddev')}",
        ),
        rows(
            key,
            "last events lie in their windows",
            "last_event_time >= window_start AND last_event_time < window_end",
        ),
    ]


def has_events(
    silver: str,
    by: Mapping[str, str],
    length: WindowLength,
    *,
    first: str = "window_start",
    last: str = "window_end",
) -> Expectation:
    """Expect silver to contain at least one event for each window and group.

    `by` maps each column of the group to a Spark SQL expression on silver. `first` and `last` are columns of
    the gold row that bound the time of at least one such event.
    """
    columns = ", ".join(f"{expression} AS {name}" for name, expression in by.items())
    events = f"SELECT DISTINCT {columns}, {length.start('event_time')} AS start FROM {silver}"
    same = " AND ".join(f"gold.{name} = events.{name}" for name in by)
    names = ", ".join(f"gold.{name}" for name in by)
    query = (
        f"SELECT {names}, gold.window_start FROM {{batch}} AS gold LEFT ANTI JOIN ({events}) AS events "
        f"ON {same} AND {length.start('gold.window_start')} = events.start"
    )
    near = {silver: ("event_time", first, last)}
    return no_rows("every window has an event in silver", query, step=query, near=near)
