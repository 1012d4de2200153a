"""Choose the event time, key and value from the fields in the samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from lakehouse.common.errors import SettingsError
from lakehouse.common.printable import cut, printable
from lakehouse.dev.scaffold.samples import (
    KEY_WORDS,
    TIME_WORDS,
    VALUE_WORDS,
    Seen,
    Time,
    listed,
    shown,
    time_of,
)
from lakehouse.streams.contract import FieldType

_NUMBERS = (FieldType.LONG, FieldType.DECIMAL, FieldType.DOUBLE)
PAIR = 2
_KEYS = (FieldType.STRING, FieldType.LONG)
_MOST_PAIRED, _MOST_SHOWN = 20, 20


@dataclass(frozen=True)
class Chosen:
    """A chosen field, and the reason for the choice.

    If the user named the field, the reason is empty, or only says which values are not numbers.
    """

    field: Seen
    why: str


@dataclass(frozen=True)
class ChosenTime:
    """The event-time field, the format of its values, and the reason for the choice."""

    field: Seen
    time: Time
    why: str


def choose_time(fields: Sequence[Seen], named: str | None) -> ChosenTime | None:
    """Return the event-time field, or None if no field looks like an event time.

    Raises SettingsError if a named field does not exist, or if its values are not times.
    """
    times = {field.path: time for field in fields if (time := time_of(field)) is not None}
    if named is not None:
        field = _named("--time", named, fields)
        if named not in times:
            raise SettingsError(
                f"--time {printable(named)}: its values are not times in the years 2000 to 2099; expected a "
                "number of s, ms, us or ns since 1970, or ISO 8601 such as 2026-03-01T12:00:00Z"
            )
        return _time(field, times[named])
    hinted = [field for field in fields if field.path in times and _is_likely(field, times[field.path])]
    if not hinted:
        return None
    best = max(hinted, key=lambda field: (field.path == "timestamp", len(field.values), bool(_hints(field))))
    return _time(best, times[best.path])


def _time(field: Seen, time: Time) -> ChosenTime:
    return ChosenTime(field, time, f"{field.how_often}, {time.said}{field.remark}")


@dataclass(frozen=True)
class _Part:
    """A role that a field can have: its CLI option, description, allowed types, and ranking function."""

    option: str
    what: str
    types: Collection[FieldType]
    rank: Callable[[Seen], tuple[int, ...]]


def _value_rank(field: Seen) -> tuple[int, ...]:
    return (
        len(field.words & VALUE_WORDS),
        -len(field.words & KEY_WORDS),
        int(field.type is not FieldType.LONG),
    )


def _key_rank(field: Seen) -> tuple[int, ...]:
    """Return a rank for a key field. Repeated values count most, then the field's name, then its type."""
    is_shared = len(set(map(str, field.values))) < max(len(field.values), 2)
    is_text = field.type is FieldType.STRING
    return int(is_shared), int(bool(field.words & KEY_WORDS)), int(is_text)


_VALUE = _Part("--value", "a number", _NUMBERS, _value_rank)
_KEY = _Part("--by", "a string or whole number", _KEYS, _key_rank)


def choose_value(fields: Sequence[Seen], taken: Collection[Seen], named: str | None) -> Chosen:
    """Return the numeric field to use as the value.

    Raises SettingsError if there is none, or if the value is more likely in a field that a stream cannot read
    by default: one with numbers as text, or one of two fields of which each sample has exactly one.
    """
    free = [field for field in fields if field not in taken]
    is_likely = named is not None or any(field.words & VALUE_WORDS for field in _fitting(_VALUE, free))
    if not is_likely and (why := _unread_value(free)) is not None:
        raise SettingsError(why)
    return _choose(_VALUE, fields, taken, named)


def choose_key(fields: Sequence[Seen], taken: Collection[Seen], last: Collection[Seen]) -> Chosen:
    """Return the field to use as a key, preferably not one of `last`.

    Raises SettingsError if there is none.
    """
    texts = [field.as_text for field in fields]
    likely = [field for field in texts if field not in last]
    return _choose(_KEY, likely if has_key(likely, taken) else texts, taken, None)


def named_key(fields: Sequence[Seen], named: str) -> Chosen:
    """Return the field that the user named as a key. Raises SettingsError if it cannot be one."""
    return _choose(_KEY, [field.as_text for field in fields], (), named)


def has_key(fields: Sequence[Seen], taken: Collection[Seen]) -> bool:
    """Return whether one of the fields, apart from those in `taken`, can be a key."""
    return bool(_fitting(_KEY, [field for field in fields if field not in taken]))


