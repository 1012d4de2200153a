"""Generate sample transactions by a thousand or more users. One user can be given a share of all events.

    samples(1000, spread_times(1000, end_ms=now, span_s=600), seed=1, hot_user=0.5)

lakehouse.dev.samples.mixing lists the kinds of samples. The same arguments always give the same bytes.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from lakehouse.dev.samples import Sample, breaking
from lakehouse.dev.samples.breaking import with_literal
from lakehouse.dev.samples.mixing import NO_FAULTS, Shares, compact, in_turn, mix, require_share, stamp, user

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TOPICS = ("transactions-topic",)
USERS = tuple(user(number) for number in range(1000))
HOT_USER = "whale"

_WHOLE = 0.2


def samples(
    count: int,
    times_ms: Iterable[int],
    *,
    seed: int,
    shares: Shares = NO_FAULTS,
    hot_user: float = 0.0,
    users: float = 0,
) -> Iterator[Sample]:
    """Return an iterator over `count` samples, with one sample for each of `times_ms`.

    `hot_user` is the probability that an event belongs to HOT_USER, who otherwise has no events. If `users`
    is set, that many users take turns. Otherwise, users are chosen at random among the thousand.

    Raises SettingsError for a probability outside 0 to 1.
    """
    require_share("hot user", hot_user, "all events")
    rng = random.Random(seed)
    uniform = rng.random
    broken = breaking.Breaker(_BREAKAGES, shares.ahead_s)
    turns = in_turn(users)

    def pick() -> tuple[bytes, bytes]:
        if uniform() < hot_user:
            return _HOT
        return _encoded(user(next(turns))) if users else _HEADS[int(uniform() * len(_HEADS))]

    def valid(time_ms: int) -> Sample:
        key, head = pick()
        return Sample(key, b'%b%b,"timestamp":%b}' % (head, _amount(rng), stamp(time_ms, uniform)), "valid")

    def malformed_one(time_ms: int) -> Sample:
        key, _ = pick()
        record = {"userId": key.decode(), "amount": round(1 + 99 * uniform(), 2), "timestamp": time_ms}
        kind, value = broken(record)
        return Sample(key, value, kind)

    return mix(count, times_ms, rng, shares, valid=valid, malformed=malformed_one)


def _amount(rng: random.Random) -> bytes:
    amount = math.exp(rng.gauss(3.5, 1.2))
    if rng.random() < _WHOLE:
        return b"%d" % max(1.0, amount)
    return b"%.2f" % max(0.01, amount)


def _encoded(name: str) -> tuple[bytes, bytes]:
    return name.encode(), f'{{"userId":{compact(name)},"amount":'.encode()


_HEADS = tuple(map(_encoded, USERS))
_HOT = _encoded(HOT_USER)

_BREAKAGES: dict[str, breaking.Breakage] = {
    **breaking.of_the_message(text="userId", number="amount", words=("userId", "amount")),
    **breaking.of_a_tombstone(),
    **breaking.of_a_name("user_id", "userId"),
    **breaking.of_a_decimal("amount"),
    "amount_zero": with_literal("amount", b"0"),
    "amount_minus_zero": with_literal("amount", b"-0.0"),
    "amount_negative": with_literal("amount", b"-12.5"),
    **breaking.of_the_time(),
}
MALFORMED_KINDS = breaking.kinds(_BREAKAGES)
"""All kinds of malformed samples, in the order in which a run cycles through them."""
