"""Lengths of tumbling windows: a duration, or the days, weeks or months of a time zone's calendar.

    Seconds(300)                        windows start at multiples of five minutes since the epoch
    Calendar("week", "Europe/Berlin")   windows start on Mondays, at midnight in Berlin

Windows have no gaps and no overlaps, so each time is in exactly one window. A length finds this window in two
ways: with Spark SQL, for timestamps, in a session whose time zone is UTC; and in Python, without a JVM, for
microseconds since the epoch (UTC). Python uses the machine's time zone database, and Spark uses Java's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Literal, cast, get_args
from zoneinfo import ZoneInfo

from lakehouse.common.quantities import parse_duration_s
from lakehouse.common.zones import is_zone
from lakehouse.storage.tables.specs import EPOCH, from_micros

Unit = Literal["day", "week", "month"]
UNITS: tuple[str, ...] = get_args(Unit)

_HOUR_S, _DAY_S = 3_600, 86_400
_LABELS_S = {"d": _DAY_S, "h": _HOUR_S, "m": 60}
_DAYS = {"day": 1, "week": 7, "month": 31}
_SQL_OF_ONE = {"day": "INTERVAL 1 DAY", "week": "INTERVAL 7 DAY", "month": "INTERVAL 1 MONTH"}
_CLOCK_CHANGE_S = 3 * _HOUR_S  # the largest since 2000, in Antarctica/Casey until 2023
_MICROS_PER_S = 1_000_000
_MICROSECOND, _DAY = timedelta(microseconds=1), timedelta(days=1)


class WindowLength(ABC):
    """The length of tumbling windows. A window includes its start and excludes its end."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The length in names of tables, such as 5m or week."""

    @property
    @abstractmethod
    def recorded(self) -> str:
        """The length as a table's properties record it: the number of seconds, or the unit and the zone."""

    @property
    @abstractmethod
    def most_s(self) -> int:
        """The length of the longest window, in seconds."""

    @property
    @abstractmethod
    def divides_days(self) -> bool:
        """Whether a window starts at every midnight UTC."""

    @abstractmethod
    def start(self, time: str) -> str:
        """Return Spark SQL for the start of the window that contains a time. Null if the time is null."""

    @abstractmethod
    def end(self, start: str) -> str:
        """Return Spark SQL for the end of the window with this start. Null if the start is null."""

    @abstractmethod
    def start_of(self, micros: int) -> int:
        """Return the start of the window that contains a time."""

    @abstractmethod
    def end_of(self, start: int) -> int:
        """Return the end of the window with this start."""

    def previous(self, start: int) -> int:
        """Return the start of the window before the one with this start."""
        return self.start_of(start - 1)


@dataclass(frozen=True)
class Seconds(WindowLength):
    """Windows of a number of seconds, which start at multiples of this number since the epoch."""

    seconds: int

    def __post_init__(self) -> None:
        """Raise ValueError for less than a second."""
        if self.seconds < 1:
            raise ValueError(f"a window cannot be {self.seconds}s long: expected at least 1s")

    def __str__(self) -> str:
        return f"{self.seconds} s"

    @property
    def label(self) -> str:
        """The length in the largest unit that needs no fraction: 300 becomes 5m."""
        units = ((unit, length_s) for unit, length_s in _LABELS_S.items() if self.seconds % length_s == 0)
        unit, length_s = next(units, ("s", 1))
        return f"{self.seconds // length_s}{unit}"

    @property
    def recorded(self) -> str:
        """The number of seconds."""
        return str(self.seconds)

    @property
    def most_s(self) -> int:
        """The number of seconds."""
        return self.seconds

    @property
    def divides_days(self) -> bool:
        """Whether a day is a multiple of the length."""
        return _DAY_S % self.seconds == 0

    def start(self, time: str) -> str:
        """Return Spark SQL for the greatest multiple that is not after the time."""
        micros = f"unix_micros({time})"
        return f"timestamp_micros({micros} - pmod({micros}, {self._micros}))"

    def end(self, start: str) -> str:
        """Return Spark SQL for the time that is this many seconds after the start."""
        return f"{start} + INTERVAL {self.seconds} SECONDS"

    def start_of(self, micros: int) -> int:
        """Return the greatest multiple that is not after the time."""
        return micros - micros % self._micros

    def end_of(self, start: int) -> int:
        """Return the time that is this many seconds after the start."""
        return start + self._micros

    @property
    def _micros(self) -> int:
        return self.seconds * _MICROS_PER_S


