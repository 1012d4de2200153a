"""Kafka records as JSON lines, the input of `lakehouse try` and `lakehouse produce file`.

A line is a record's value, byte for byte, or an envelope: a JSON object that also contains the record's other
fields.

    {"key": "ann", "value": {"userId": "ann", "amount": 12.50}, "timestamp_ms": 1777896000000}
    {"key": "pen", "value": null, "partition": 1, "topic": "sales-events-v1", "headers": {"trace": "7f"}}

| field | meaning |
| --- | --- |
| value | any JSON value, kept exactly as written; null is a tombstone |
| value_base64 | replaces value: bytes, which need not be JSON |
| key | text; if it is absent or null, the record has no key |
| key_base64 | replaces key: bytes |
| headers | an object of strings (or nulls), or a list of [name, string] if a name is repeated |
| topic | the topic, for a stream that reads several topics |
| partition, offset | the record's coordinates |
| timestamp_ms | Kafka's timestamp, in epoch milliseconds |
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from lakehouse.common.errors import SettingsError

STANDARD_INPUT = "-"

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")
_KNOWN = (
    "value",
    "value_base64",
    "key",
    "key_base64",
    "headers",
    "topic",
    "partition",
    "offset",
    "timestamp_ms",
)
_LONG = range(-(2**63), 2**63)
_INT = range(2**31)

Headers = tuple[tuple[str, bytes | None], ...]
RecordFormat = Literal["json", "avro", "json-schema", "protobuf"]
"""The format of a record's value.

In every format except json, the value begins with five bytes: a zero byte and the schema's id.
"""


@dataclass(frozen=True)
class Record:
    """A Kafka record. A value of None is a tombstone.

    `timestamp_ms` is in epoch milliseconds. If it, `topic`, `partition` or `offset` is None, the code that
    uses the record chooses the value.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None
    offset: int | None = None
    topic: str | None = None


@dataclass(frozen=True)
class Line:
    """A record, with the file and line number (from 1) that it was read from."""

    record: Record
    file: str
    number: int

    @property
    def place(self) -> str:
        """The location as file:line, which editors understand."""
        return f"{self.file}:{self.number}"


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """Open a file of record lines, or standard input for "-". Raises SettingsError if it cannot be opened."""
    if path == STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    with ExitStack() as open_:
        try:
            file = open_.enter_context(Path(path).open("rb"))
        except OSError as error:
            raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
        yield file


def read_lines(lines: Iterable[bytes], file: str, *, envelopes: bool) -> Iterator[Line]:
    """Yield the records in a file's lines, skipping blank lines.

    With `envelopes`, a line that is not an envelope raises SettingsError, which names the file and the line.
    """
    named = "standard input" if file == STANDARD_INPUT else file
    for number, line in enumerate(lines, start=1):
        text = line.rstrip(b"\r\n")
        if not text.strip():
            continue
        if not envelopes:
            yield Line(Record(text), named, number)
            continue
        try:
            yield Line(_from_envelope(text), named, number)
        except (ValueError, RecursionError) as error:
            raise SettingsError(f"{named}:{number} is not an envelope: {error}") from error


def envelope_of(record: Record) -> str:
    """Return a record as an envelope on one line, from which `read_lines` returns the same record.

    A value that is JSON on one line is written unchanged, any other value in Base64. Headers that are not
    UTF-8 are left out, so `read_lines` does not return them.
    """
    parts: dict[str, Any] = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    parts["timestamp_ms"] = record.timestamp_ms
    key = _as_text(record.key)
    parts |= {"key": key} if key is not None else {"key_base64": _as_base64(record.key)}
    headers = [(name, value, _as_text(value)) for name, value in record.headers]
    parts["headers"] = [
        [name, text] for name, value, text in headers if (value is None) == (text is None)
    ] or None
    is_json = record.value is not None and _is_json_line(record.value)
    if not is_json:
        parts["value_base64"] = _as_base64(record.value)
    members = [f"{json.dumps(name)}: {json.dumps(one)}" for name, one in parts.items() if one is not None]
    if record.value is None:
        members.append('"value": null')
    elif is_json:
        members.append(f'"value": {record.value.decode()}')
    return f"{{{', '.join(members)}}}"