def choose_pair(
    by: Sequence[str], fields: Mapping[str, Sequence[Seen]], times: Mapping[str, ChosenTime | None]
) -> tuple[Seen, Seen]:
    """Return the fields for the two parties to a call. Both are strings in all records of all topics.

    Raises SettingsError if there are no such fields.
    """
    first, *others = ([field.as_text for field in found] for found in fields.values())
    common = [
        field
        for field in first
        if field.type is FieldType.STRING
        and field.is_required
        and all(time is None or time.field.path != field.path for time in times.values())
        and all(any(one.path == field.path and one.is_required for one in other) for other in others)
    ]
    if by:
        common = [field for path in by for field in common if field.path == path]
    if len(common) < PAIR:
        raise SettingsError(
            "the parties to a call are two strings that every record of every topic has; found "
            f"{printable(listed([field.path for field in common])) or 'none'}: specify both with --by"
        )
    return common[0], common[1]


def choose_payload(topic: str, others: Sequence[Seen], fields: Mapping[str, Sequence[Seen]]) -> Seen:
    """Return the payload field: a field that only this topic has, preferably an object or array.

    Raises SettingsError if there is no such field.
    """
    elsewhere = {field.path for name, found in fields.items() if name != topic for field in found}
    own = [field for field in others if field.path not in elsewhere]
    if not own:
        raise SettingsError(
            f"the samples of {topic} have no field that other topics lack, so none can be the payload"
        )
    return max(own, key=lambda field: (field.type is FieldType.JSON, len(field.values)))


def _choose(part: _Part, fields: Sequence[Seen], taken: Collection[Seen], named: str | None) -> Chosen:
    if named is not None:
        field = _named(part.option, named, fields)
        if field.type not in part.types:
            kind = field.type.value
            if part.types is _NUMBERS and field.has_numbers_as_text:
                raise SettingsError(f"{part.option}: {_as_text(field)}")
            raise SettingsError(
                f"{part.option} {printable(named)}: its values have the type {kind}; expected {part.what}"
            )
        return Chosen(field, field.said if field.spoilers else "")
    fitting = _fitting(part, [field for field in fields if field not in taken])
    if not fitting:
        names = printable(listed([field.path for field in fields]))
        raise SettingsError(
            f"no field is {part.what} in every sample: specify one with {part.option}; fields: {names}"
        )
    best = max(fitting, key=part.rank)
    others = listed([field.path for field in fitting if field is not best])
    why = f"{part.what} {best.how_often}{best.remark}"
    return Chosen(best, f"{why}; others: {others}" if others else why)


def _fitting(part: _Part, fields: Sequence[Seen]) -> list[Seen]:
    return [field for field in fields if field.type in part.types and field.is_required]


def _unread_value(fields: Sequence[Seen]) -> str | None:
    """Return why the samples have no value that a stream can read, or None if nothing looks like one."""
    numeric = [field for field in fields if field.type in _NUMBERS or field.has_numbers_as_text]
    optional = [field for field in numeric if 0 < len(field.at) < len(field.samples)]
    for one, other in combinations(optional[:_MOST_PAIRED], 2):
        if sorted((*one.at, *other.at)) == list(range(len(one.samples))):
            first, second = sorted((one, other), key=lambda field: field.has_numbers_as_text)
            names = [printable(shown(field.path)) for field in (first, second)]
            return (
                f"each sample has either {names[0]} or {names[1]}, and a stream reads its value from one "
                f"field: with --value {names[0]}, samples without it become dead letters "
                f"({len(second.at):,} of {len(second.samples):,})"
            )
    as_text = [field for field in numeric if field.has_numbers_as_text and field.words & VALUE_WORDS]
    return _as_text(as_text[0]) if as_text else None


def _as_text(field: Seen) -> str:
    return (
        f"{printable(shown(field.path))} is a number written as text, such as "
        f"{cut(json.dumps(field.values[0]), _MOST_SHOWN)}, which a stream reads as a number only with "
        "accepts_text = true: name another field with --value for now, and then set, in the table, "
        f"value = {{ name = {json.dumps(field.path)}, accepts_text = true }}"
    )


def _named(option: str, path: str, fields: Sequence[Seen]) -> Seen:
    for field in fields:
        if field.path == path:
            return field
    known = printable(listed([field.path for field in fields]))
    raise SettingsError(f"{option} {printable(path)}: no sample has such a field; known: {known}")


def _is_likely(field: Seen, time: Time) -> bool:
    """Return whether a field is probably a time, judging by its format. For numbers, the name decides."""
    return time.unit is None or bool(_hints(field))


def _hints(field: Seen) -> frozenset[str]:
    return field.words & TIME_WORDS
