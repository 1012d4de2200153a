"""Infer fields and types from sample records, and find fields that look like times, keys and amounts.

All results are guesses, and each comes with a reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime
from functools import cached_property
from itertools import islice
from typing import Any

from lakehouse.common.errors import SettingsError
from lakehouse.common.printable import cut, printable
from lakehouse.dev.scaffold.reading import Sample, number_in
from lakehouse.engine.records.event_times import AS_DIGITS, MAIL_TIME
from lakehouse.streams.contract import FieldType, TimeUnit
from lakehouse.streams.kinds.records import column_of
from lakehouse.streams.messages import json_path

Names = tuple[str, ...]

TIME_WORDS = frozenset({"timestamp", "time", "ts", "date", "datetime", "at", "when"})
KEY_WORDS = frozenset(
    {"id", "user", "customer", "account", "product", "sku", "shop", "store", "device", "sensor", "meter"}
    | {"service", "host", "key", "name", "card"}
)
VALUE_WORDS = frozenset(
    {"amount", "value", "price", "total", "sum", "quantity", "qty", "cost", "duration", "latency", "size"}
    | {"bytes", "score", "kwh", "ms"}
)

NUMBERS = (FieldType.LONG, FieldType.DECIMAL, FieldType.DOUBLE)
MOST_FIELDS = 1_000
_MOST_LISTED, _MOST_SHOWN = 10, 60
_MOST_SPOILERS, _MOST_OF_SPOILER = 3, 20
_LONG = range(-(2**63), 2**63)
_MOST_DIGITS, _MOST_PLACES = 29, 9
_LIKELY = (datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))
_PER_SECOND: dict[TimeUnit, int] = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_ISO = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d(:?\d\d)?)?")
_MAIL = re.compile(MAIL_TIME)
_DIGITS = re.compile(r"[0-9]{1,19}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Spoiler:
    """A string in a field that is a number in most samples, with the index and location of its sample."""

    at: int
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.place} ({cut(json.dumps(self.text, ensure_ascii=False), _MOST_OF_SPOILER)})"


@dataclass(frozen=True)
class Seen:
    """A field found in samples: the names on its path, and its non-null values.

    `at` contains the index of each value's sample in `samples`. If the field is kept as text, no string in it
    is a spoiler. `texts` is the number of values that are written as text in the samples, but are numbers in
    `values`; see `as_number`.
    """

    names: Names
    values: tuple[Any, ...]
    at: tuple[int, ...] = field(repr=False)
    samples: Sequence[Sample] = field(repr=False, compare=False)
    is_kept_as_text: bool = field(default=False, compare=False)
    texts: int = field(default=0, compare=False)

    @cached_property
    def path(self) -> str:
        """The path, as it is written in a contract."""
        return json_path.text_of(self.names)

    @cached_property
    def spoilers(self) -> tuple[Spoiler, ...]:
        """The string values of the field, if at least nine in ten values are numbers; otherwise none."""
        numbers = [value for value in self.values if not isinstance(value, str)]
        is_number = 10 * len(numbers) >= 9 * len(self.values)
        if self.is_kept_as_text or not is_number or not all(map(_is_number, numbers)):
            return ()
        found = zip(self.at, self.values, strict=True)
        texts = ((at, value) for at, value in found if isinstance(value, str))
        return tuple(Spoiler(at, self.samples[at].line.place, text) for at, text in texts)

    @property
    def as_text(self) -> Seen:
        """The field as a key, which accepts strings as well as numbers."""
        return replace(self, is_kept_as_text=True)

    @cached_property
    def as_number(self) -> Seen | None:
        """The field as a number that may be text, or None if it is a number anyway, or cannot be one.

        At least nine in ten values are numbers then, some or all of them written as text; other strings are
        spoilers.
        """
        if self.type not in (FieldType.STRING, FieldType.JSON):
            return None
        numbers = [number_in(value) if isinstance(value, str) else None for value in self.values]
        pairs = zip(self.values, numbers, strict=True)
        values = tuple(value if number is None else number for value, number in pairs)
        read = replace(self, values=values, texts=sum(number is not None for number in numbers))
        return read if read.texts and read.type in NUMBERS else None

    @cached_property
    def fitting(self) -> tuple[Any, ...]:
        """The values that fit the field's type: all except those in `spoilers`."""
        if not self.spoilers:
            return self.values
        return tuple(value for value in self.values if not isinstance(value, str))

    @cached_property
    def is_required(self) -> bool:
        """Whether every sample contains the field, and no fitting value is an empty string."""
        return len(self.values) == len(self.samples) and "" not in self.fitting

    @property
    def lacking(self) -> tuple[int, ...]:
        """The indexes of the samples that lack the field, or have an empty string in a field of strings."""
        having = {at for at, value in zip(self.at, self.values, strict=True) if value != "" or self.spoilers}
        return tuple(at for at in range(len(self.samples)) if at not in having)

    @property
    def how_often(self) -> str:
        """The number of samples with a fitting value, as text."""
        count, every = len(self.fitting), len(self.samples)
        return f"in all {every} samples" if count == every else f"in {count} of {every} samples"

    @property
    def remark(self) -> str:
        """Text that lists the first few spoilers, to end a sentence with. It is empty if there are none."""
        if not self.spoilers:
            return ""
        more = len(self.spoilers) - _MOST_SPOILERS
        first = ", ".join(map(str, self.spoilers[:_MOST_SPOILERS]))
        return f"; not in {first} and {more:,} more" if more > 0 else f"; not in {first}"

    @property
    def said(self) -> str:
        """Text with the number of samples that contain the field and, if it is a number, the exceptions."""
        if self.texts:
            some = f"numbers, {self.texts:,} of them written as text,"
            what = "numbers written as text" if self.texts == len(self.fitting) else some
            return f"{what} {self.how_often}, so accepts_text = true{self.remark}"
        if self.has_numbers_as_text:
            return f"{self.how_often}, numbers written as text"
        return f"a number {self.how_often}{self.remark}" if self.spoilers else self.how_often

    @cached_property
    def has_numbers_as_text(self) -> bool:
        """Whether all values are strings with a number, such as "12.50"."""
        return all(isinstance(value, str) and number_in(value) is not None for value in self.values)

    @property
    def words(self) -> frozenset[str]:
        """The words in the path's last component."""
        return frozenset(column_of(self.names[-1]).split("_"))

    @property
    def last_word(self) -> str:
        """The last of these words, which usually names what the value is."""
        return column_of(self.names[-1]).split("_")[-1]

    @cached_property
    def type(self) -> FieldType:
        """The narrowest type that fits all values except those in `spoilers`."""
        values = self.fitting
        if all(isinstance(value, bool) for value in values):
            return FieldType.BOOLEAN
        if all(isinstance(value, str) for value in values):
            return FieldType.STRING
        if all(map(_is_number, values)):
            return self._number_type()
        if all(isinstance(value, str) or _is_whole(value) for value in values):
            return FieldType.STRING
        return FieldType.JSON

    @property
    def accepts_numbers(self) -> bool:
        """Whether the field is a string whose value is an integer in some records."""
        return self.type is FieldType.STRING and any(map(_is_whole, self.values))

    def _number_type(self) -> FieldType:
        if all(_is_whole(value) and value in _LONG for value in self.fitting):
            return FieldType.LONG
        return FieldType.DECIMAL if all(map(_fits, self.fitting)) else FieldType.DOUBLE


