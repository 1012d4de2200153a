"""Generate sample metrics for 20 services × 5 metrics, optionally with late, duplicate and malformed events.

    samples(1000, spread_times(1000, end_ms=now, span_s=600), seed=1, shares=Shares(malformed=0.01))

One series can be given a share of all events, and the number of services can be set.
lakehouse.dev.samples.mixing lists the kinds of samples. The same arguments always give the same bytes.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, NamedTuple

from lakehouse.dev.samples import Sample, breaking
from lakehouse.dev.samples.breaking import Breaker, with_literal, with_value, without
from lakehouse.dev.samples.mixing import (
    ISO_SHARE,
    NO_FAULTS,
    Shares,
    compact,
    in_turn,
    iso,
    mix,
    require_share,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

TOPICS = ("metrics-events",)
SERVICES = (
    "api-gateway",
    "auth",
    "billing",
    "cart",
    "catalog",
    "checkout",
    "email",
    "fraud-check",
    "inventory",
    "ledger",
    "notifications",
    "payments",
    "pricing",
    "recommendations",
    "search",
    "shipping",
    "café-orders",
    "größen-tabelle",
    "検索",
    "доставка-🚚",
)
HOT_SERVICE = "hot-path"
METRICS = ("cpu_usage", "memory_mb", "request_latency_ms", "error_rate", "queue_depth")
ENVIRONMENTS = ("production", "staging", "development")


def samples(
    count: int,
    times_ms: Iterable[int],
    *,
    seed: int,
    shares: Shares = NO_FAULTS,
    hot_series: float = 0.0,
    services: float = 0,
) -> Iterator[Sample]:
    """Return an iterator over `count` samples, with one sample for each of `times_ms`.

    `hot_series` is the probability that an event belongs to the first metric of HOT_SERVICE, which otherwise
    has no events. If `services` is set, the series of that many services take turns. Otherwise, series are
    chosen at random among the 20 services.

    Raises SettingsError for a probability outside 0 to 1.
    """
    require_share("hot series", hot_series, "all events")
    rng = random.Random(seed)
    uniform = rng.random
    broken = Breaker(_BREAKAGES, shares.ahead_s)
    turns = in_turn(services * len(METRICS))

    def pick() -> _Series:
        if hot_series and uniform() < hot_series:
            return _HOT
        return _numbered(next(turns)) if services else _pick(uniform)

    def valid(time_ms: int) -> Sample:
        key, value = _encode(pick(), rng, uniform, time_ms)
        return Sample(key, value, "valid")

    def malformed_one(time_ms: int) -> Sample:
        series, draw = _pick(uniform), uniform()
        kind, value = broken(
            {
                "serviceId": series.service,
                "metricName": series.metric,
                "value": round(100 * draw, 3),
                "timestamp": time_ms,
                "environment": ENVIRONMENTS[0],
            }
        )
        return Sample(series.key, value, kind)

    return mix(count, times_ms, rng, shares, valid=valid, malformed=malformed_one)


# The fast path for valid samples: everything except the value and the time is encoded once per series.


class _Series(NamedTuple):
    service: str
    metric: str
    key: bytes
    head: bytes
    value: Callable[[random.Random], bytes]


def _pick(uniform: Callable[[], float]) -> _Series:
    return _SERIES[int(uniform() * len(_SERIES))]


def _encode(
    series: _Series, rng: random.Random, uniform: Callable[[], float], time_ms: int
) -> tuple[bytes, bytes]:
    _, _, key, head, value = series
    tail = _TAILS[int(uniform() * len(_TAILS))]
    if uniform() < ISO_SHARE:
        return key, b'%b%b,"timestamp":"%b"%b' % (head, value(rng), iso(time_ms, uniform), tail)
    return key, b'%b%b,"timestamp":%d%b' % (head, value(rng), time_ms, tail)


def _cpu_usage(rng: random.Random) -> bytes:
    return b"%.2f" % min(100.0, max(0.1, rng.gauss(38.0, 16.0)))


def _memory_mb(rng: random.Random) -> bytes:
    return b"%.1f" % max(32.0, rng.gauss(1400.0, 320.0))


def _request_latency_ms(rng: random.Random) -> bytes:
    return b"%.3f" % math.exp(rng.gauss(3.4, 0.7))


def _error_rate(rng: random.Random) -> bytes:
    return b"%.5f" % (0.2 * rng.random() ** 4)  # mostly close to zero


def _queue_depth(rng: random.Random) -> bytes:
    return b"%d" % (-18.0 * math.log(1.0 - rng.random()))  # whole numbers: JSON has only one number type


_VALUES = (_cpu_usage, _memory_mb, _request_latency_ms, _error_rate, _queue_depth)


def _series(service: str, number: int) -> _Series:
    metric = METRICS[number]
    head = f'{{"serviceId":{compact(service)},"metricName":{compact(metric)},"value":'
    return _Series(service, metric, service.encode(), head.encode(), _VALUES[number])


def _numbered(number: int) -> _Series:
    service, metric = divmod(number, len(METRICS))
    return _series(f"service-{service}", metric)


_SERIES = tuple(_series(service, number) for service in SERVICES for number in range(len(METRICS)))
_HOT = _series(HOT_SERVICE, 0)
# One event in twenty has no environment.
_TAILS = (
    *(f',"environment":{compact(ENVIRONMENTS[0])}}}'.encode(),) * 11,
    *(f',"environment":{compact(ENVIRONMENTS[1])}}}'.encode(),) * 5,
    *(f',"environment":{compact(ENVIRONMENTS[2])}}}'.encode(),) * 3,
    b"}",
)


_BREAKAGES = {
    **breaking.of_the_message(text="serviceId", number="value", words=("metricName", "value")),
    **breaking.of_a_tombstone(),
    "service_id_missing": without("serviceId"),
    "metric_name_missing": without("metricName"),
    "value_missing": without("value"),
    "service_id_null": with_value("serviceId", None),
    "metric_name_null": with_value("metricName", None),
    "value_null": with_value("value", None),
    "service_id_empty": with_value("serviceId", ""),
    "service_id_number": with_value("serviceId", 17),
    "metric_name_boolean": with_value("metricName", True),
    "value_string": with_value("value", "12.5"),
    "value_object": with_value("value", {"amount": 12.5}),
    "value_nan": with_literal("value", b"NaN"),
    "value_infinity": with_literal("value", b"Infinity"),
    "value_minus_infinity": with_literal("value", b"-Infinity"),
    "value_overflow": with_literal("value", b"1e400"),
    **breaking.of_the_time(),
}
MALFORMED_KINDS = breaking.kinds(_BREAKAGES)
"""All kinds of malformed samples, in the order in which a run cycles through them."""
