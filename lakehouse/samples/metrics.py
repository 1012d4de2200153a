"""Sample metrics events: 20 services × 5 metrics, with late, duplicate and malformed ones on request.

    samples(1000, spread_times(1000, end_ms=now, span_s=600), seed=1, malformed=0.01)

The kinds of sample, and what the pipeline must make of each:

    valid           accepted
    late_within     behind the times around it, by less than the allowed lateness: accepted
    late_beyond     behind by more than the allowed lateness: a dead letter
    duplicate       an earlier valid sample again, byte for byte: accepted (a metrics record has no identity)
    malformed:…     breaks the contract in the way named; see MALFORMED_KINDS: a dead letter

The same arguments give the same bytes.
"""

from __future__ import annotations

import json
import math
import random
from datetime import UTC, datetime, timedelta, timezone
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple

from lakehouse.errors import SettingsError
from lakehouse.samples import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

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
METRICS = ("cpu_usage", "memory_mb", "request_latency_ms", "error_rate", "queue_depth")
ENVIRONMENTS = ("production", "staging", "development")

_BLOCK = 1000  # the shares hold within every block of this many samples
_ISO_SHARE = 0.02
_ROUNDING = 1e-9
_MAX_WITHIN_S = 6 * 3600
_DAY_S = 24 * 3600
_ZONES = (
    UTC,
    timezone(timedelta(hours=2)),
    timezone(timedelta(hours=-5)),
    timezone(timedelta(hours=5, minutes=30)),
)

_VALID, _LATE, _DUPLICATE, _MALFORMED = range(4)

_Record = dict[str, Any]


def samples(
    count: int,
    times_ms: Iterable[int],
    *,
    seed: int,
    malformed: float = 0.0,
    late: float = 0.0,
    duplicates: float = 0.0,
    allowed_lateness_s: int = 7 * _DAY_S,
    ahead_s: float = 3600.0,
) -> Iterator[Sample]:
    """Return an iterator over `count` samples, one for each of `times_ms`.

    `malformed`, `late` and `duplicates` are shares of `count`, kept to within rounding; a duplicate is
    the second sending of an event and counts in its own right. One late sample in four is beyond the
    allowed lateness; all of them are where that is 0. A malformed sample from the future is `ahead_s`
    ahead of its time.

    Raises SettingsError for shares that do not fit into one whole.
    """
    shares = {_MALFORMED: malformed, _LATE: late, _DUPLICATE: duplicates}
    whole = sum(shares.values()) + duplicates  # a duplicate needs an event to repeat
    if not (min(shares.values()) >= 0 and whole <= 1 + _ROUNDING):
        raise SettingsError(
            f"malformed {malformed:g}, late {late:g} and duplicates {duplicates:g} are shares of all events; "
            "expected each to be 0 or more, and malformed + late + 2 × duplicates at most 1"
        )
    rng = random.Random(seed)  # noqa: S311 - meant to be repeatable
    return _generate(_slots(count, shares, rng), times_ms, rng, allowed_lateness_s, ahead_s)


