"""A simulation of one stream's rounds, which computes the age of events when a round has written them.

Events arrive evenly. A round takes the events that have arrived when it starts, and the next round starts
when it ends. An event's age is the end of its round minus its arrival. A round is longer if it has more rows,
if it merges a table that waits between merges, or while it writes a checkpoint of a table's log. Other
delays, such as Java's compiler in the first minutes, or maintenance, are left out. The figures therefore hold
for a steady load on a quiet machine. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

_STEPS = 60
_WARMUP = 0.5  # share of the rounds
_ROUNDS_A_CHECKPOINT = 100


@dataclass(frozen=True)
class Cost:
    """The duration of a round in seconds: a fixed part, rows shared by cores, and rows sent by the driver.

    Up to `one_task_rows` rows of a round are handled by one task, however many cores there are. `row_s` is
    one core's time for each further row. A round changes `changed_share` of its rows in gold, but at most
    `keys`, and the driver sends each of them in `export_s`. A table that waits between merges prolongs one
    round in every `waiting_every_s` by `waiting_s`. In every hundred rounds, `checkpoints` are longer by
    `checkpoint_s`.
    """

    fixed_s: float
    row_s: float
    cores: int = 1
    one_task_rows: float = 0.0
    one_task_row_s: float = 0.0
    changed_share: float = 0.0
    keys: float = inf
    export_s: float = 0.0
    waiting_s: float = 0.0
    waiting_every_s: float = inf
    checkpoints: int = 0
    checkpoint_s: float = 0.0

    def round_s(self, rows: float) -> float:
        """Return the duration of a round with this many rows, without a waiting table or a checkpoint."""
        first = min(rows, self.one_task_rows)
        spread = (rows - first) * self.row_s / self.cores
        return self.fixed_s + first * self.one_task_row_s + spread + self.changed(rows) * self.export_s

    def changed(self, rows: float) -> float:
        """Return the number of gold rows that a round changes. The driver sends them one after the other."""
        return min(rows * self.changed_share, self.keys)

    def limit(self, max_rows: float = inf) -> float:
        """Return the events per second that rounds can sustain, with at most `max_rows` in each round."""
        if max_rows < inf:
            return max_rows / self.round_s(max_rows)
        endless = 0.0 if self.keys < inf else self.changed_share * self.export_s
        per_row_s = self.row_s / self.cores + endless
        return 1 / per_row_s if per_row_s else inf


@dataclass(frozen=True)
class Round:
    """A round with its start and end. It takes the events that arrived after `since_s`, up to `until_s`."""

    start_s: float
    end_s: float
    since_s: float
    until_s: float

    @property
    def youngest_s(self) -> float:
        """The age of the round's last event."""
        return self.end_s - self.until_s

    @property
    def oldest_s(self) -> float:
        """The age of the round's first event."""
        return self.end_s - self.since_s

    def share_up_to(self, age_s: float) -> float:
        """Return the share of the round's events that are at most this old."""
        return min(1.0, max(0.0, (age_s - self.youngest_s) / (self.oldest_s - self.youngest_s)))


def simulate(
    cost: Cost, rate: float, *, rounds: int = 200, trigger_s: float = 0.0, max_rows: float = inf
) -> list[Round]:
    """Return the rounds of a stream that is empty at 0, when the first round starts and finds no events.

    `rate` is in events per second. A round starts at the earliest `trigger_s` after the previous round's
    start, and takes at most `max_rows`, beginning with the oldest.
    """
    found: list[Round] = []
    start_s = taken_s = 0.0
    due_s = cost.waiting_every_s
    for number in range(rounds):
        until_s = min(start_s, taken_s + max_rows / rate)
        end_s = start_s + cost.round_s((until_s - taken_s) * rate)
        if start_s >= due_s:
            end_s += cost.waiting_s
            due_s = start_s + cost.waiting_every_s
        if number % _ROUNDS_A_CHECKPOINT < cost.checkpoints:
            end_s += cost.checkpoint_s
        found.append(Round(start_s, end_s, taken_s, until_s))
        start_s, taken_s = max(end_s, start_s + trigger_s), until_s
    return found


def steady(rounds: Sequence[Round]) -> list[Round]:
    """Return the second half of the rounds, without rounds that took no events."""
    return [one for one in rounds[int(len(rounds) * _WARMUP) :] if one.until_s > one.since_s]


def percentile_s(rounds: Sequence[Round], share: float) -> float:
    """Return the age that this share of the rounds' events does not exceed, to the microsecond."""
    events = sum(one.until_s - one.since_s for one in rounds)
    low, high = 0.0, max(one.oldest_s for one in rounds)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        not_older = sum((one.until_s - one.since_s) * one.share_up_to(middle) for one in rounds)
        low, high = (low, middle) if not_older >= share * events else (middle, high)
    return high