@dataclass(frozen=True)
class Time:
    """The format of a field's times: a number in some unit, ISO 8601 with an offset or in a zone, or mail's.

    Mail's format is RFC 2822.
    """

    unit: TimeUnit | None
    zone: str | None
    is_of_mail: bool = False

    def of(self, value: Any) -> datetime:
        """Return one of the field's values as a UTC time."""
        if self.unit is not None:
            return _EPOCH + timedelta(seconds=float(value) / _PER_SECOND[self.unit])
        read = parsedate_to_datetime if self.is_of_mail else datetime.fromisoformat
        found = read(str(value))
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)

    @property
    def said(self) -> str:
        """A description of the format."""
        if self.unit is not None:
            return f"a number of {self.unit} since 1970"
        if self.is_of_mail:
            return "RFC 2822"
        return "ISO 8601 without an offset" if self.zone else "ISO 8601 with an offset"


def shown(path: str) -> str:
    """Return a path, truncated if it is long."""
    return path if len(path) <= _MOST_SHOWN else f"{path[: _MOST_SHOWN - 1]}…"


def listed(paths: Sequence[str]) -> str:
    """Return the first few paths as text, with the number of further paths."""
    more = len(paths) - _MOST_LISTED
    first = ", ".join(map(shown, paths[:_MOST_LISTED]))
    return f"{first} and {more:,} more" if more > 0 else first