def _generate(
    slots: Iterable[int], times_ms: Iterable[int], rng: random.Random, allowed_lateness_s: int, ahead_s: float
) -> Iterator[Sample]:
    uniform = rng.random
    lateness = cycle(_lateness_draws(rng, allowed_lateness_s))
    breakages = cycle(_BREAKAGES.items())
    repeatable: list[Sample] = []
    keep = repeatable.append
    # Duplicates that came up before there was anything to repeat: the next valid slots make up for them.
    owed = 0
    for slot, time_ms in zip(slots, times_ms, strict=False):
        if slot == _MALFORMED:
            series, draw = _pick(uniform), uniform()
            name, broken = next(breakages)
            record = {
                "serviceId": series.service,
                "metricName": series.metric,
                "value": round(100 * draw, 3),
                "timestamp": time_ms + round(ahead_s * 1000) if name == _FUTURE else time_ms,
                "environment": ENVIRONMENTS[0],
            }
            yield Sample(series.key, broken(record), f"malformed:{name}")
        elif slot == _LATE:
            kind, behind_ms = next(lateness)
            key, value = _encode(rng, uniform, time_ms - behind_ms())
            yield Sample(key, value, kind)
        elif repeatable and (slot == _DUPLICATE or owed):
            owed -= slot != _DUPLICATE
            yield _take(repeatable, uniform)._replace(kind="duplicate")
        else:
            owed += slot == _DUPLICATE
            key, value = _encode(rng, uniform, time_ms)
            sample = Sample(key, value, "valid")
            keep(sample)
            if len(repeatable) > _BLOCK:
                repeatable[:] = repeatable[-_BLOCK // 2 :]
            yield sample


def _slots(count: int, shares: dict[int, float], rng: random.Random) -> Iterator[int]:
    """Yield what each sample is to be, shuffled within blocks, every share exact at each block's end."""
    given = dict.fromkeys(shares, 0)
    for start in range(0, count, _BLOCK):
        end = min(start + _BLOCK, count)
        special: list[int] = []
        for slot, share in shares.items():
            wanted = min(round(end * share) - given[slot], end - start - len(special))
            given[slot] += wanted
            special += [slot] * wanted
        block = [_VALID] * (end - start)
        for position, slot in zip(rng.sample(range(end - start), len(special)), special, strict=True):
            block[position] = slot
        yield from block


def _take(repeatable: list[Sample], uniform: Callable[[], float]) -> Sample:
    """Remove one at random, in constant time: an event is repeated once at most."""
    position = int(uniform() * len(repeatable))
    repeatable[position], repeatable[-1] = repeatable[-1], repeatable[position]
    return repeatable.pop()


def _lateness_draws(rng: random.Random, allowed_s: int) -> list[tuple[str, Callable[[], int]]]:
    longest_s = min(_MAX_WITHIN_S, allowed_s / 2)
    shortest_s = min(1.0, longest_s / 2)

    def within_ms() -> int:  # as many within seconds as within minutes as within hours
        return round(1000 * shortest_s * math.pow(longest_s / shortest_s, rng.random()))

    def beyond_ms() -> int:
        return round(1000 * (allowed_s + _DAY_S * (1 + 2 * rng.random())))

    beyond: tuple[str, Callable[[], int]] = ("late_beyond", beyond_ms)
    within: tuple[str, Callable[[], int]] = ("late_within", within_ms)
    return [within, within, beyond, within] if allowed_s else [beyond]


# The valid path: everything but the value and the time is encoded once per series.


class _Series(NamedTuple):
    service: str
    metric: str
    key: bytes
    head: bytes
    value: Callable[[random.Random], bytes]


def _pick(uniform: Callable[[], float]) -> _Series:
    return _SERIES[int(uniform() * len(_SERIES))]


def _encode(rng: random.Random, uniform: Callable[[], float], time_ms: int) -> tuple[bytes, bytes]:
    _, _, key, head, value = _SERIES[int(uniform() * len(_SERIES))]
    tail = _TAILS[int(uniform() * len(_TAILS))]
    if uniform() < _ISO_SHARE:
        return key, b'%b%b,"timestamp":"%b"%b' % (head, value(rng), _iso(time_ms, uniform), tail)
    return key, b'%b%b,"timestamp":%d%b' % (head, value(rng), time_ms, tail)


def _iso(time_ms: int, uniform: Callable[[], float]) -> bytes:
    zone = _ZONES[int(uniform() * len(_ZONES))]
    moment = datetime.fromtimestamp(time_ms // 1000, UTC).replace(microsecond=time_ms % 1000 * 1000)
    return moment.astimezone(zone).isoformat(timespec="milliseconds").encode()


def _cpu_usage(rng: random.Random) -> bytes:
    return b"%.2f" % min(100.0, max(0.1, rng.gauss(38.0, 16.0)))


def _memory_mb(rng: random.Random) -> bytes:
    return b"%.1f" % max(32.0, rng.gauss(1400.0, 320.0))


def _request_latency_ms(rng: random.Random) -> bytes:
    return b"%.3f" % math.exp(rng.gauss(3.4, 0.7))


def _error_rate(rng: random.Random) -> bytes:
    return b"%.5f" % (0.2 * rng.random() ** 4)  # mostly next to nothing


def _queue_depth(rng: random.Random) -> bytes:
    return b"%d" % (-18.0 * math.log(1.0 - rng.random()))  # whole numbers: JSON has one kind of number


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_VALUES = (_cpu_usage, _memory_mb, _request_latency_ms, _error_rate, _queue_depth)
_SERIES = tuple(
    _Series(
        service,
        metric,
        service.encode(),
        f'{{"serviceId":{_json(service)},"metricName":{_json(metric)},"value":'.encode(),
        value,
    )
    for service in SERVICES
    for metric, value in zip(METRICS, _VALUES, strict=True)
)
# One event in twenty names no environment.
_TAILS = (
    *(f',"environment":{_json(ENVIRONMENTS[0])}}}'.encode(),) * 11,
    *(f',"environment":{_json(ENVIRONMENTS[1])}}}'.encode(),) * 5,
    *(f',"environment":{_json(ENVIRONMENTS[2])}}}'.encode(),) * 3,
    b"}",
)


# The malformed: each takes a valid record and returns a message that breaks the contract in one way.

_FUTURE = "timestamp_in_the_future"


def _dumps(record: object) -> bytes:
    return _json(record).encode()


def _without(field: str) -> Callable[[_Record], bytes]:
    return lambda record: _dumps({name: value for name, value in record.items() if name != field})


def _with(field: str, value: object) -> Callable[[_Record], bytes]:
    return lambda record: _dumps({**record, field: value})


def _with_literal(field: str, literal: bytes) -> Callable[[_Record], bytes]:
    """Put in a value as it stands, for what json.dumps has no way of writing."""
    mark = "\x00"
    return lambda record: _dumps({**record, field: mark}).replace(_dumps(mark), literal)


def _truncated_utf8(record: _Record) -> bytes:
    """Cut a multi-byte character off after its first byte."""
    whole = "é"
    return _dumps({**record, "serviceId": f"caf{whole}"}).replace(whole.encode(), whole.encode()[:1])


def _truncated_json(record: _Record) -> bytes:
    text = _json(record)
    return text[: len(text) // 2].encode()


def _local_time(record: _Record) -> bytes:
    moment = datetime.fromtimestamp(record["timestamp"] / 1000, UTC)
    return _dumps({**record, "timestamp": moment.strftime("%Y-%m-%dT%H:%M:%S")})


_BREAKAGES: dict[str, Callable[[_Record], bytes | None]] = {
    "not_utf8": lambda record: b"\xff\xfe" + _dumps(record),
    "truncated_utf8": _truncated_utf8,
    "not_json": lambda record: f"{record['metricName']} {record['value']}".encode(),
    "truncated_json": _truncated_json,
    "trailing_garbage": lambda record: _dumps(record) + b" }]",
    "second_object": lambda record: _dumps(record) * 2,
    "array": lambda record: _dumps([record]),
    "number": lambda record: _dumps(record["value"]),
    "string": lambda record: _dumps(_json(record)),
    "null_literal": lambda _: b"null",
    "empty": lambda _: b"",
    "blank": lambda _: b"  \n",
    "tombstone": lambda _: None,
    "service_id_missing": _without("serviceId"),
    "metric_name_missing": _without("metricName"),
    "value_missing": _without("value"),
    "service_id_null": _with("serviceId", None),
    "metric_name_null": _with("metricName", None),
    "value_null": _with("value", None),
    "service_id_empty": _with("serviceId", ""),
    "service_id_number": _with("serviceId", 17),
    "metric_name_boolean": _with("metricName", True),  # noqa: FBT003 - a JSON value
    "value_string": _with("value", "12.5"),
    "value_object": _with("value", {"amount": 12.5}),
    "value_nan": _with_literal("value", b"NaN"),
    "value_infinity": _with_literal("value", b"Infinity"),
    "value_minus_infinity": _with_literal("value", b"-Infinity"),
    "value_overflow": _with_literal("value", b"1e400"),
    "timestamp_boolean": _with("timestamp", True),  # noqa: FBT003 - a JSON value
    "timestamp_not_a_date": _with("timestamp", "yesterday at noon"),
    "timestamp_without_offset": _local_time,
    _FUTURE: _dumps,
}
MALFORMED_KINDS = tuple(f"malformed:{name}" for name in _BREAKAGES)
"""Every kind of malformed sample; a run goes through them in this order, over and over."""
