"""The sample records that a new stream refuses, for its first dead-letter test.

These are the lines that are left out of the samples, the samples with a string where most have a number, and
those that lack the value or a field of the key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from lakehouse.dev.scaffold.reading import Samples
from lakehouse.dev.scaffold.samples import Names, Seen, value_at
from lakehouse.dev.scaffold.texts import Record, Refused

EVENT_TIME = "event_time"
"""The column of the event time in dead letters."""
_MOST_RECORDS, _MOST_LENGTH = 10, 1_000

Spoilt = Mapping[int, Collection[str]]
"""Maps the index of a sample to the columns in which it has a string instead of a number, or no value."""


def spoilt_by(
    fields: Iterable[tuple[Seen, str]], required: Iterable[tuple[Seen, str]] = ()
) -> dict[int, list[str]]:
    """Return which samples have a string in a field that is declared as a number, and in which columns.

    The samples that lack one of the `required` fields are included.
    """
    found: dict[int, list[str]] = {}
    for field, column in fields:
        for spoiler in field.spoilers:
            found.setdefault(spoiler.at, []).append(column)
    for field, column in required:
        for at in field.lacking:
            found.setdefault(at, []).append(column)
    return found


def mended(record: Record, fields: Iterable[Seen]) -> Record:
    """Return a record in which a number replaces each string in a field that is declared as a number."""
    for field in fields:
        if field.spoilers and isinstance(value_at(record, field.names), str):
            record = with_value(record, field.names, field.fitting[0])
    return record


def with_value(record: Record, names: Names, value: Any) -> dict[str, Any]:
    """Return a copy of a record in which the value at a path is replaced."""
    first, *rest = names
    return {**record, first: with_value(record[first], tuple(rest), value) if rest else value}


def refused_of(samples: Samples, spoilt: Spoilt) -> list[Refused]:
    """Return the first few records that are certain to be refused, except long ones."""
    found = [
        Refused(_readable(one.line.record.value or b""), [{"rule": one.rule}])
        for one in samples.left_out
        if one.rule is not None
    ]
    found += [
        Refused(_readable(samples.kept[at].line.record.value or b""), [{"column": name} for name in columns])
        for at, columns in sorted(spoilt.items())
        if EVENT_TIME not in columns  # text may also be an event time
    ]
    return [one for one in found if len(one.value) <= _MOST_LENGTH][:_MOST_RECORDS]


def _readable(value: bytes) -> str | bytes:
    """Return a value as text, or as bytes if it is not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
