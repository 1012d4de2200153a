"""The contracts of the samples, implemented simply and without the pipeline, and helpers for their tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

from lakehouse.dev.samples import Sample, calls, metrics, sales, spread_times, transactions
from lakehouse.dev.samples.mixing import Shares

NOW_MS = 1_767_225_600_000
HOUR_MS = 3_600_000
WEEK_S = 7 * 24 * 3600
_ABSENT = object()

Check = Callable[[object], bool]
_SHARES = {field.name for field in fields(Shares)}


@dataclass(frozen=True)
class Contract:
    """The generator of a stream's samples, and the types of its records' fields, by topic."""

    samples: Callable[..., Iterator[Sample]]
    malformed_kinds: tuple[str, ...]
    fields: tuple[dict[str, Check], ...]
    tombstones: bool = False

    def generate(self, count: int, *, seed: int = 1, span_s: float = 600, **options: Any) -> list[Sample]:
        times = spread_times(count, end_ms=NOW_MS, span_s=span_s)
        shares = Shares(**{name: options.pop(name) for name in _SHARES & options.keys()})
        return list(self.samples(count, times, seed=seed, shares=shares, **options))

    def breach(self, sample: Sample, latest_ms: int = NOW_MS + 300_000) -> str | None:
        """Return how a message violates DESIGN.md (a field, or a missing property), or None."""
        if sample.value is None and self.tombstones:
            return None if is_text(sample.key) else "not a product"
        try:
            record = json.loads((sample.value or b"").decode(), parse_constant=_refuse, parse_float=Decimal)
        except ValueError:
            return "not UTF-8 JSON"
        if not isinstance(record, dict):
            return "not an object"
        checks = self.fields[sample.source]
        if not set(record) <= {*checks, "timestamp"}:
            return "unknown field"
        if not is_time(record.get("timestamp"), latest_ms):
            return "timestamp"
        return next((name for name, holds in checks.items() if not holds(record.get(name, _ABSENT))), None)


def decoded(sample: Sample) -> Any:
    return json.loads(sample.value or b"")


def event_time_ms(sample: Sample) -> int:
    timestamp = decoded(sample)["timestamp"]
    if isinstance(timestamp, int):
        return timestamp
    return round(datetime.fromisoformat(timestamp).timestamp() * 1000)


def class_of(sample: Sample) -> str:
    """Return the general kind of a sample: valid, malformed, late, duplicate or tombstone."""
    return sample.kind.split(":")[0].split("_")[0]


def is_text(key: bytes | None) -> bool:
    try:
        return bool((key or b"").decode())
    except UnicodeDecodeError:
        return False


def is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def is_number(value: object) -> bool:
    return (
        isinstance(value, int | Decimal) and not isinstance(value, bool) and abs(float(value)) < float("inf")
    )


def is_decimal(value: object) -> bool:
    """Return whether a number fits into decimal(38,9) exactly."""
    if not isinstance(value, int | Decimal) or isinstance(value, bool):
        return False
    exact = Fraction(value)
    return abs(exact) < 10**29 and (exact * 10**9).denominator == 1


def is_time(value: object, latest_ms: int) -> bool:
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return False
        return moment.tzinfo is not None and moment.timestamp() * 1000 <= latest_ms
    return type(value) is int and value <= latest_ms


def _refuse(literal: str) -> None:
    raise ValueError(f"{literal} is not JSON")


def _is_positive_decimal(value: object) -> bool:
    return isinstance(value, int | Decimal) and is_decimal(value) and value > 0


def _is_environment(value: object) -> bool:
    return value is _ABSENT or value in metrics.ENVIRONMENTS


def _is_anything(_: object) -> bool:
    return True


CONTRACTS = {
    "metrics": Contract(
        metrics.samples,
        metrics.MALFORMED_KINDS,
        (
            {
                "serviceId": is_name,
                "metricName": is_name,
                "value": is_number,
                "environment": _is_environment,
            },
        ),
    ),
    "calls": Contract(
        calls.samples,
        calls.MALFORMED_KINDS,
        (
            {"user1": is_name, "user2": is_name, "analytics": _is_anything},
            {"user1": is_name, "user2": is_name, "metrics": _is_anything},
        ),
    ),
    "sales": Contract(
        sales.samples, sales.MALFORMED_KINDS, ({"product": is_name, "value": is_decimal},), tombstones=True
    ),
    "transactions": Contract(
        transactions.samples,
        transactions.MALFORMED_KINDS,
        ({"userId": is_name, "amount": _is_positive_decimal},),
    ),
}
