"""Pure: how old events are when a round has written them, by a simulation of one stream's rounds.

Events arrive evenly. A round takes what has arrived when it starts, and the next one starts when it ends. The
age of an event is the end of the round that takes it minus its arrival. A round is longer than another if it
has more rows, if a table is due that waits between merges, or while a checkpoint of a table's log is written.
What else makes one longer (Java's compiler in the first minutes, maintenance) is left out. So figures are
those of a steady load on a quiet machine.
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
    """What a round takes, in seconds: a fixed part, rows that spread over cores, and gold rows that do not.

    Up to `one_task_rows` rows of a round are handled by one task, whatever the cores. `row_s` is the time of
    one core for any further row. A round changes a `changed_share` of its rows in gold, at most `keys`; the
    driver sends each in `export_s`. A table that waits between merges makes one round in `waiting_every_s`
    longer by `waiting_s`. Of a hundred rounds, `checkpoints` are longer by `checkpoint_s`.
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
        """Return how long a round with so many rows takes, if nothing makes it longer."""
        first = min(rows, self.one_task_rows)
        spread = (rows - first) * self.row_s / self.cores
        return self.fixed_s + first * self.one_task_row_s + spread + self.changed(rows) * self.export_s

    def changed(self, rows: float) -> float:
        """Return how many gold rows a round changes, which the driver sends one after the other."""
        return min(rows * self.changed_share, self.keys)

    def limit(self, max_rows: float = inf) -> float:
        """Return the events per second that rounds can take for ever, with at most `max_rows` in each."""
        if max_rows < inf:
            return max_rows / self.round_s(max_rows)
        endless = 0.0 if self.keys < inf else self.changed_share * self.export_s
        per_row_s = self.row_s / self.cores + endless
        return 1 / per_row_s if per_row_s else inf


@dataclass(frozen=True)
class Round:
    """A round: when it starts and ends, and the arrivals that it takes: after `since` and up to `until`."""

    start_s: float
    end_s: float
    since_s: float
    until_s: float

    @property
    def youngest_s(self) -> float:
        """The age of its last event."""
        return self.end_s - self.until_s

    @property
    def oldest_s(self) -> float:
        """The age of its first event."""
        return self.end_s - self.since_s

    def share_up_to(self, age_s: float) -> float:
        """Return the share of its events that are not older."""
        return min(1.0, max(0.0, (age_s - self.youngest_s) / (self.oldest_s - self.youngest_s)))


def simulate(
    cost: Cost, rate: float, *, rounds: int = 200, trigger_s: float = 0.0, max_rows: float = inf
) -> list[Round]:
    """Return the rounds of a stream that is empty at 0, when the first round starts and finds nothing.

    `rate` is in events per second. A round starts no sooner than `trigger_s` after the start of the last one,
    and takes at most `max_rows`, the oldest ones first.
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
    """Return the later half of the rounds, without those that took nothing."""
    return [one for one in rounds[int(len(rounds) * _WARMUP) :] if one.until_s > one.since_s]


def percentile_s(rounds: Sequence[Round], share: float) -> float:
    """Return the age that this share of the rounds' events does not exceed, exact to a microsecond."""
    events = sum(one.until_s - one.since_s for one in rounds)
    low, high = 0.0, max(one.oldest_s for one in rounds)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        not_older = sum((one.until_s - one.since_s) * one.share_up_to(middle) for one in rounds)
        low, high = (low, middle) if not_older >= share * events else (middle, high)
    return high
