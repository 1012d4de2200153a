"""Malformed samples. Each breakage turns a valid record into a message with a single fault.

A stream's breakages are functions in a dictionary, keyed by name. A `Breaker` applies them in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from itertools import cycle
from typing import Any

from lakehouse.dev.samples.mixing import compact

Record = dict[str, Any]
Breakage = Callable[[Record], bytes | None]

_TIME = "timestamp"
_FUTURE = "timestamp_in_the_future"


class Breaker:
    """A callable that applies the given breakages in turn, one to each record.

    If the breakage is a time in the future, that time is `ahead_s` seconds after the record's own time.
    """

    def __init__(self, breakages: Mapping[str, Breakage], ahead_s: float) -> None:
        self._turns = cycle(breakages.items())
        self._ahead_ms = round(ahead_s * 1000)

    def __call__(self, record: Record) -> tuple[str, bytes | None]:
        """Apply the next breakage to a valid record, and return the malformed sample's kind and value."""
        name, broken = next(self._turns)
        if name == _FUTURE:
            record = {**record, _TIME: record[_TIME] + self._ahead_ms}
        return kind(name), broken(record)


def kind(name: str) -> str:
    """Return the sample kind for the breakage with this name."""
    return f"malformed:{name}"


def kinds(names: Iterable[str]) -> tuple[str, ...]:
    """Return the sample kinds for several breakages."""
    return tuple(map(kind, names))


def of_the_message(*, text: str, number: str, words: Iterable[str]) -> dict[str, Breakage]:
    """Return faults that can be injected into any message: invalid UTF-8, invalid JSON, or not an object.

    The arguments are field names. The value of the string field `text` is cut off in the middle of a
    character. Two faults replace the message with the value of `number`, or with the values of `words`.
    """
    words = tuple(words)

    def truncated_utf8(record: Record) -> bytes:  # a multi-byte character ends after its first byte
        whole = "é"
        return dumps({**record, text: f"caf{whole}"}).replace(whole.encode(), whole.encode()[:1])

    def truncated_json(record: Record) -> bytes:
        whole = compact(record)
        return whole[: len(whole) // 2].encode()

    return {
        "not_utf8": lambda record: b"\xff\xfe" + dumps(record),
        "truncated_utf8": truncated_utf8,
        "not_json": lambda record: " ".join(str(record[word]) for word in words).encode(),
        "truncated_json": truncated_json,
        "trailing_garbage": lambda record: dumps(record) + b" }]",
        "second_object": lambda record: dumps(record) * 2,
        "array": lambda record: dumps([record]),
        "number": lambda record: dumps(record[number]),
        "string": lambda record: dumps(compact(record)),
        "null_literal": lambda _: b"null",
        "empty": lambda _: b"",
        "blank": lambda _: b"  \n",
    }


def of_a_tombstone() -> dict[str, Breakage]:
    """Return the fault of a null value, for streams that do not accept tombstones."""
    return {"tombstone": lambda _: None}


def of_a_name(column: str, field: str) -> dict[str, Breakage]:
    """Return the faults that can be injected into a required string field."""
    return {
        f"{column}_missing": without(field),
        f"{column}_null": with_value(field, None),
        f"{column}_empty": with_value(field, ""),
        f"{column}_number": with_value(field, 17),
        f"{column}_object": with_value(field, {"name": "ada"}),
    }


def of_a_decimal(field: str) -> dict[str, Breakage]:
    """Return the faults that can be injected into a required decimal(38,9) field."""
    return {
        f"{field}_missing": without(field),
        f"{field}_null": with_value(field, None),
        f"{field}_string": with_value(field, "12.5"),
        f"{field}_boolean": with_value(field, True),
        f"{field}_object": with_value(field, {"value": 12.5}),
        f"{field}_nan": with_literal(field, b"NaN"),
        f"{field}_infinity": with_literal(field, b"Infinity"),
        f"{field}_minus_infinity": with_literal(field, b"-Infinity"),
        f"{field}_overflow": with_literal(field, b"1e400"),
        f"{field}_too_large": with_literal(field, b"1e30"),
        f"{field}_too_many_digits": with_literal(field, b"1" + b"0" * 29),
        f"{field}_too_many_decimals": with_literal(field, b"0.1234567891"),
        f"{field}_too_small": with_literal(field, b"1e-10"),
    }


def of_the_time() -> dict[str, Breakage]:
    """Return the faults that can be injected into the timestamp field.

    The last fault, a time in the future, takes effect only if a Breaker applies it.
    """
    return {
        "timestamp_boolean": with_value(_TIME, True),
        "timestamp_not_a_date": with_value(_TIME, "yesterday at noon"),
        "timestamp_without_offset": _local_time,
        _FUTURE: dumps,
    }


def dumps(record: object) -> bytes:
    """Return a value as the message that a producer would send."""
    return compact(record).encode()


def without(field: str) -> Breakage:
    """Return a breakage that omits a field."""
    return lambda record: dumps({name: value for name, value in record.items() if name != field})


def with_value(field: str, value: object) -> Breakage:
    """Return a breakage that replaces a field's value."""
    return lambda record: dumps({**record, field: value})


def with_literal(field: str, literal: bytes) -> Breakage:
    """Return a breakage that replaces a field's value with a literal that json.dumps cannot write."""
    mark = "\x00"
    return lambda record: dumps({**record, field: mark}).replace(dumps(mark), literal)


def _local_time(record: Record) -> bytes:
    moment = datetime.fromtimestamp(record[_TIME] / 1000, UTC)
    return dumps({**record, _TIME: moment.strftime("%Y-%m-%dT%H:%M:%S")})
