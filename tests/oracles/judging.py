"""Clean records with their silver rows, and all reasons for refusing other records."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from enum import Enum, auto
from typing import Any

from tests.oracles.json_text import EXACT, Number, Pairs, beyond_the_parser, parse, payload_text

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US

_STEP, _BEYOND = Decimal("1e-9"), Decimal("1e29")  # decimal(38,9)
_MOST = 1e140
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NO_TIMESTAMP = -1  # in Kafka's protocol
EARLIEST_US = (datetime(2000, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LAST_US = (datetime(9998, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC) - _EPOCH) // _MICROSECOND
_ISO = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[T ]([0-9]{2}):([0-9]{2})"
    r"(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?(?:Z|([+-])([0-9]{2})(?::?([0-9]{2}))?)"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MAIL = re.compile(
    "(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), )?([0-9]{1,2}) ([A-Z][a-z]{2}) ([0-9]{4}) "
    "([0-9]{2}:[0-9]{2}:[0-9]{2}) (GMT|[+-][0-9]{4})"
)

_SPECIAL = re.compile("[+-]?(nan|inf|infinity)", re.IGNORECASE)
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")

Reasons = frozenset[tuple[str, str | None]]


class Kind(Enum):
    """Types of fields; ANY accepts any JSON value, null or no value, and ID text or a whole number."""

    STRING = auto()
    ID = auto()
    LONG = auto()
    DOUBLE = auto()
    DECIMAL = auto()
    ANY = auto()


@dataclass(frozen=True)
class Field:
    """A field of a record, with a dot if it is in an object, and its column in silver.

    With `text`, a string that contains a number is also accepted.
    """

    name: str
    column: str
    kind: Kind = Kind.STRING
    required: bool = True
    positive: bool = False
    text: bool = False


@dataclass(frozen=True)
class Contract:
    """The fields of a record; `tombstone` is the column that is filled from the key if there is no value."""

    fields: tuple[Field, ...]
    tombstone: str | None = None
    event_time: str = "timestamp"


_USERS = (Field("user1", "user1"), Field("user2", "user2"))

CONTRACTS: Mapping[str, Contract] = {
    "metrics_events": Contract(
        (
            Field("serviceId", "service_id"),
            Field("metricName", "metric_name"),
            Field("value", "value", Kind.DOUBLE),
            Field("environment", "environment", required=False),
        )
    ),
    "sales_events": Contract(
        (Field("product", "product"), Field("value", "value", Kind.DECIMAL)), tombstone="product"
    ),
    "transactions": Contract(
        (Field("userId", "user_id"), Field("amount", "amount", Kind.DECIMAL, positive=True))
    ),
    "call_analytics": Contract((*_USERS, Field("analytics", "analytics", Kind.ANY, required=False))),
    "call_metrics": Contract((*_USERS, Field("metrics", "metrics", Kind.ANY, required=False))),
}
"""The contract of every silver table, by the table's name."""

ENVELOPED = Contract(
    (
        Field("after.userId", "user_id"),
        Field("after.amount", "amount", Kind.DECIMAL, positive=True),
    ),
    event_time="source.ts_ms",
)
"""The contract of transactions in Debezium's envelope."""


@dataclass(frozen=True)
class Judged:
    """A record as silver should read it; `own_time_us` is None if the event time is Kafka's.

    `reasons` are all (rule, column) pairs for refusing it, unordered; if there are none, it is clean. The
    other fields are the values in the silver table, and are only meaningful for a clean record. `seen`
    contains the values that can be read from any record: the columns that break no rule, and `event_time` in
    microseconds.
    """

    reasons: Reasons
    columns: Mapping[str, Any] = field(default_factory=dict)
    event_time_us: int = 0
    own_time_us: int | None = None
    seen: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, kw_only=True)
class Event:
    """The properties of a clean record of any stream: a time, and a place in its topic."""

    event_time_us: int
    partition: int = 0
    offset: int = 0


def judge_record(
    contract: Contract,
    value: bytes | None,
    kafka_timestamp_ms: int,
    ingested_at_us: int,
    watermark_us: int | None,
    *,
    key: bytes | None = None,
    future_tolerance_s: int = 300,
    earliest_us: int = EARLIEST_US,
) -> Judged:
    """Judge a Kafka record according to a contract.

    This includes the parser's limits on surrogates and repeated keys in the contract's fields, but not its
    limits on size (nesting, digits of a number, length of a name).
    """
    event_time_us, event_time_rule = _event_time(None, kafka_timestamp_ms, earliest_us)
    columns: dict[str, Any] = {}
    stamp: object = None
    reasons: set[tuple[str, str | None]] = set()
    if value is None and contract.tombstone:
        columns = dict.fromkeys(field.column for field in contract.fields)
        columns[contract.tombstone], rule = _key_text(key)
        reasons |= {(rule, contract.tombstone)} if rule else set()
    else:
        record, refusal = _read_object(value, contract)
        if refusal is not None:
            return Judged(frozenset({(refusal, None)}))
        for one in contract.fields:
            columns[one.column], rule = _read_field(one, record)
            reasons |= {(rule, one.column)} if rule else set()
        place = within(record, contract.event_time)
        stamp = False if place is None else place[0].get(place[1])  # False is of the wrong type
        event_time_us, event_time_rule = _event_time(stamp, kafka_timestamp_ms, earliest_us)
    if event_time_rule is not None:
        reasons.add((event_time_rule, "event_time"))
    elif event_time_us > ingested_at_us + future_tolerance_s * SECOND_US:
        reasons.add(("future", "event_time"))
    if event_time_rule is None and watermark_us is not None and event_time_us < watermark_us:
        reasons.add(("late", "event_time"))
    wrong = {column for _, column in reasons}
    seen = {name: value for name, value in columns.items() if name not in wrong}
    seen |= {} if event_time_rule else {"event_time": event_time_us}
    if reasons:
        return Judged(frozenset(reasons), seen=seen)
    own_time_us = None if stamp is None else event_time_us
    return Judged(frozenset(), columns, event_time_us, own_time_us, seen)


