"""Choose the event time, key and value from the fields in the samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from lakehouse.common.errors import SettingsError
from lakehouse.common.printable import cut, printable
from lakehouse.dev.scaffold.recognising import PARTS_OF_DATES, is_label, read_as_number
from lakehouse.dev.scaffold.samples import (
    KEY_WORDS,
    NUMBERS,
    TIME_WORDS,
    VALUE_WORDS,
    Seen,
    Time,
    listed,
    shown,
    time_of,
)
from lakehouse.streams.contract import FieldType

PAIR = 2
_KEYS = (FieldType.STRING, FieldType.LONG)
_MOST_PAIRED = 20
_MANY = 20
_MOST_OF_VALUE = 40
_BEGINNING = frozenset({"start", "started", "begin", "begun", "observed"})


@dataclass(frozen=True)
class Chosen:
    """A chosen field, and the reason for the choice.

    If the user named the field, the reason is empty, or only says which values are text.
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
                "number of s, ms, us or ns since 1970, or ISO 8601 such as 2026-03-01T12:00:00Z, not "
                f"{shown_value(field)}"
            )
        return _time(field, times[named])
    hinted = [field for field in fields if field.path in times and _is_likely(field, times[field.path])]
    if not hinted:
        return None
    best = max(hinted, key=_time_rank)
    others = listed([field.path for field in hinted if field is not best])
    return _time(best, times[best.path], f"; others: {others}" if others else "")


def unread_times(fields: Sequence[Seen]) -> str | None:
    """Return why a field of text with the name of a time is not the event time, or None if there is none."""
    for field in fields:
        if field.type is FieldType.STRING and field.words & TIME_WORDS and field.is_required:
            return (
                f"{printable(shown(field.path))} is in neither ISO 8601 nor RFC 2822, but contains text such "
                f"as {shown_value(field)}: have the producer write times such as 2026-03-01T12:00:00Z"
            )
    return None


def _time_rank(field: Seen) -> tuple[bool, int, bool, bool]:
    """Return a rank for an event time. The time at which something began counts less than another one."""
    return field.path == "timestamp", len(field.values), not field.words & _BEGINNING, bool(_hints(field))


def _time(field: Seen, time: Time, others: str = "") -> ChosenTime:
    return ChosenTime(field, time, f"{field.how_often}, {time.said}{field.remark}{others}")


@dataclass(frozen=True)
class _Part:
    """A role that a field can have: its CLI option, description, allowed types, and ranking function.

    `can_have` says whether a field has the role even if nobody names it.
    """

    option: str
    what: str
    types: Collection[FieldType]
    rank: Callable[[Seen], tuple[int, ...]]
    can_have: Callable[[Seen], bool]


def _value_rank(field: Seen) -> tuple[int, ...]:
    return (
        len(field.words & VALUE_WORDS),
        int(field.is_required),
        int(not field.spoilers or bool(field.words & VALUE_WORDS)),
        -len(field.words & KEY_WORDS),
        int(field.type is not FieldType.LONG),
        int(not field.texts),
    )


def _key_rank(field: Seen) -> tuple[int, ...]:
    """Return a rank for a key field. Repeated values count most, then the field's name, then its type."""
    is_shared = len(set(map(str, field.values))) < max(len(field.values), 2)
    is_text = field.type is FieldType.STRING
    return int(is_shared), int(bool(field.words & KEY_WORDS)), int(is_text)


def tells_records_apart(field: Seen) -> bool:
    """Return whether a field is a likely key: no time, no part of a date, not the same in many samples."""
    is_constant = len(field.values) >= _MANY and len(set(map(str, field.values))) == 1
    return not is_constant and not field.words & (TIME_WORDS | PARTS_OF_DATES)


def _is_quantity(field: Seen) -> bool:
    return 10 * len(field.lacking) <= len(field.samples) and not is_label(field)


_VALUE = _Part("--value", "a number", NUMBERS, _value_rank, _is_quantity)
_KEY = _Part("--by", "a string or whole number", _KEYS, _key_rank, lambda field: field.is_required)


