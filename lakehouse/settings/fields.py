"""Field types for settings (sections, durations, sizes, lists, times), and the merging of tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_settings import NoDecode

from lakehouse.common.quantities import parse_duration_s, parse_size_bytes

CENTURY_S = 36_525 * 24 * 3600


class Section(BaseModel):
    """A section of the settings. If a field's name includes a unit, the field's alias is the key."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _text_of(given: object) -> str:
    """Return text unchanged, a number as text without a unit, and any other value as an empty string."""
    return str(given) if isinstance(given, str | int | float) and not isinstance(given, bool) else ""


def duration_s(given: object) -> int:
    """Parse a duration into seconds. Raises ValueError for a number, because it has no unit."""
    return parse_duration_s(_text_of(given))


def duration_or_never_s(given: object) -> int | None:
    """Parse a duration into seconds, or `never` into None."""
    return None if given == "never" else duration_s(given)


def size_bytes(given: object) -> int:
    """Parse a size into bytes. Raises ValueError for a number, because it has no unit."""
    return parse_size_bytes(_text_of(given))


def listed(names: object) -> object:
    """Split comma-separated names. Other values are returned unchanged."""
    return tuple(filter(None, map(str.strip, names.split(",")))) if isinstance(names, str) else names


def moment(given: object) -> datetime:
    """Parse an ISO 8601 date or time, in UTC unless it has an offset. Pydantic would also accept a number."""
    if isinstance(given, str):
        try:
            given = datetime.fromisoformat(given)
        except ValueError:
            given = None
    if isinstance(given, date) and not isinstance(given, datetime):
        given = datetime(given.year, given.month, given.day, tzinfo=UTC)
    if not isinstance(given, datetime):
        raise ValueError("it must be a date such as 2000-01-01, or a time such as 2000-01-01T00:00:00Z")  # noqa: TRY004
    return given.astimezone(UTC) if given.tzinfo else given.replace(tzinfo=UTC)


Duration = Annotated[int, BeforeValidator(duration_s)]
DurationOrNever = Annotated[int | None, BeforeValidator(duration_or_never_s)]
Size = Annotated[int, BeforeValidator(size_bytes)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(listed)]
Moment = Annotated[datetime, BeforeValidator(moment)]


def is_read_by(metadata: list[Any], *readers: Callable[[Any], Any]) -> bool:
    """Return whether one of these functions parses a field that has this metadata."""
    return any(isinstance(one, BeforeValidator) and one.func in readers for one in metadata)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the table `over` into a copy of the table `base`, key by key. Lists are replaced, not merged."""
    both = dict(base)
    for name, value in over.items():
        own = both.get(name)
        both[name] = merged(own, value) if isinstance(own, Mapping) and isinstance(value, Mapping) else value
    return both
