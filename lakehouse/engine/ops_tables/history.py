"""ops.history: the state of each stream over time, recorded by live runs in slots of five minutes.

The table can be read without Spark. Grain: one row per stream and slot; if several processes have recorded a
slot, there is one row from each. `at` is the time of the last observation in the slot, UTC, in microseconds.
In the other columns, null means unknown. Rows are only appended; retention deletes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from lakehouse.storage.tables import TableSpec, described, direct

SCHEMA = described(
    ("stream", "string", "The stream."),
    ("at", "timestamp", "The time of the slot's last observation, UTC."),
    ("word", "string", "The worst health in the slot, as in `lakehouse status`."),
    ("arrived", "long", "The sum of the end offsets of the stream's topics; null if unknown."),
    ("landed", "long", "The sum of bronze's positions in these topics; null if unknown."),
    ("waited_s", "double", "The longest wait of a record in the slot, in seconds; null if unknown."),
    ("open_letters", "long", "The number of open dead letters; null if unknown."),
)
HISTORY = TableSpec(
    "ops", "history", SCHEMA, stats=("at",), comment="The streams' state, every five minutes of a live run."
)


@dataclass(frozen=True)
class Sample:
    """A row in ops.history."""

    stream: str
    at: datetime
    word: str
    arrived: int | None
    landed: int | None
    waited_s: float | None
    open_letters: int | None


KEPT_DAYS = 14
"""How many days rows are kept, unless maintenance.keep_rows sets another number."""


def append(lake: str, samples: Sequence[Sample]) -> None:
    """Append samples; create the table if it does not exist."""
    direct.append(lake, HISTORY, [asdict(one) for one in samples])
