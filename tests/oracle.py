"""What the pipeline promises, once more in plain Python: json, datetime, dictionaries and sorting, no Spark.

Tests compare the pipeline with this instead of with itself, so nothing here is taken from `lakehouse`.

    judged = [judge_record(value, kafka_timestamp_ms, ingested_at_us, watermark_us) for value in values]
    accepted = [record for record in judged if not record.reasons]
    expected = metrics_1m(accepted)

Times are integers since the epoch, UTC, in the unit that their name ends with.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
WINDOW_US = 60_000_000

_COLUMNS = {
    "serviceId": "service_id",
    "metricName": "metric_name",
    "value": "value",
    "environment": "environment",
}
_OPTIONAL = "environment"
_EVENT_TIME = "timestamp"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST_MS = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_LAST_MS = (datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_ISO = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2})"
    r"(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?(?:Z|([+-])([0-9]{2}):([0-9]{2}))"
)


@dataclass(frozen=True)
class Judged:
    """A metrics record as silver should see it.

    `reasons` are all (rule, column) pairs against it, in no order; none means that it is clean. The other
    fields are what silver.metrics_events holds, and mean something for a clean record only.
    """

    reasons: frozenset[tuple[str, str | None]]
    service_id: str = ""
    metric_name: str = ""
    value: float = math.nan
    environment: str | None = None
    event_time_us: int = 0


class Statistics(TypedDict):
    """A row of metrics_1m but for its key and is_final, and the values it is made of, sorted."""

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


def judge_record(
    value: bytes | None,
    kafka_timestamp_ms: int,
    ingested_at_us: int,
    watermark_us: int | None,
    *,
    future_tolerance_s: int = 300,
) -> Judged:
    """Judge the value of a Kafka record by the metrics contract.

    It knows the parser's limits on surrogates and double keys within the contract's fields, not those on
    size (nesting, digits of a number, length of a name).
    """
    record, refusal = _read_object(value)
    if refusal is not None:
        return Judged(frozenset({(refusal, None)}))
    reasons: set[tuple[str, str | None]] = set()
    for name, column in _COLUMNS.items():
        rule = _number_rule(record, name) if name == "value" else _string_rule(record, name)
        if rule is not None:
            reasons.add((rule, column))
    event_time_us, rule = _event_time(record.get(_EVENT_TIME), kafka_timestamp_ms)
    if rule is not None:
        reasons.add((rule, "event_time"))
    else:
        if event_time_us > ingested_at_us + future_tolerance_s * 1_000_000:
            reasons.add(("future", "event_time"))
        if watermark_us is not None and event_time_us < watermark_us:
            reasons.add(("late", "event_time"))
    if reasons:
        return Judged(frozenset(reasons))
    return Judged(
        frozenset(),
        record["serviceId"],
        record["metricName"],
        float(record["value"]),
        record.get("environment"),
        event_time_us,
    )


def metrics_1m(records: Iterable[Judged]) -> dict[tuple[str, str, int], Statistics]:
    """Return the rows of gold.metrics_1m by (service_id, metric_name, window start in microseconds)."""
    groups: dict[tuple[str, str, int], list[Judged]] = defaultdict(list)
    for record in records:
        start_us = record.event_time_us // WINDOW_US * WINDOW_US
        groups[record.service_id, record.metric_name, start_us].append(record)
    return {
        key: statistics([record.value for record in group], max(record.event_time_us for record in group))
        for key, group in groups.items()
    }


def statistics(values: Iterable[float], last_event_time_us: int = 0) -> Statistics:
    """Describe some values; the moments in two passes, percentiles by nearest rank."""
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
    """Describe values by what no overflow can reach: count, minimum, maximum and percentiles."""
    ordered = sorted(values)
    percentiles = {name: percentile(ordered, p) for name, p in PERCENTILES.items()}
    return {"count": len(ordered), "min": ordered[0], "max": ordered[-1]} | percentiles


def percentile(ordered: Sequence[float], p: float) -> float:
    """Return the nearest rank: the least value with at least the share `p` of all values up to it."""
    at_least = next(rank for rank in range(1, len(ordered) + 1) if rank / len(ordered) >= p)
    return ordered[at_least - 1]


def rank_error(ordered: Sequence[float], p: float, estimate: float) -> float:
    """Return how far, as a share of all values, the ranks that `estimate` has are from the rank `p`.

    Zero where `estimate` may be called the percentile: equal values share a range of ranks.
    """
    below, up_to = bisect_left(ordered, estimate), bisect_right(ordered, estimate)
    return max(0.0, below / len(ordered) - p, p - up_to / len(ordered))


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as it is written, with keys that are there twice."""