def fields_of(samples: Sequence[Sample], *, deep: bool = True) -> list[Seen]:
    """Return the fields in the samples, in order of first appearance. `deep` includes nested fields.

    Two kinds of fields are skipped: a field that is always null, because it has no type, and a field whose
    name cannot be written as a path. Raises SettingsError if there are too many fields.
    """
    found: dict[Names, list[tuple[int, Any]]] = {}
    for at, sample in enumerate(samples):
        for names, value in _leaves(sample.value, (), deep=deep):
            found.setdefault(names, []).append((at, value))
    if len(found) > MOST_FIELDS:
        first = listed([json_path.text_of(names) for names in islice(found, _MOST_LISTED)])
        raise SettingsError(
            f"the samples have {len(found):,} fields, such as {printable(first)}; expected at most "
            f"{MOST_FIELDS:,}: leave out fields that the stream does not need, or whose names are data"
        )
    mixed = {outer for names in found for outer in _outer(names) if outer in found}
    seen = []
    for names, leaves in found.items():
        if not mixed.isdisjoint(_outer(names)) or not _has_path(names):
            continue
        every = leaves
        if names in mixed:
            whole = ((at, value_at(sample.value, names)) for at, sample in enumerate(samples))
            every = [(at, value) for at, value in whole if value is not None]
        places, values = zip(*every, strict=True)
        seen.append(Seen(names, values, places, samples))
    return seen


def value_at(record: Mapping[str, Any], names: Names) -> Any:
    """Return the value at a path, or None if the record has none."""
    value: Any = record
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def time_of(field: Seen) -> Time | None:
    """Return the format of a field's times, or None unless all values are times in this century."""
    if field.type is FieldType.STRING and not field.accepts_numbers:
        return _time_of_text(field)
    if field.type not in (FieldType.LONG, FieldType.DECIMAL):
        return None
    for unit in _PER_SECOND:
        within = all(_is_likely(value, unit) for value in field.fitting)
        if within and (unit == "s" or field.type is FieldType.LONG):
            return Time(unit, None)
    return None


def _time_of_text(field: Seen) -> Time | None:
    for unit in AS_DIGITS if all(map(_DIGITS.fullmatch, field.values)) else ():
        if all(_is_likely(int(value), unit) for value in field.values):
            return Time(unit, None)
    if all(_MAIL.fullmatch(value) and _is_moment(value, parsedate_to_datetime) for value in field.values):
        return Time(None, None, is_of_mail=True)
    found = [_ISO.fullmatch(value) if _is_moment(value) else None for value in field.values]
    if not all(found):
        return None
    return Time(None, None if all(one and one[3] for one in found) else "UTC")


def _is_likely(number: int | Decimal, unit: TimeUnit) -> bool:
    first, last = (int(bound.timestamp()) * _PER_SECOND[unit] for bound in _LIKELY)
    return first <= number <= last


def _is_moment(value: str, read: Callable[[str], datetime] = datetime.fromisoformat) -> bool:
    try:
        read(value)
    except ValueError:
        return False
    return True


def _leaves(value: Mapping[str, Any], names: Names, *, deep: bool) -> Iterator[tuple[Names, Any]]:
    for name, one in value.items():
        if deep and isinstance(one, dict) and one:
            yield from _leaves(one, (*names, name), deep=True)
        elif one is not None:
            yield (*names, name), one


def _outer(names: Names) -> list[Names]:
    """Return the paths of all objects that contain a field."""
    return [names[:length] for length in range(1, len(names))]


def _has_path(names: Names) -> bool:
    try:
        "".join(names).encode()
        return all(names) and json_path.names_of(json_path.text_of(names)) == names
    except ValueError:
        return False


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, Decimal) or _is_whole(value)


def _fits(value: Any) -> bool:
    exact = Decimal(value)
    try:
        exponent = exact.normalize().as_tuple().exponent
    except ArithmeticError:  # outside the range of the decimal context
        return False
    is_fine = isinstance(exponent, int) and -exponent <= _MOST_PLACES
    return is_fine and abs(exact) < Decimal(10) ** _MOST_DIGITS