def choose_value(fields: Sequence[Seen], taken: Collection[Seen], named: str | None) -> Chosen:
    """Return the numeric field to use as the value, with numbers in place of those that are written as text.

    Raises SettingsError if there is none, or if the value is more likely in one of two fields of which each
    sample has exactly one.
    """
    fields = [field if field in taken else _as_value(field, named) for field in fields]
    free = [field for field in fields if field not in taken]
    is_likely = named is not None or any(field.words & VALUE_WORDS for field in _fitting(_VALUE, free))
    if not is_likely and (why := _unread_value(free)) is not None:
        raise SettingsError(why)
    return _choose(_VALUE, fields, taken, named)


def choose_key(fields: Sequence[Seen], taken: Collection[Seen], last: Collection[Seen]) -> Chosen:
    """Return the field to use as a key, preferably one that tells records apart, and not one of `last`.

    Raises SettingsError if there is none.
    """
    texts = [field.as_text for field in fields]
    likely = [field for field in texts if field not in last]
    best = [field for field in likely if tells_records_apart(field)]
    found = next((some for some in (best, likely) if has_key(some, taken)), texts)
    return _choose(_KEY, found, taken, None)


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
            raise SettingsError(
                f"{part.option} {printable(named)}: its values have the type {kind}; expected {part.what}"
            )
        return Chosen(field, field.said if field.spoilers or field.texts else "")
    fitting = _fitting(part, [field for field in fields if field not in taken])
    if not fitting:
        raise SettingsError(_not_found(part, [field for field in fields if field not in taken]))
    best = max(fitting, key=part.rank)
    others = listed([field.path for field in fitting if field is not best])
    why = best.said if best.texts else f"{part.what} {best.how_often}{best.remark}"
    return Chosen(best, f"{why}; others: {others}" if others else why)


def _fitting(part: _Part, fields: Sequence[Seen]) -> list[Seen]:
    return [field for field in fields if field.type in part.types and part.can_have(field)]


def shown_value(field: Seen) -> str:
    """Return a field's first value as JSON, truncated if it is long."""
    return cut(json.dumps(field.values[0], ensure_ascii=False, default=str), _MOST_OF_VALUE)


def _as_value(field: Seen, named: str | None) -> Seen:
    """Return a field as a number if it can be the value, or if the user named it."""
    return (field.as_number or field) if field.path == named else read_as_number(field)


def _not_found(part: _Part, fields: Sequence[Seen]) -> str:
    """Return the message that no field can have a role unless it is named, with the fields that can."""
    if part is _KEY:
        names = printable(listed([field.path for field in fields]))
        return f"no field is {part.what} in every sample: specify one with {part.option}; fields: {names}"
    message = f"no field is {part.what} in at least nine of ten samples"
    numbers = [
        f"{shown(field.path)} ({len(field.fitting):,} of {len(field.samples):,} samples)"
        for field in fields
        if field.type in part.types and not is_label(field)
    ]
    if numbers:
        return (
            f"{message}: specify one with {part.option}, and records without it become dead letters; or read "
            f"several, in SQL (docs/streams-sql.md); numbers: {printable(listed(numbers))}"
        )
    if arrays := [field.path for field in fields if isinstance(field.values[0], list)]:
        names = printable(listed(arrays))
        return (
            f"{message}; the elements of {names} cannot become records: have the producer send one for each"
        )
    names = printable(listed([field.path for field in fields]))
    return f"{message}: specify one with {part.option}; fields: {names}"


def _unread_value(fields: Sequence[Seen]) -> str | None:
    """Return why the samples have no value in a single field, or None if they are not of two fields."""
    optional = [field for field in fields if field.type in NUMBERS and 0 < len(field.at) < len(field.samples)]
    for one, other in combinations(optional[:_MOST_PAIRED], 2):
        if sorted((*one.at, *other.at)) == list(range(len(one.samples))):
            first, second = sorted((one, other), key=lambda field: field.texts > 0)
            names = [printable(shown(field.path)) for field in (first, second)]
            return (
                f"each sample has either {names[0]} or {names[1]}, and a stream reads its value from one "
                f"field: with --value {names[0]}, samples without it become dead letters "
                f"({len(second.at):,} of {len(second.samples):,})"
            )
    return None


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
