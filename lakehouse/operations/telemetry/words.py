"""The health of a stream and the state of a store: one word each, why, since when, and what to do about it.

What to do depends only on the word, so that the page, the API, metrics, alerts and the terminal say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from lakehouse.common.errors import StoreWord


class Word(StrEnum):
    """A stream's health in one word, from best to worst.

    IDLE      no process is running the stream, and no record has waited too long; or some of its layers are
              not running, but every record has been processed
    EMPTY     silver has not accepted any records yet
    STALE     the newest event is too old
    BEHIND    records have waited longer than allowed even though micro-batches are being written; or a
              producer's open transaction has hidden records for longer than allowed; or a store lacks rows
    REFUSING  silver has refused a larger share of its records than allowed, and dead letters are open
    UNKNOWN   the lake or the broker could not be read, or records of unknown age are waiting
    BLOCKED   the gate is closed
    FAILING   a step has failed and is being retried
    STALLED   records have waited longer than allowed, and no micro-batch has been written in that time
    STOPPED   records are waiting for a layer that no process is running
    """

    WELL = "well"
    IDLE = "idle"
    EMPTY = "empty"
    STALE = "stale"
    BEHIND = "behind"
    REFUSING = "refusing"
    UNKNOWN = "unknown"
    BLOCKED = "blocked"
    FAILING = "failing"
    STALLED = "stalled"
    STOPPED = "stopped"


_DOCTOR = "`lakehouse doctor` shows what cannot be reached or read, and why (docs/doctor.md)"
WHAT_TO_DO: Mapping[Word, str] = {
    Word.WELL: "Nothing needs to be done",
    Word.IDLE: "`lakehouse run all` processes new records (docs/run.md)",
    Word.EMPTY: "Check the producers and the topics; `lakehouse dead-letters list` shows refused records",
    Word.STALE: "Check the producers; `lakehouse dead-letters list` shows refused records",
    Word.BEHIND: (
        "`lakehouse status --steps` shows what waits for which step (docs/failures.md, docs/sizing.md)"
    ),
    Word.REFUSING: (
        "`lakehouse dead-letters list` shows the records; fix the producer or the rule, then replay them "
        "(docs/dead-letters.md)"
    ),
    Word.UNKNOWN: _DOCTOR,
    Word.BLOCKED: (
        "`lakehouse expect` shows what fails; the gate opens once nothing does (docs/expectations.md)"
    ),
    Word.FAILING: (
        "Fix the cause; the step is retried within a minute, and `lakehouse events` shows each failure "
        "(docs/failures.md)"
    ),
    Word.STALLED: (
        "`lakehouse status --steps` shows the step; the log of its process says why (docs/failures.md)"
    ),
    Word.STOPPED: "Start it: `lakehouse run all` (docs/run.md)",
}
WHAT_TO_DO_FOR_A_STORE: Mapping[StoreWord, str] = {
    StoreWord.WELL: "Nothing needs to be done",
    StoreWord.UNKNOWN: _DOCTOR,
    StoreWord.BEHIND: (
        "The export sends the rows; `lakehouse status --steps` shows how many (docs/failures.md)"
    ),
    StoreWord.FULL: "Give it more room; the export then sends the rows (docs/redis.md, docs/postgresql.md)",
    StoreWord.REFUSED: (
        "Correct the user, its rights or the table, as `lakehouse doctor` shows; the export then sends the "
        "rows (docs/doctor.md)"
    ),
    StoreWord.AWAY: "Start it, or correct its address; the export then sends the rows (docs/failures.md)",
}


class _Told:
    """What can be said of a reason and of what to do."""

    reason: str
    todo: str

    @property
    def told(self) -> str:
        """The reason and what to do."""
        return f"{self.reason}. {self.todo}"


@dataclass(frozen=True)
class Health(_Told):
    """A stream's health, the reason, when it began (None if unknown), and what to do.

    `is_unrun` is true if the reason says that no process runs the stream or some of its layers.
    """

    word: Word
    reason: str
    since: datetime | None = None
    is_unrun: bool = False
    todo: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "todo", WHAT_TO_DO[self.word])


@dataclass(frozen=True)
class StoreState(_Told):
    """The state of a store that an export fills, the reason, when it began (None if unknown), and what to do.

    `lacks_rows` is true if the export has noted that the store lacks rows, which other stores might contain.
    """

    name: str
    word: StoreWord
    reason: str
    since: datetime | None = None
    lacks_rows: bool = False
    todo: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "todo", WHAT_TO_DO_FOR_A_STORE[self.word])