@dataclass(frozen=True)
class Calendar(WindowLength):
    """Windows of a day, week or month in the calendar of an IANA time zone. A week starts on Monday.

    A window starts at midnight, local time. If the clock skips this midnight, the window starts when the
    clock is put forward; if midnight occurs twice, it starts at the first. A day is therefore 23 or 25 hours
    long if the clock changes by an hour. If a change just after midnight puts the clock back to the day
    before, as in St. John's until 2011, the repeated time belongs to the new day: windows do not overlap.
    """

    unit: Unit
    zone: str = "UTC"

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown unit or zone."""
        if self.unit not in UNITS:
            raise ValueError(f"a unit of the calendar is day, week or month, not {self.unit!r}")
        if not is_zone(self.zone):
            raise ValueError(f"zone {self.zone!r} is not an IANA time zone, such as Europe/Berlin")

    def __str__(self) -> str:
        return self.recorded

    @property
    def label(self) -> str:
        """The unit. The zone is not part of it."""
        return self.unit

    @property
    def recorded(self) -> str:
        """The unit and the zone, such as week (Europe/Berlin)."""
        return f"{self.unit} ({self.zone})"

    @property
    def most_s(self) -> int:
        """The length of the longest window since 2000, in which the clock is put back."""
        return _DAYS[self.unit] * _DAY_S + (0 if self.zone == "UTC" else _CLOCK_CHANGE_S)

    @property
    def divides_days(self) -> bool:
        """Whether windows are days in UTC."""
        return self == Calendar("day")

    def start(self, time: str) -> str:
        """Return Spark SQL for the start of the local day, week or month, or of the next if it has begun."""
        following = self.end(time)
        return f"CASE WHEN {following} <= {time} THEN {following} ELSE {self._utc(self._local(time))} END"

    def end(self, start: str) -> str:
        """Return Spark SQL for the start of the next local day, week or month."""
        return self._utc(f"{self._local(start)} + {_SQL_OF_ONE[self.unit]}")

    def start_of(self, micros: int) -> int:
        """Return the start of the local day, week or month, or of the next if it has begun."""
        following = self.end_of(micros)
        return following if following <= micros else self._micros(self._first_day(micros))

    def end_of(self, start: int) -> int:
        """Return the start of the next local day, week or month."""
        return self._micros(self._next(self._first_day(start)))

    @property
    def _zone(self) -> ZoneInfo:
        return ZoneInfo(self.zone)

    def _local(self, time: str) -> str:
        """Return Spark SQL for midnight on the first local day of the unit that contains a time."""
        return f"date_trunc('{self.unit}', from_utc_timestamp({time}, '{self.zone}'))"

    def _utc(self, local: str) -> str:
        """Return Spark SQL for a local time in UTC. Skipped and repeated times are as in `_micros`."""
        return f"to_utc_timestamp({local}, '{self.zone}')"

    def _first_day(self, micros: int) -> date:
        """Return the first local day of the unit that contains a time."""
        return self._first(from_micros(micros).astimezone(self._zone).date())

    def _first(self, day: date) -> date:
        if self.unit == "month":
            return day.replace(day=1)
        return day - _DAY * day.weekday() if self.unit == "week" else day

    def _next(self, first: date) -> date:
        return self._first(first + _DAY * 32) if self.unit == "month" else first + _DAY * _DAYS[self.unit]

    def _micros(self, day: date) -> int:
        """Return local midnight. If it is skipped or repeated, the offset before the change applies."""
        midnight = datetime(day.year, day.month, day.day, tzinfo=self._zone, fold=0)
        return (midnight - EPOCH) // _MICROSECOND


def window_length(text: str, zone: str | None = None) -> WindowLength:
    """Return the length of windows from text: a duration such as 5m, or day, week or month in a time zone.

    Without a zone, days, weeks and months are those of UTC. Raises ValueError for other text, for an unknown
    zone, and for a duration with a zone.
    """
    if text in UNITS:
        return Calendar(cast(Unit, text), zone or "UTC")
    try:
        seconds = parse_duration_s(text)
    except ValueError as error:
        raise ValueError(f"{error}; or day, week or month") from None
    if zone is not None:
        raise ValueError(
            f"a zone applies only to the lengths day, week and month; windows of {text} are counted from the "
            "epoch. Remove the zone, or set length to one of these"
        )
    return Seconds(seconds)
