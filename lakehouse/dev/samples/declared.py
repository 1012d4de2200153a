"""Generate sample events for any stream from its contracts.

    samples(stream.sources, 1000, spread_times(1000, end_ms=now, span_s=600), seed=1)

Each string field has one of twenty values, and numbers are positive. The generator does not know the rules
of the stream, so a sample can break a rule. lakehouse.dev.samples.mixing lists the kinds of samples. The same
arguments always give the same bytes.
"""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime
from itertools import cycle
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from lakehouse.dev.samples import Sample
from lakehouse.dev.samples.breaking import Breaker, dumps
from lakehouse.dev.samples.mixing import NO_FAULTS, Shares, mix
from lakehouse.engine.records.event_times import AS_DIGITS
from lakehouse.streams.definition import Contract, Field, FieldType, Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lakehouse.dev.samples.breaking import Breakage, Record
    from lakehouse.streams.contract import TimeUnit

_TEXTS = 20
_OPTIONAL_SHARE = 0.8
_WRONG: dict[FieldType, Any] = {
    FieldType.STRING: {"not": "a text"},
    FieldType.LONG: "12",
    FieldType.DOUBLE: "1.5",
    FieldType.DECIMAL: "1.5",
    FieldType.BOOLEAN: "true",
}
_NS: dict[TimeUnit, int] = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def samples(
    sources: Sequence[Source],
    count: int,
    times_ms: Iterable[int],
    *,
    seed: int,
    shares: Shares = NO_FAULTS,
) -> Iterator[Sample]:
    """Return an iterator over `count` samples, with one sample for each of `times_ms`.

    The sources take turns. Raises SettingsError if the shares exceed one in total.
    """
    rng = random.Random(seed)
    turns = cycle(range(len(sources)))
    breakers = [Breaker(dict(_breakages(source.contract)), shares.ahead_s) for source in sources]

    def valid(time_ms: int) -> Sample:
        number = next(turns)
        record = _record(sources[number].contract, time_ms, rng)
        return Sample(_key(sources[number].contract, record), dumps(record), "valid", number)

    def malformed(time_ms: int) -> Sample:
        number = next(turns)
        contract = sources[number].contract
        record = _record(contract, time_ms, rng)
        key = _key(contract, record)  # before a breakage changes the record
        kind, value = breakers[number](record)
        return Sample(key, value, kind, number)

    def tombstone(time_ms: int) -> Sample:
        number = next(turns)
        key = _key(sources[number].contract, _record(sources[number].contract, time_ms, rng))
        return Sample(key, None, "tombstone", number, time_ms)

    return mix(count, times_ms, rng, shares, valid=valid, malformed=malformed, tombstone=tombstone)


def _record(contract: Contract, time_ms: int, rng: random.Random) -> Record:
    record: Record = {}
    for field in contract.fields:
        if field.required or rng.random() < _OPTIONAL_SHARE:
            _put(record, field.path, _value(field, rng))
    _put(record, contract.event_time_path, _time(contract, time_ms))
    return record


def _value(field: Field, rng: random.Random) -> Any:
    match field.type:
        case FieldType.STRING:
            return f"{field.column}-{rng.randrange(_TEXTS)}"
        case FieldType.LONG:
            return rng.randrange(1, 1000)
        case FieldType.BOOLEAN:
            return rng.random() < 1 / 2
        case FieldType.JSON:
            return {"n": rng.randrange(1000)}
        case FieldType.DOUBLE | FieldType.DECIMAL:
            return max(0.01, round(math.exp(rng.gauss(3.5, 1.2)), 2))


def _time(contract: Contract, time_ms: int) -> Any:
    if contract.event_time_zone is not None:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC).astimezone(ZoneInfo(contract.event_time_zone))
        return moment.replace(tzinfo=None).isoformat(timespec="milliseconds")
    unit_ns = _NS[contract.event_time_unit]
    if contract.event_time_unit in AS_DIGITS and time_ms % 2:  # as in Protobuf's JSON
        return str(time_ms * 1_000_000 // unit_ns)
    return time_ms / 1000 if contract.event_time_unit == "s" else time_ms * 1_000_000 // unit_ns


def _key(contract: Contract, record: Record) -> bytes | None:
    """Return a record's Kafka key: the value of its tombstone field, or its first required string field."""
    texts = [field for field in contract.fields if field.required and field.type is FieldType.STRING]
    of_tombstones = [field for field in texts if field.name == contract.tombstone]
    for field in (of_tombstones or texts)[:1]:
        return str(_at(record, field.path)).encode()
    return None


def _breakages(contract: Contract) -> Iterator[tuple[str, Breakage]]:
    """Yield the breakages for records of this contract, each with its name."""
    yield "not_utf8", lambda record: b"\xff\xfe" + dumps(record)
    yield "truncated_json", lambda record: dumps(record)[:-2]
    yield "array", lambda record: dumps([record])
    yield "empty", lambda _record: b""
    if contract.tombstone is None:
        yield "tombstone", lambda _record: None
    for field in contract.fields:
        if field.required:
            yield f"{field.column}_null", _with(field.path, None)
        if field.type in _WRONG:
            wrong = True if field.accepts_text else _WRONG[field.type]
            yield f"{field.column}_of_another_type", _with(field.path, wrong)
    yield "time_that_is_none", _with(contract.event_time_path, "yesterday at noon")


def _with(path: Sequence[str], value: Any) -> Breakage:
    def broken(record: Record) -> bytes:
        _put(record, path, value)
        return dumps(record)

    return broken


def _put(record: Record, path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        record = record.setdefault(name, {})
    record[path[-1]] = value


def _at(record: Record, path: Sequence[str]) -> Any:
    value: Any = record
    for name in path:
        value = value[name]
    return value
