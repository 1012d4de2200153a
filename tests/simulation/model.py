"""What a life has done to a lake, and what the lake must hold therefore, by the oracles alone.

    life = Life(settings)
    life.sent.append(Sent("transactions", ("transactions-topic", 0, 0), 1_767_268_800_000, b"ann", b"{…}"))
    life.landed |= landings(settings)       after each run of bronze, and before retention
    life.decisions["transactions"].append(Decision("discard", place, after_us, at_us))
    expected(life)

Sources are named by their silver table. Times are UTC, in the unit that their name ends with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse.settings import Settings
from tests.oracles.records import Decision, Headers, Lateness, Place, Taken

__all__ = ["Decision", "Lateness", "Life", "Place", "Sent", "Taken"]


@dataclass(frozen=True)
class Sent:
    """A record that the broker has; `says` is the JSON that an encoded value was made of, else null.

    `source` is its silver table. `kafka_timestamp_ms` is -1 for none.
    """

    source: str
    place: Place
    kafka_timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    says: bytes | None = None


@dataclass
class Life:
    """What has been done to a lake.

    settings   as they are now
    now_us     what the lake's clock shows: it says which calls are over
    sent       every record, in the order of each partition
    landed     of each record that was ever in bronze, its `ingested_at` in microseconds, read back from
               bronze (`compare.landings`) before retention takes it
    decisions  by source: what people have decided, the first one first. A replay is put down for each letter
               that was open and selected, whatever came of it
    taken      by source: what each run of retention has taken
    lateness   by source: how late records may be, if that was changed; else as the settings say
    gold_us    by gold table: its own retention has taken the final rows whose last time lies before it
    """

    settings: Settings
    now_us: int = 0
    sent: list[Sent] = field(default_factory=list)
    landed: dict[Place, int] = field(default_factory=dict)
    decisions: dict[str, list[Decision]] = field(default_factory=lambda: defaultdict(list))
    taken: dict[str, list[Taken]] = field(default_factory=lambda: defaultdict(list))
    lateness: dict[str, tuple[Lateness, ...]] = field(default_factory=dict)
    gold_us: Mapping[str, int] = field(default_factory=dict)