def _read_object(value: bytes | None) -> tuple[dict[str, Any], str | None]:
    """Return the object, or the rule that says why there is none."""
    if value is None:
        return {}, "value_null"
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return {}, "not_utf8"
    try:
        parsed = json.loads(text, parse_constant=_refuse, object_pairs_hook=_Pairs)
    except ValueError:
        return {}, "not_json"
    if not isinstance(parsed, _Pairs):
        return {}, "not_an_object"
    if any(_beyond_the_parser(field) for name, field in parsed if name in {*_COLUMNS, _EVENT_TIME}):
        return {}, "not_json"
    return dict(parsed), None


def _refuse(literal: str) -> None:
    raise ValueError(f"{literal} is not JSON")


def _beyond_the_parser(value: object) -> bool:
    if isinstance(value, str):
        return any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, _Pairs):
        names = [name for name, _ in value]
        return len(set(names)) < len(names) or any(
            _beyond_the_parser(name) or _beyond_the_parser(item) for name, item in value
        )
    return isinstance(value, list) and any(_beyond_the_parser(item) for item in value)


def _string_rule(record: dict[str, Any], name: str) -> str | None:
    value = record.get(name)
    if value is None:
        if name == _OPTIONAL:
            return None
        return "null_field" if name in record else "missing_field"
    if not isinstance(value, str):
        return "wrong_type"
    return "empty_string" if value == "" and name != _OPTIONAL else None


def _number_rule(record: dict[str, Any], name: str) -> str | None:
    value = record.get(name)
    if value is None:
        return "null_field" if name in record else "missing_field"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "wrong_type"
    try:
        return None if math.isfinite(float(value)) else "not_finite"
    except OverflowError:  # an int beyond every double
        return "not_finite"


def _event_time(stamp: object, kafka_timestamp_ms: int) -> tuple[int, str | None]:
    """Return the event time in microseconds, or the rule that it breaks."""
    if stamp is None:
        return kafka_timestamp_ms * 1000, None
    if isinstance(stamp, str):
        micros = _parse_iso(stamp)
        return (0, "bad_timestamp") if micros is None else (micros, None)
    if isinstance(stamp, bool) or not isinstance(stamp, int) or abs(stamp) >= 10**38:
        return 0, "wrong_type"  # integers of 39 digits and more are read as floating point
    return (stamp * 1000, None) if _FIRST_MS <= stamp <= _LAST_MS else (0, "bad_timestamp")


def _parse_iso(text: str) -> int | None:
    match = _ISO.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    fraction, sign, offset_hours, offset_minutes = match.groups()[6:]
    try:
        local = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    ahead = int(offset_hours or 0) * 60 + int(offset_minutes or 0)
    if ahead > 18 * 60 or int(offset_minutes or 0) > 59:
        return None
    micros = (local - _EPOCH) // _MICROSECOND + int(f"{fraction or 0:0<6}"[:6])
    micros -= (-ahead if sign == "-" else ahead) * WINDOW_US
    return micros if _FIRST_MS <= micros // 1000 <= _LAST_MS else None


def _total(values: Iterable[float]) -> float:
    """Return the sum, correctly rounded, or infinity where it is beyond every double."""
    listed = list(values)
    try:
        return math.fsum(listed)
    except OverflowError:
        return sum(listed)