def _as_text(value: bytes | None) -> str | None:
    """Return bytes as text, or None if they are not UTF-8."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _as_base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _is_json_line(value: bytes) -> bool:
    """Return whether an envelope can contain a value unchanged. JSON's null would become a tombstone."""
    try:
        return (
            json.loads(value.decode()) is not None
            and value == value.strip()
            and not set(value) & set(b"\r\n")
        )
    except (ValueError, RecursionError):
        return False


def _from_envelope(text: bytes) -> Record:
    found = _members(text.decode("utf-8"))
    if unknown := sorted(found.keys() - set(_KNOWN)):
        raise ValueError(f"unknown field {', '.join(unknown)}; known: {', '.join(_KNOWN)}")
    if len(found.keys() & {"value", "value_base64"}) != 1:
        raise ValueError("expected either value or value_base64; a null value is a tombstone")
    if {"key", "key_base64"} <= found.keys():
        raise ValueError("expected only one of key and key_base64")
    values = {name: value for name, (value, _) in found.items()}
    key = _text("key", values)
    return Record(
        value=_base64("value_base64", values) if "value" not in found else _written(found["value"]),
        key=_base64("key_base64", values) if key is None else key.encode(),
        headers=_headers(values.get("headers")),
        partition=_whole("partition", values, _INT),
        timestamp_ms=_whole("timestamp_ms", values, _LONG),
        offset=_whole("offset", values, range(2**63)),
        topic=_text("topic", values),
    )


def _members(text: str) -> dict[str, tuple[Any, str]]:
    """Return the members of a JSON object: the parsed value and the source text, keyed by name."""
    found: dict[str, tuple[Any, str]] = {}
    at = _after("{", text, 0)
    if text[at : at + 1] == "}":
        at += 1
    else:
        while True:
            name, end = _DECODER.raw_decode(text, at)
            if text[at] != '"':
                raise ValueError("expected a JSON object")
            start = _after(":", text, end)
            value, end = _DECODER.raw_decode(text, start)
            found[name] = value, text[start:end]
            at = _skipped(text, end)
            if text[at : at + 1] != ",":
                break
            at = _skipped(text, at + 1)
        at = _after("}", text, at)
    if _skipped(text, at) != len(text):
        raise ValueError("expected one JSON object on the line, and nothing after it")
    return found


def _after(sign: str, text: str, at: int) -> int:
    """Return the position of the token after `sign`. Raises ValueError unless `sign` is at `at`."""
    at = _skipped(text, at)
    if text[at : at + 1] != sign:
        raise ValueError(f"expected a JSON object; {sign} is missing at character {at + 1}")
    return _skipped(text, at + 1)


def _skipped(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _written(member: tuple[Any, str]) -> bytes | None:
    value, text = member
    return None if value is None else text.encode()


def _text(name: str, values: Mapping[str, Any]) -> str | None:
    value = values.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} must be a string or null, not {json.dumps(value)}")
    return value


def _base64(name: str, values: Mapping[str, Any]) -> bytes | None:
    text = _text(name, values)
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{name} is not Base64: {error}") from error


def _whole(name: str, values: Mapping[str, Any], within: range) -> int | None:
    value = values.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value not in within:
        raise ValueError(f"{name} must be an integer from {within[0]} to {within[-1]}")
    return value


def _headers(value: Any) -> Headers:
    pairs = list(value.items()) if isinstance(value, dict) else value or []
    if not isinstance(pairs, list) or not all(map(_is_header, pairs)):
        raise ValueError("headers must be an object of strings or nulls, or a list of [name, string or null]")
    return tuple((name, None if text is None else text.encode()) for name, text in pairs)


def _is_header(pair: Any) -> bool:
    return (
        isinstance(pair, (list, tuple))
        and len(pair) == len(("name", "text"))
        and isinstance(pair[0], str)
        and (pair[1] is None or isinstance(pair[1], str))
    )
