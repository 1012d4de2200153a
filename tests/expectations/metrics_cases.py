"""Windows of metrics that meet their suites, and changes that each break one expectation."""

from __future__ import annotations

from tests.expectations.lakes import LIMITS, Case, Row, TinyLake, at, later, text
from tests.support.streams import METRICS_1M, METRICS_SUMMARY_10M

_ONE_VALUE: Row = {
    "count": "1",
    "sum": "0.1D",
    **dict.fromkeys(("min", "max", "p50", "p90", "p95", "p99"), "0.1D"),
    "avg": "0.10000000000000002D",  # off in its last digit
    "m2": "0D",
    "is_final": "false",
}
_FOUR_VALUES: Row = {
    "count": "4",
    "sum": "10D",
    "min": "1D",
    "max": "4D",
    "avg": "2.5D",
    "variance": "1.6666666666666667D",
    "stddev": "1.2909944487358056D",
    "p50": "2D",
    "p90": "4D",
    "p95": "4D",
    "p99": "4D",
    "m2": "5D",
    "is_final": "true",
}


def _case(name: str, length_s: int, rows: tuple[Row, Row], next_end: str) -> Case:
    """Return a case of two windows. The first ends at 11:50, and the next one would end at `next_end`."""
    view = f"gold_{name}"
    first, second = rows
    events = [
        {"service_id": text("s1"), "metric_name": text("cpu"), "event_time": at("11:49:59.999999")},
        {
            "service_id": text("s2"),
            "metric_name": text("cpu"),
            "environment": text("lab"),
            "event_time": at("11:51:00"),
        },
    ]

    def changed(**change: str) -> TinyLake:
        return {view: [{**first, **change}, second]}

    return Case(
        good={view: [first, second], "silver_metrics_events": events, "limits": [LIMITS]},
        bad={
            "keys are unique": {view: [first, first]},
            "required columns have values": changed(is_final="NULL"),
            f"windows start at multiples of {length_s} s": changed(
                window_start=f"{first['window_start']} + INTERVAL 1 SECOND",
                window_end=f"{first['window_end']} + INTERVAL 1 SECOND",
            ),
            f"windows are {length_s} s long": changed(window_end=next_end),
            "every window has a value": changed(count="0", variance="0D", stddev="0D"),
            "averages lie between minimum and maximum": changed(avg="0.100001D"),
            "percentiles rise from minimum to maximum": changed(p99="0.2D"),
            "deviations are null for one value and never negative": changed(variance="0D"),
            "last events lie in their windows": changed(last_event_time=first["window_end"]),
            "every window has an event in silver": {"silver_metrics_events": events[1:]},
            "the newest row is recent": later(),
        },
    )


def _window(start: str, end: str, last: str, group: Row, values: Row) -> Row:
    names = {column: text(value) for column, value in group.items()}
    return {
        **names,
        "window_start": at(start),
        "window_end": at(end),
        "last_event_time": at(last),
        **values,
    }


_MINUTES = (
    _window(
        "11:49:00", "11:50:00", "11:49:59.999999", {"service_id": "s1", "metric_name": "cpu"}, _ONE_VALUE
    ),
    _window("11:51:00", "11:52:00", "11:51:00", {"service_id": "s2", "metric_name": "cpu"}, _FOUR_VALUES),
)
_SUMMARIES = (
    _window(
        "11:40:00",
        "11:50:00",
        "11:49:59.999999",
        {"environment": "default", "metric_name": "cpu"},
        _ONE_VALUE,
    ),
    _window("11:50:00", "12:00:00", "11:51:00", {"environment": "lab", "metric_name": "cpu"}, _FOUR_VALUES),
)

CASES = {
    "gold.metrics_1m": _case(METRICS_1M.name, 60, _MINUTES, at("11:51:00")),
    "gold.metrics_summary_10m": _case(METRICS_SUMMARY_10M.name, 600, _SUMMARIES, at("12:00:00")),
}
