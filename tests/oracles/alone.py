"""A single record as silver must read it: the first table in docs/decisions/what-a-record-becomes.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.oracles.json_text import Number, Pairs, parse
from tests.oracles.judging import EARLIEST_US, Contract, judge_record, within

Place = tuple[str, int, int]
"""Topic, partition, offset."""

Headers = tuple[tuple[str, bytes | None], ...]

NO_TIMESTAMP = -1  # in Kafka's protocol
_FRAME = 5


@dataclass(frozen=True)
class Record:
    """A bronze record; `value` is the JSON that it contains, whatever its format, or None.

    `refused` is the rule of its format that it breaks, so that it cannot be read, or None.
    """

    place: Place
    ingested_at_us: int
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    kafka_timestamp_ms: int = NO_TIMESTAMP
    refused: str | None = None


@dataclass(frozen=True)
class Lateness:
    """The allowed lateness (None: no limit), and the first offsets it applies to, by (topic, partition)."""

    seconds: int | None
    begins: Mapping[tuple[str, int], int] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """A source's settings. The last entry of `lateness` that covers a record applies to it.

    `unique_by` and `sequence_by` are a field of the contract, or `header:NAME`. `deletion_key` is text,
    json:FIELD or avro, whose schema is "string", and `deleted_if` is FIELD=TEXT, both as in docs/ids.md.
    """

    contract: Contract
    unique_by: str | None = None
    sequence_by: str | None = None
    lateness: tuple[Lateness, ...] = (Lateness(7 * 24 * 3600),)
    future_tolerance_s: int = 300
    earliest_us: int = EARLIEST_US
    deletion_key: str = "text"
    deleted_if: str | None = None


@dataclass(frozen=True)
class Alone:
    """A single record: the rules that it breaks, and what is known about it; None means unknown.

    `row` is the silver row, and is only meaningful if no rule is broken.
    """

    rules: frozenset[str]
    id: str | None = None
    sequence: int | None = None
    event_time_us: int | None = None
    row: Mapping[str, Any] = field(default_factory=dict)
    is_deletion: bool = False


def looked_at(record: Record, settings: Settings) -> Alone:
    """Judge a single record, except for lateness."""
    if record.refused is not None:
        return Alone(frozenset({record.refused}))
    is_deletion = (
        record.value is None and settings.sequence_by is not None and not settings.contract.tombstone
    )
    headers = dict(_from_headers(record, settings))
    if is_deletion:
        id_, rule = _deleted(record.key, settings.deletion_key)
        rules = frozenset({rule} if rule else ())
        return Alone(rules, id=id_, sequence=headers.get("sequence"), is_deletion=True)
    envelope = _marked(record.value, settings)
    if envelope is not None:
        return _deleted_by_mark(envelope, settings)
    judged = judge_record(
        settings.contract,
        record.value,
        record.kafka_timestamp_ms,
        record.ingested_at_us,
        None,
        key=record.key,
        future_tolerance_s=settings.future_tolerance_s,
        earliest_us=settings.earliest_us,
    )
    reasons = {rule for rule, _ in judged.reasons}
    if record.value is not None:
        lacking = {"unique_id": "missing_id", "sequence": "bad_sequence"}
        reasons |= {lacking[name] for name, value in headers.items() if value is None}
    seen = {**judged.seen, **headers}
    times = {"event_time": judged.event_time_us, "own_time": judged.own_time_us}
    return Alone(
        frozenset(reasons),
        id=seen.get(_column(settings, settings.unique_by, "unique_id")),
        sequence=seen.get(_column(settings, settings.sequence_by, "sequence")),
        event_time_us=seen.get("event_time"),
        row={**judged.columns, **headers, **times},
    )


def _column(settings: Settings, name: str | None, of_header: str) -> str:
    if name is None or name.startswith("header:"):
        return of_header
    return next(one.column for one in settings.contract.fields if one.name == name)


def _deleted(key: bytes | None, form: str) -> tuple[str | None, str | None]:
    """Return the id that a record without a value deletes, or the rule that its key breaks."""
    if not key:
        return None, "key_null" if key is None else "key_empty"
    if form == "avro":
        return _in_avro(key)
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return None, "key_not_utf8"
    if form == "text":
        return text, None
    id_ = _id_at(_object(key) or {}, form.removeprefix("json:"))
    return id_, None if id_ else "bad_key"


def _in_avro(key: bytes) -> tuple[str | None, str | None]:
    """Decode a text of less than 64 bytes: a zero, the schema's id, twice the length, and the bytes."""
    if len(key) < _FRAME or key[0]:
        return None, "not_framed"
    length, text = key[_FRAME : _FRAME + 1], key[_FRAME + 1 :]
    is_whole = length == bytes([2 * len(text)])
    return (text.decode(), None) if is_whole else (None, "undecodable")


def _marked(value: bytes | None, settings: Settings) -> Mapping[str, Any] | None:
    """Return the record as an object if it is marked as a deletion, or None."""
    if settings.deleted_if is None:
        return None
    record = _object(value)
    path, _, mark = settings.deleted_if.partition("=")
    return record if record is not None and _at(record, path) == mark else None


def _deleted_by_mark(record: Mapping[str, Any], settings: Settings) -> Alone:
    """Judge a record that is marked as a deletion; an id in `after` is looked up in `before` instead.

    Only its id and sequence are checked.
    """
    path, sequence_path = settings.unique_by or "", settings.sequence_by or ""
    id_ = _id_at(record, f"before.{path.removeprefix('after.')}" if path.startswith("after.") else path)
    number = None if sequence_path.startswith("after.") else _at(record, sequence_path)
    sequence = number.integer if isinstance(number, Number) and number.is_integer else None
    rule = None if sequence is not None or number is None else "bad_sequence"
    if id_ is None:
        rule = "missing_id"
    return Alone(frozenset({rule} if rule else ()), id=id_, sequence=sequence, is_deletion=True)


def _id_at(record: Mapping[str, Any], path: str) -> str | None:
    value = _at(record, path)
    if isinstance(value, Number):
        return str(value.integer) if value.is_integer else None
    return value if isinstance(value, str) and value else None


def _at(record: Mapping[str, Any], path: str) -> Any:
    place = within(record, path)
    return None if place is None else place[0].get(place[1])


def _object(text: bytes | None) -> Mapping[str, Any] | None:
    try:
        parsed = parse((text or b"").decode())
    except ValueError:
        return None
    return dict(parsed) if isinstance(parsed, Pairs) else None


def _from_headers(record: Record, settings: Settings) -> Iterator[tuple[str, Any]]:
    """Yield the id and the sequence from headers, with None for a header that is absent or unreadable."""
    for column, name in (("unique_id", settings.unique_by), ("sequence", settings.sequence_by)):
        if name is None or not name.startswith("header:"):
            continue
        named = [value for key, value in record.headers if key == name.removeprefix("header:")]
        text = _decoded(named[-1]) if named else None
        if column == "sequence":
            is_whole = text is not None and re.fullmatch("-?[0-9]{1,19}", text)
            whole = int(text or 0) if is_whole else 2**63
            yield column, whole if -(2**63) <= whole < 2**63 else None
        else:
            yield column, text or None


def _decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
