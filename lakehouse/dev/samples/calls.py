"""Generate sample calls between pairs of users: records in two topics, matched by time.

    samples(1000, spread_times(1000, end_ms=now, span_s=600), seed=1, one_sided=0.1)

A call has one or more records, and each follows the previous record by less than `gap_s`. The same pair's
next call begins at least three times `gap_s` later:

    ada1-zoë0   a--m-----a                                    m-a---m
    bob2-eve7         m---m-a--------a
                      |--| < gap_s   |--------- ≥ 3 × gap_s

A call begins at the given time of its first sample. Each later record has its own time, which is never after
the given time of its sample, because records are sent in time order. The last calls are compressed in time
but still get all their records, so at most one call is one-sided because the run ends.

`mixing` lists the kinds of samples. Late samples within the allowed lateness form separate calls between
pairs without earlier calls. Late samples beyond the allowed lateness are single records from such pairs.

The same arguments always give the same bytes.
"""

from __future__ import annotations

import random
from collections import deque
from heapq import heappop, heappush
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from lakehouse.dev.samples import Sample, breaking
from lakehouse.dev.samples.mixing import NO_FAULTS, Shares, compact, mix, require_share, stamp, user

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TOPICS = ("analyticsTopic", "metricsTopic")
PAYLOADS = ("analytics", "metrics")
"""The name of the payload field in each topic's records."""
HOT_CALLER = "switchboard"
HOT_PAIR = HOT_CALLER, user(0)

_HOT_PAIR = -1
_CALLERS = 1000
_JOINED = 0.8  # times gap_s: the longest time between two records of a call
_APART = 3  # times gap_s: the shortest time between two calls of a pair
_WITHIN = 0.75  # times the allowed lateness: a late call that is older gets no more records
_ODD_SHARE = 0.15

_Sides = tuple[int, ...]


def samples(
    count: int,
    times_ms: Iterable[int],
    *,
    seed: int,
    shares: Shares = NO_FAULTS,
    one_sided: float = 0.1,
    alone: float = 0.0,
    hot_pair: float = 0.0,
    hot_caller: float = 0.0,
    gap_s: float = 60.0,
) -> Iterator[Sample]:
    """Return an iterator over `count` samples, with one sample for each of `times_ms`.

    `one_sided` is the probability that a call has records in only one topic, and `alone` the probability that
    it has only one record. `hot_pair` is the probability that a record belongs to HOT_PAIR, whose single call
    lasts for the whole run. `hot_caller` is the probability that a pair's first user is HOT_CALLER.

    Raises SettingsError for a probability outside 0 to 1.
    """
    require_share("one-sided", one_sided, "all calls")
    require_share("alone", alone, "all calls")
    require_share("hot pair", hot_pair, "all records")
    require_share("hot caller", hot_caller, "all pairs")
    rng = random.Random(seed)
    uniform = rng.random
    broken = breaking.Breaker(_BREAKAGES, shares.ahead_s)
    mixed = _Mixed(one_sided, alone, hot_pair, hot_caller)
    calls = _Calls(rng, shares.valid(count), mixed, gap_s, shares.allowed_lateness_s)

    def malformed_one(time_ms: int) -> Sample:
        side = int(uniform() * len(TOPICS))
        user1, user2 = _pair(int(uniform() * _CALLERS))
        record = {"user1": user1, "user2": user2, "timestamp": time_ms, PAYLOADS[side]: {"quality": 4}}
        kind, value = broken(record)
        return Sample(f"{user1}-{user2}".encode(), value, kind, side)

    return mix(count, times_ms, rng, shares, valid=calls.valid, malformed=malformed_one, late=calls.late)


class _Mixed(NamedTuple):
    """The arguments of `samples` that are probabilities."""

    one_sided: float
    alone: float
    hot_pair: float
    hot_caller: float


class _Open(NamedTuple):
    """A call with outstanding records: the time of the next one, the pair of users, and their sides."""

    due_ms: int
    pair: int
    sides: _Sides


