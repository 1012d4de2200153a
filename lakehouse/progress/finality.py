"""Up to where rows of a gold table are final by event time, under whatever grace that was.

A row is final once the front, the greatest event time merged, has passed its `due_column` by the grace. The
grace may change; a row that was final stays so. So the first micro-batch under another grace notes, in its
commit, up to where rows have become final until then. What the table was made with is one of its properties:

    gold.metrics_1m grace_s                    600   under which rows become final now
    gold.metrics_1m final_until   1795723989203000   rows up to there are final in any case, in microseconds
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import SparkSession

from lakehouse import tables
from lakehouse.progress.positions import Transactions
from lakehouse.stream import EventClock, EventTimeProgress, GoldTable, MergedTable
from lakehouse.tables import Move, from_micros, shifted
from lakehouse.tables.delta_internals import Snapshot
from lakehouse.tables.specs import EPOCH

SETTING = "grace_s"


@dataclass(frozen=True)
class Finality:
    """What a table notes: the grace, and until when (UTC; null: no time) rows are final in any case."""

    query: str
    grace: timedelta
    until: datetime | None
    noted: Transactions

    def reached(self, front: datetime | None) -> datetime | None:
        """Return up to where rows are final once the front (null: none) has been merged; null: nowhere."""
        by_event_time = None if front is None else shifted(front, -self.grace)
        return max((moment for moment in (by_event_time, self.until) if moment is not None), default=None)

    def progress(self, before: datetime | None, now: datetime, clock: EventClock) -> EventTimeProgress:
        """Return the progress between two fronts as the clock takes it, whose grace may be another one.

        Rows that are final already, and no others, count as final before; they are so afterwards.
        """
        reached = self.reached(before)
        first = None if reached is None else shifted(reached, grace_of(clock))
        return EventTimeProgress(first, now if first is None else max(now, first))

    def moves(self, before: datetime | None, clock: EventClock) -> tuple[Move, ...]:
        """Return what the next commit has to expect, and to note if the clock has another grace."""
        grace, until = f"{self.query} {SETTING}", f"{self.query} final_until"
        seconds, micros = self.noted.get(grace), self.noted.get(until)
        if self.grace == grace_of(clock):
            return (Move(grace, seconds, seconds),)
        reached = self.reached(before)
        now = micros if reached is None else (reached - EPOCH) // timedelta(microseconds=1)
        return Move(grace, seconds, int(grace_of(clock).total_seconds())), Move(until, micros, now)

    def after(self, moves: tuple[Move, ...]) -> Finality:
        """Return what the table notes once a commit with these moves is done."""
        made = {move.application: move.after for move in moves if move.after is not None}
        return _of(self.query, {**self.noted, **made}, self.grace)


def grace_of(clock: EventClock) -> timedelta:
    """Return how far event time, or the wall clock, has to be past a row's time until the row is final."""
    return clock.when_idle.after


def made_with(table: MergedTable) -> dict[str, str]:
    """Return the grace of a table whose rows become final by event time, as its properties say it."""
    clock = table.clock if isinstance(table, GoldTable) else None
    return {SETTING: str(int(grace_of(clock).total_seconds()))} if isinstance(clock, EventClock) else {}


def finality_at(spark: SparkSession, query: str, snapshot: Snapshot, clock: EventClock) -> Finality:
    """Return what a snapshot of a gold table notes; a table that notes no grace has the clock's."""
    made_with = tables.properties_of(snapshot).get(f"lakehouse.{SETTING}")
    grace = grace_of(clock) if made_with is None else timedelta(seconds=int(made_with))
    return _of(query, tables.transactions_in(spark, snapshot), grace)


def _of(query: str, noted: Transactions, made_with: timedelta) -> Finality:
    seconds, until = noted.get(f"{query} {SETTING}"), noted.get(f"{query} final_until")
    grace = made_with if seconds is None else timedelta(seconds=seconds)
    return Finality(query, grace, None if until is None else from_micros(until), noted)
