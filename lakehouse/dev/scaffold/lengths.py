"""Guess the length of windows from the event times in the samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from lakehouse.common.quantities import told_s
from lakehouse.dev.scaffold.choosing import ChosenTime
from lakehouse.dev.scaffold.samples import Seen, value_at
from lakehouse.streams.window_lengths import window_length

_LENGTHS = ("1m", "5m", "15m", "1h", "6h", "day")
_RECORDS = 10
_LEAST_GAPS = 10


@dataclass(frozen=True)
class Length:
    """A length of windows, as a stream declares it and in seconds, and the reason for the guess."""

    text: str
    why: str

    @property
    def length_s(self) -> int:
        """The number of seconds."""
        return window_length(self.text).most_s

    @property
    def longer(self) -> str:
        """A longer length."""
        return {"day": "week", "6h": "day", "1h": "day"}.get(self.text, "1h")


def length_of(time: ChosenTime | None, keys: Sequence[Seen]) -> Length:
    """Return the shortest length for which a window usually has at least ten records of a key.

    How far apart the records of a key are is the median of the mean of up to ten gaps in a row. Without event
    times, and with fewer than ten gaps in all, the length is five minutes.
    """
    if time is None:
        return Length("5m", "five minutes, because no field looks like a time")
    times_by_key = _times_by_key(time, keys)
    if sum(len(times) - 1 for times in times_by_key) < _LEAST_GAPS:
        return Length("5m", "five minutes, because few samples have the same key")
    gap_s = median(gap_s for times in times_by_key for gap_s in _gaps_s(times))
    why = f"records of a key are usually {told_s(round(gap_s) if gap_s >= 1 else gap_s)} apart"
    guesses = (Length(text, why) for text in _LENGTHS)
    longest = Length(_LENGTHS[-1], f"{why}; week and month are longer")
    return next((one for one in guesses if one.length_s >= _RECORDS * gap_s), longest)


def _times_by_key(time: ChosenTime, keys: Sequence[Seen]) -> list[list[float]]:
    """Return the event times of each key's samples in order, in seconds since the epoch."""
    spoilt = {spoiler.at for spoiler in time.field.spoilers}
    found: dict[tuple[str, ...], list[float]] = {}
    for at, value in zip(time.field.at, time.field.values, strict=True):
        if at not in spoilt:
            record = time.field.samples[at].value
            key = tuple(str(value_at(record, field.names)) for field in keys)
            found.setdefault(key, []).append(time.time.of(value).timestamp())
    return [sorted(times) for times in found.values()]


def _gaps_s(times: Sequence[float]) -> list[float]:
    """Return the mean of each ten gaps in a row, or of all gaps if there are fewer."""
    width = min(_RECORDS, len(times) - 1)
    return [(times[at] - times[at - width]) / width for at in range(width, len(times)) if width]
