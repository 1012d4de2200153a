"""Parts that the sample generators share: the mix of kinds, lateness, duplicates, time formats, and users.

A generator makes valid and malformed samples, and `mix` decides their order. All streams have the following
kinds of samples, listed here with the result that the pipeline must produce:

    valid           accepted
    late_within     behind the surrounding times by less than the allowed lateness: accepted
    late_beyond     behind the surrounding times by more than the allowed lateness: a dead letter
    duplicate       repeats an earlier valid sample byte for byte: accepted (records have no id)
    malformed:…     breaks the contract in the named way (MALFORMED_KINDS): a dead letter
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from itertools import cycle
from typing import TYPE_CHECKING

from lakehouse.common.errors import SettingsError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator

    from lakehouse.dev.samples import Sample

_NAMES = (
    "ada",
    "bob",
    "chloé",
    "dieter",
    "eve",
    "frank",
    "grace",
    "heidi",
    "ivan",
    "jürgen",
    "katya",
    "linus",
    "mallory",
    "noor",
    "olga",
    "peggy",
    "søren",
    "trent",
    "zoë",
    "さくら",
    "дмитрий",
    "ليلى",
    "李雷",
    "🦊",
)


def user(number: int) -> str:
    """Return a distinct user name for each number; no name contains a hyphen."""
    return f"{_NAMES[number % len(_NAMES)]}{number // len(_NAMES)}"


DAY_S = 24 * 3600
DEFAULT_LATENESS_S = 7 * DAY_S
DEFAULT_AHEAD_S = 3600.0
ISO_SHARE = 0.02
"""The share of times that are written as ISO 8601 text instead of numbers."""

_BLOCK = 1000  # the shares hold within every block of this many samples
_ROUNDING = 1e-9
_MAX_WITHIN_S = 6 * 3600
_ZONES = (
    UTC,
    timezone(timedelta(hours=2)),
    timezone(timedelta(hours=-5)),
    timezone(timedelta(hours=5, minutes=30)),
)

_VALID, _LATE, _DUPLICATE, _MALFORMED, _TOMBSTONE = range(5)


@dataclass(frozen=True)
class Shares:
    """The fraction of samples of each kind, exact except for rounding. The remaining samples are valid.

    A duplicate repeats an event, and is itself counted as a sample. One late sample in four is beyond the
    allowed lateness, or every late sample if the allowed lateness is 0. A malformed sample with a time in the
    future is `ahead_s` seconds ahead of the sample's given time. Only sales and streams from other packages
    have tombstones.

    Raises SettingsError if the shares exceed one in total.
    """

    malformed: float = 0.0
    late: float = 0.0
    duplicates: float = 0.0
    tombstones: float = 0.0
    allowed_lateness_s: int = DEFAULT_LATENESS_S
    ahead_s: float = DEFAULT_AHEAD_S

    def __post_init__(self) -> None:
        once = {"malformed": self.malformed, "late": self.late}
        if self.tombstones:
            once["tombstones"] = self.tombstones
        whole = sum(once.values()) + 2 * self.duplicates  # a duplicate needs an event to repeat
        if not (min(*once.values(), self.duplicates) >= 0 and whole <= 1 + _ROUNDING):
            given = ", ".join(f"{name} {share:g}" for name, share in once.items())
            raise SettingsError(
                f"{given} and duplicates {self.duplicates:g} are invalid shares of all events: each must "
                f"be at least 0, and {' + '.join(once)} + 2 × duplicates at most 1 in total"
            )

    def valid(self, count: int) -> int:
        """Return how many of `count` samples are valid."""
        return max(0, count - sum(round(count * share) for share in self._by_slot().values()))

    def slots(self, count: int, rng: random.Random) -> Iterator[int]:
        """Yield the kind of each sample, in shuffled blocks. Every share is exact at the end of a block."""
        shares = self._by_slot()
        given = dict.fromkeys(shares, 0)
        for start in range(0, count, _BLOCK):
            end = min(start + _BLOCK, count)
            special: list[int] = []
            for slot, share in shares.items():
                wanted = min(round(end * share) - given[slot], end - start - len(special))
                given[slot] += wanted
                special += [slot] * wanted
            block = [_VALID] * (end - start)
            for position, slot in zip(rng.sample(range(end - start), len(special)), special, strict=True):
                block[position] = slot
            yield from block

    def _by_slot(self) -> dict[int, float]:
        return {
            _MALFORMED: self.malformed,
            _LATE: self.late,
            _DUPLICATE: self.duplicates,
            _TOMBSTONE: self.tombstones,
        }


NO_FAULTS = Shares()


def mix(
    count: int,
    times_ms: Iterable[int],
    rng: random.Random,
    shares: Shares,
    *,
    valid: Callable[[int], Sample],
    malformed: Callable[[int], Sample],
    late: Callable[[int, int, str], Sample] | None = None,
    tombstone: Callable[[int], Sample] | None = None,
) -> Iterator[Sample]:
    """Yield `count` samples, with one sample for each of `times_ms`, made by the given functions.

    Each function is called with the sample's time. `late` also gets the lag behind that time in ms, and the
    kind. By default, a late sample is a valid sample whose time is earlier by the lag.
    """
    uniform = rng.random
    lateness = cycle(_lateness_draws(rng, shares.allowed_lateness_s))
    repeatable: list[Sample] = []
    keep = repeatable.append
    # How many duplicates were due before there was an event to repeat. They replace later valid samples.
    owed = 0
    for slot, time_ms in zip(shares.slots(count, rng), times_ms, strict=False):
        if slot == _MALFORMED:
            yield malformed(time_ms)
        elif slot == _LATE:
            kind, behind_ms = next(lateness)
            if late is None:
                yield valid(time_ms - behind_ms())._replace(kind=kind)
            else:
                yield late(time_ms, behind_ms(), kind)
        elif slot == _TOMBSTONE and tombstone is not None:
            yield tombstone(time_ms)
        elif repeatable and (slot == _DUPLICATE or owed):
            owed -= slot != _DUPLICATE
            yield _take(repeatable, uniform)._replace(kind="duplicate")
        else:
            owed += slot == _DUPLICATE
            sample = valid(time_ms)
            keep(sample)
            if len(repeatable) > _BLOCK:
                repeatable[:] = repeatable[-_BLOCK // 2 :]
            yield sample


def require_share(name: str, share: float, whole: str) -> None:
    """Raise SettingsError unless `share` is between 0 and 1. The message names `whole`, the total."""
    if not 0 <= share <= 1:
        raise SettingsError(f"{name} is {share:g}, but a share of {whole} must be between 0 and 1")


def in_turn(count: float) -> Iterator[int]:
    """Cycle through the integers from 0 to `count` - 1."""
    return cycle(range(int(count)))


def compact(value: object) -> str:
    """Return a value as JSON without spaces, and with non-ASCII characters unescaped."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def stamp(time_ms: int, uniform: Callable[[], float]) -> bytes:
    """Return a time as JSON, usually as epoch milliseconds and sometimes as an ISO 8601 string."""
    if uniform() < ISO_SHARE:
        return b'"%b"' % iso(time_ms, uniform)
    return b"%d" % time_ms