def _key_text(key: bytes | None) -> tuple[str, str | None]:
    if key is None:
        return "", "key_null"
    try:
        text = key.decode("utf-8")
    except UnicodeDecodeError:
        return "", "key_not_utf8"
    return text, None if text else "key_empty"


def _read_object(value: bytes | None, contract: Contract) -> tuple[dict[str, Any], str | None]:
    """Return the object, or the rule that the record breaks if there is none."""
    if value is None:
        return {}, "value_null"
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return {}, "not_utf8"
    try:
        parsed = parse(text)
    except ValueError:
        return {}, "not_json"
    if not isinstance(parsed, Pairs):
        return {}, "not_an_object"
    known = {contract.event_time, *(field.name for field in contract.fields)}
    outermost = {name.partition(".")[0] for name in known}
    if any(beyond_the_parser(item) for name, item in parsed if name in outermost):
        return {}, "not_json"
    return dict(parsed), None


def within(record: Mapping[str, Any], path: str) -> tuple[Mapping[str, Any], str] | None:
    """Return the object that contains a field (empty if there is none), and the field's name in it.

    Return None if the path leads through a value that is not an object.
    """
    *outer, last = path.split(".")
    for name in outer:
        inner = record.get(name)
        if inner is not None and not isinstance(inner, Pairs):
            return None
        record = dict(inner or ())
    return record, last


def _read_field(one: Field, record: Mapping[str, Any]) -> tuple[Any, str | None]:
    """Return a field's value in silver, or the rule that it breaks."""
    place = within(record, one.name)
    inner, name = place or ({}, "")
    value = False if place is None else inner.get(name)  # False is of the wrong type
    if one.kind is Kind.ANY:
        return payload_text(value), None
    if value is None:
        return None, ("null_field" if name in inner else "missing_field") if one.required else None
    if one.kind is Kind.ID and isinstance(value, Number) and value.is_integer:
        return str(value.integer), None
    if isinstance(value, str):
        return _read_text(one, value)
    if not isinstance(value, Number) or one.kind in {Kind.STRING, Kind.ID}:
        return None, "wrong_type"
    return _read_number(one, value)


def _read_text(one: Field, text: str) -> tuple[Any, str | None]:
    """Return a string, or the number that it contains, or the rule that it breaks."""
    if one.kind in {Kind.STRING, Kind.ID}:
        return text, "empty_string" if text == "" and one.required else None
    if not one.text:
        return None, "wrong_type"
    if _NUMBER.fullmatch(text):
        return _read_number(one, Number(text))
    return None, "not_a_number" if _SPECIAL.fullmatch(text) else "wrong_type"


def _read_number(one: Field, number: Number) -> tuple[Any, str | None]:
    if one.kind is Kind.LONG:
        if not number.is_integer:
            return None, "wrong_type"
        whole = number.integer
        return (whole, None) if -(2**63) <= whole < 2**63 else (None, "beyond_long")
    if one.kind is Kind.DOUBLE:
        if not math.isfinite(number.double):
            return number.double, "not_finite"
        return number.double, "beyond_magnitude" if abs(number.double) > _MOST else None
    amount = _decimal_38_9(number)
    if amount is None:
        return None, "beyond_decimal"
    return amount, "not_positive" if one.positive and amount <= 0 else None


def _decimal_38_9(number: Number) -> Decimal | None:
    """Return the number as decimal(38,9), or None if that is not exact."""
    exact = number.decimal
    if not exact.is_finite() or exact.copy_abs() >= _BEYOND:
        return None
    scaled = EXACT.add(exact.quantize(_STEP, ROUND_HALF_UP, EXACT), 0)  # minus zero is zero
    return scaled if scaled == exact else None


def _event_time(stamp: object, kafka_timestamp_ms: int, earliest_us: int) -> tuple[int, str | None]:
    """Return the event time in microseconds, or the rule that it breaks."""
    if stamp is None:
        is_accepted = earliest_us <= kafka_timestamp_ms * 1000 <= _LAST_US
        known = is_accepted and kafka_timestamp_ms != _NO_TIMESTAMP
        return (kafka_timestamp_ms * 1000, None) if known else (0, "bad_timestamp")
    if isinstance(stamp, str):
        micros = _parse_iso(_as_iso(stamp), earliest_us)
        return (0, "bad_timestamp") if micros is None else (micros, None)
    if not isinstance(stamp, Number) or not stamp.is_integer:
        return 0, "wrong_type"  # integers with 39 digits or more are read as floating point
    micros = stamp.integer * 1000
    return (micros, None) if earliest_us <= micros <= _LAST_US else (0, "bad_timestamp")


def _as_iso(text: str) -> str:
    """Return a time in RFC 2822 as ISO 8601, and any other text unchanged."""
    match = _MAIL.fullmatch(text)
    if match is None or match[2] not in _MONTHS:
        return text
    day, month, year, time, offset = match.groups()
    return f"{year}-{_MONTHS.index(month) + 1:02}-{day:0>2}T{time}{offset.replace('GMT', 'Z')}"


def _parse_iso(text: str, earliest_us: int) -> int | None:
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
    micros -= (-ahead if sign == "-" else ahead) * MINUTE_US
    return micros if earliest_us <= micros <= _LAST_US else None
