"""The types of values that a stream's keys can have in TOML: durations, fields, topics, numbers, times."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict
from pydantic import Field as Key

from lakehouse.common.errors import SettingsError
from lakehouse.common.quantities import parse_duration_s
from lakehouse.common.readable import parse_moment
from lakehouse.common.zones import is_zone
from lakehouse.settings.fields import CENTURY_S, moment
from lakehouse.streams.contract import MOST_PLACES, Field, FieldType, KeyForm, Mark
from lakehouse.streams.definition import header_of
from lakehouse.streams.kinds.records import column_of
from lakehouse.streams.messages import json_path
from lakehouse.streams.window_lengths import window_length

_EARLIEST, _LATEST = datetime(1900, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
_START = ("earliest", "latest")


class Table(BaseModel):
    """A TOML table. Unknown keys and values of the wrong type are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def given(self, *names: str) -> dict[str, Any]:
        """Return the values of the named keys that are set. A null counts as set only for `to`."""
        values = {name: getattr(self, name) for name in names if name in self.model_fields_set}
        return {name: value for name, value in values.items() if value is not None or name == "to"}


def _duration(least_s: int) -> AfterValidator:
    def check(text: str) -> str:
        seconds = parse_duration_s(text)
        if not least_s <= seconds <= CENTURY_S:
            raise ValueError(f"expected a duration of at least {least_s}s and at most a century")
        return text

    return AfterValidator(check)


def matching(pattern: str, what: str) -> AfterValidator:
    """Return a validator that refuses text that the pattern does not match completely.

    `what` describes valid text.
    """

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"expected {what}")
        return text

    return AfterValidator(check)


def _check_path(path: str) -> str:
    json_path.names_of(path)
    return path


def _check_id(name: str) -> str:
    return name if header_of(name) else _check_path(name)


def _check_window(text: str) -> str:
    if window_length(text).most_s > CENTURY_S:
        raise ValueError("expected a window of at most a century")
    return text


def _check_zone(name: str) -> str:
    if not is_zone(name):
        raise ValueError("expected an IANA time zone, such as Europe/Berlin")
    return name


def _check_key_form(written: str) -> str:
    KeyForm.of(written)
    return written


def _check_mark(written: str) -> str:
    Mark.of(written)
    return written


def _check_start(at: str) -> str:
    if at not in _START:
        try:
            parse_moment(at, datetime.now(UTC))
        except SettingsError as error:
            raise ValueError(f"{error}, or {' or '.join(_START)}") from None
    return at


def _check_moment(at: datetime) -> datetime:
    if not _EARLIEST <= at <= _LATEST:
        raise ValueError(f"expected a time from {_EARLIEST:%Y-%m-%d} to {_LATEST:%Y-%m-%d}")
    return at


def _number(given: object) -> object:
    if isinstance(given, int | float | str) and not isinstance(given, bool):
        try:
            return Decimal(str(given))
        except InvalidOperation:
            pass
    return given


Duration = Annotated[str, _duration(0)]
"""A duration as text. Zero is allowed."""
Length = Annotated[str, _duration(1)]
"""A duration of at least a second."""
WindowSize = Annotated[str, AfterValidator(_check_window)]
"""A duration of at least a second, or day, week or month."""
Moment = Annotated[datetime, BeforeValidator(moment), AfterValidator(_check_moment)]
Path = Annotated[str, AfterValidator(_check_path)]
Id = Annotated[str, AfterValidator(_check_id)]
Zone = Annotated[str, AfterValidator(_check_zone)]
Start = Annotated[str, AfterValidator(_check_start)]
DeletionKey = Annotated[str, AfterValidator(_check_key_form)]
DeletedIf = Annotated[str, AfterValidator(_check_mark)]
Topic = Annotated[
    str,
    matching(r"[a-zA-Z0-9._-]{1,249}", "a topic name: letters, digits, dots, dashes and underscores"),
]
Destination = Annotated[Topic | None, BeforeValidator(lambda given: None if given is False else given)]
"""A topic; false means no topic."""
Threshold = Annotated[Decimal, BeforeValidator(_number), Key(gt=0, max_digits=38, decimal_places=MOST_PLACES)]
Name = Annotated[str, Key(min_length=1)]


class FieldKeys(Table):
    """A field in the records, with the arguments of `lakehouse.streams.Field`."""

    name: Path
    column: Name | None = None
    type: Literal["string", "long", "double", "decimal", "boolean", "json"] | None = None
    required: bool = True
    scale: Annotated[int, Key(ge=0, le=MOST_PLACES)] | None = None
    accepts_numbers: bool = False
    accepts_text: bool = False

    def of(self, type_: FieldType) -> Field:
        """Return the field, with this type unless it declares another one.

        Raises ValueError as Field does.
        """
        column, own = self.column or column_of(self.name), FieldType(self.type) if self.type else type_
        accepts = self.accepts_numbers, self.accepts_text
        return Field(self.name, column, own, self.required, self.scale, *accepts)


def _as_table(given: object) -> object:
    return {"name": given} if isinstance(given, str) else given


def _as_list(given: object) -> object:
    return [given] if isinstance(given, str | dict) else given


OneField = Annotated[FieldKeys, BeforeValidator(_as_table)]
"""A field, given by its name or by a table."""
Fields = Annotated[list[OneField], BeforeValidator(_as_list), Key(min_length=1)]
"""A field, or a list of fields."""