def iso(time_ms: int, uniform: Callable[[], float]) -> bytes:
    """Return a time as ISO 8601, exact to the millisecond, with the offset of a random time zone."""
    zone = _ZONES[int(uniform() * len(_ZONES))]
    moment = datetime.fromtimestamp(time_ms // 1000, UTC).replace(microsecond=time_ms % 1000 * 1000)
    return moment.astimezone(zone).isoformat(timespec="milliseconds").encode()


def _take(repeatable: list[Sample], uniform: Callable[[], float]) -> Sample:
    """Remove a random sample in constant time, and return it. Each event is thus repeated at most once."""
    position = int(uniform() * len(repeatable))
    repeatable[position], repeatable[-1] = repeatable[-1], repeatable[position]
    return repeatable.pop()


def _lateness_draws(rng: random.Random, allowed_s: int) -> list[tuple[str, Callable[[], int]]]:
    longest_s = min(_MAX_WITHIN_S, allowed_s / 2)
    shortest_s = min(1.0, longest_s / 2)

    def within_ms() -> int:  # seconds, minutes and hours are equally likely
        return round(1000 * shortest_s * math.pow(longest_s / shortest_s, rng.random()))

    def beyond_ms() -> int:
        return round(1000 * (allowed_s + DAY_S * (1 + 2 * rng.random())))

    beyond: tuple[str, Callable[[], int]] = ("late_beyond", beyond_ms)
    within: tuple[str, Callable[[], int]] = ("late_within", within_ms)
    return [within, within, beyond, within] if allowed_s else [beyond]