class _Calls:
    """All calls in progress, and the pairs of users that can start another call."""

    def __init__(
        self, rng: random.Random, records: int, mixed: _Mixed, gap_s: float, allowed_lateness_s: int
    ) -> None:
        self._rng = rng
        self._uniform = rng.random
        self._records = records  # outstanding records; `_owed` of them are for open calls
        self._owed = 0
        self._mixed = mixed
        self._joined_ms = round(1000 * gap_s * _JOINED)
        self._apart_ms = round(1000 * gap_s * _APART)
        self._latest_ms = 1000 * allowed_lateness_s * _WITHIN
        self._open: list[_Open] = []  # a heap by due_ms
        self._resting: deque[tuple[int, int]] = deque()  # (time from which the pair is free, pair), in order
        self._pairs = self._hot_pairs = 0
        self._late: _Open | None = None

    def valid(self, time_ms: int) -> Sample:
        """Return the next record of a call if one is due, otherwise the first record of a new call."""
        self._records -= 1
        must_end = self._owed > self._records
        if self._mixed.hot_pair and not must_end and self._uniform() < self._mixed.hot_pair:
            return self._record(_HOT_PAIR, int(self._uniform() * 2), time_ms, "valid")
        if self._open and (self._open[0].due_ms <= time_ms or must_end):
            due_ms, pair, sides = heappop(self._open)
            time_ms = min(due_ms, time_ms)
            self._owed -= 1
        else:
            pair = self._rested_pair(time_ms)
            sides = self._plan(max(1, self._records - self._owed + 1))
            self._owed += len(sides) - 1
        if len(sides) > 1:
            due_ms = time_ms + int(self._uniform() ** 2 * self._joined_ms)
            heappush(self._open, _Open(due_ms, pair, sides[1:]))
        else:
            self._resting.append((time_ms + self._apart_ms, pair))
        return self._record(pair, sides[0], time_ms, "valid")

    def late(self, time_ms: int, behind_ms: int, kind: str) -> Sample:
        """Return a late record: the next record of the current late call, or the first of a new call."""
        if kind == "late_beyond":
            return self._record(self._new_pair(), int(self._uniform() * 2), time_ms - behind_ms, kind)
        if self._late is not None and time_ms - self._late.due_ms < self._latest_ms:
            last_ms, pair, sides = self._late
            moment_ms = last_ms + int(self._uniform() * min(self._joined_ms, time_ms - last_ms))
        else:
            moment_ms, pair, sides = time_ms - behind_ms, self._new_pair(), self._plan(2)
        self._late = _Open(moment_ms, pair, sides[1:]) if len(sides) > 1 else None
        return self._record(pair, sides[0], moment_ms, kind)

    def _plan(self, most: int) -> _Sides:
        """Return the side (the topic's index) of each record of a new call, for at most `most` records."""
        uniform = self._uniform
        if self._mixed.alone and uniform() < self._mixed.alone:
            most = 1
        one_sided = most == 1 or uniform() < self._mixed.one_sided
        # Plans are sorted by length, starting at one or two records. Plans longer than `most` are excluded.
        plans = _ONE_SIDED[:most] if one_sided else _TWO_SIDED[: most - 1]
        of_a_length = plans[int(uniform() * len(plans))]
        return of_a_length[int(uniform() * len(of_a_length))]

    def _rested_pair(self, time_ms: int) -> int:
        if self._resting and self._resting[0][0] <= time_ms:
            return self._resting.popleft()[1]
        return self._new_pair()

    def _new_pair(self) -> int:
        if self._mixed.hot_caller and self._uniform() < self._mixed.hot_caller:
            self._hot_pairs += 1
            return _HOT_PAIR - self._hot_pairs
        self._pairs += 1
        return self._pairs - 1

    def _record(self, pair: int, side: int, time_ms: int, kind: str) -> Sample:
        user1, user2 = _pair(pair)
        head = f'{{"user1":"{user1}","user2":"{user2}","timestamp":'.encode()
        value = b"%b%b%b}" % (head, stamp(time_ms, self._uniform), _payload(side, self._rng))
        return Sample(f"{user1}-{user2}".encode(), value, kind, side)


def _pair(number: int) -> tuple[str, str]:
    """Return a distinct pair of users for each number. For negative numbers, the first user is HOT_CALLER."""
    if number < 0:
        return HOT_CALLER, user(_HOT_PAIR - number)
    caller = number % _CALLERS
    return user(caller), user(caller + 1 + number // _CALLERS)


def _payload(side: int, rng: random.Random) -> bytes:
    uniform = rng.random
    if uniform() < _ODD_SHARE:
        return _ODD[side][int(uniform() * len(_ODD[side]))]
    if side == 0:
        return b',"analytics":{"talkSeconds":%d,"mood":"%b"}' % (1 + 900 * uniform(), rng.choice(_MOODS))
    return b',"metrics":{"latencyMs":%.1f,"loss":{"in":%.3f,"out":0}}' % (10 + 90 * uniform(), uniform())


# Payloads can also be absent, null, or any JSON value, including strings that look like other values.
_ODD_VALUES: list[object] = [None, None, "dropped", "голос", "12", "null", "", 17, 4.25, True, [1, "two"], {}]
_ODD = tuple((b"", *(f',"{name}":{compact(value)}'.encode() for value in _ODD_VALUES)) for name in PAYLOADS)
_MOODS = tuple(mood.encode() for mood in ("calm", "curious", "verärgert", "😊"))

# The sides of a call's records, by length: 1 to 3 records on one side, 2 to 5 on both.
_ONE_SIDED = tuple(tuple((side,) * length for side in (0, 1)) for length in (1, 2, 3))
_TWO_SIDED = tuple(
    tuple(sides for sides in product((0, 1), repeat=length) if len(set(sides)) > 1) for length in (2, 3, 4, 5)
)

_BREAKAGES: dict[str, breaking.Breakage] = {
    **breaking.of_the_message(text="user1", number="timestamp", words=("user1", "user2")),
    **breaking.of_a_tombstone(),
    **breaking.of_a_name("user1", "user1"),
    **breaking.of_a_name("user2", "user2"),
    **breaking.of_the_time(),
}
MALFORMED_KINDS = breaking.kinds(_BREAKAGES)
"""All kinds of malformed samples, in the order in which a run cycles through them."""
