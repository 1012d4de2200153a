"""Finality: the event time up to which rows in a gold table are final, even if the grace period changes.

A row is final once the front (the greatest merged event time) exceeds the row's `due_column` by the grace
period. Final rows remain final when the grace period changes. The first micro-batch with a new grace period
records, as transactions in its commit, the new grace period and the time up to which rows were already final.
A table's initial grace period is stored as a table property.

    gold.metrics_1m grace_s                    600   the current grace period, in seconds
    gold.metrics_1m final_until   1795723989203000   rows up to this time (in us) remain final
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import SparkSession

from lakehouse.engine.progress.positions import Transactions
from lakehouse.storage import tables
from lakehouse.storage.tables import Move, from_micros, shifted
from lakehouse.storage.tables.delta_internals import Snapshot
from lakehouse.storage.tables.specs import EPOCH
from lakehouse.streams.definition import EventClock, EventTimeProgress, GoldTable, MergedTable

SETTING = "grace_s"


@dataclass(frozen=True)
class Finality:
    """The grace period recorded in a table, and the time up to which rows are final (UTC, or None).

    Rows up to that time remain final if the grace period changes.
    """

    query: str
    grace: timedelta
    until: datetime | None
    noted: Transactions

    def reached(self, front: datetime | None) -> datetime | None:
        """Return the time up to which rows are final at this front, or None if no row is final.

        `front` is None if nothing has been merged.
        """
        by_event_time = None if front is None else shifted(front, -self.grace)
        return max((moment for moment in (by_event_time, self.until) if moment is not None), default=None)

    def progress(self, before: datetime | None, now: datetime, clock: EventClock) -> EventTimeProgress:
        """Return the progress of event time from the front `before` to `now`.

        The clock's grace period may differ from the recorded one. At the front `before`, exactly the rows
        that are already final count as final, so they remain final.
        """
        reached = self.reached(before)
        first = None if reached is None else shifted(reached, grace_of(clock))
        return EventTimeProgress(first, now if first is None else max(now, first))

    def moves(self, before: datetime | None, clock: EventClock) -> tuple[Move, ...]:
        """Return the moves for the next commit.

        The moves require that the recorded grace period has not changed. If the clock has a different grace
        period, the moves record it.
        """
        grace, until = f"{self.query} {SETTING}", f"{self.query} final_until"
        seconds, micros = self.noted.get(grace), self.noted.get(until)
        if self.grace == grace_of(clock):
            return (Move(grace, seconds, seconds),)
        reached = self.reached(before)
        now = micros if reached is None else (reached - EPOCH) // timedelta(microseconds=1)
        return Move(grace, seconds, int(grace_of(clock).total_seconds())), Move(until, micros, now)

    def after(self, moves: tuple[Move, ...]) -> Finality:
        """Return the finality after a commit with these moves."""
        made = {move.application: move.after for move in moves if move.after is not None}
        return _of(self.query, {**self.noted, **made}, self.grace)


def grace_of(clock: EventClock) -> timedelta:
    """Return the grace period: how much event time or wall-clock time must pass before a row is final."""
    return clock.when_idle.after


def made_with(table: MergedTable) -> dict[str, str]:
    """Return the grace period as a table property, or no property if event time does not make rows final."""
    clock = table.clock if isinstance(table, GoldTable) else None
    return {SETTING: str(int(grace_of(clock).total_seconds()))} if isinstance(clock, EventClock) else {}


def finality_at(spark: SparkSession, query: str, snapshot: Snapshot, clock: EventClock) -> Finality:
    """Return the finality recorded in a snapshot of a gold table.

    If no grace period is recorded, the clock's is used.
    """
    made_with = tables.properties_of(snapshot).get(f"lakehouse.{SETTING}")
    grace = grace_of(clock) if made_with is None else timedelta(seconds=int(made_with))
    return _of(query, tables.transactions_in(spark, snapshot), grace)


def _of(query: str, noted: Transactions, made_with: timedelta) -> Finality:
    seconds, until = noted.get(f"{query} {SETTING}"), noted.get(f"{query} final_until")
    grace = made_with if seconds is None else timedelta(seconds=seconds)
    return Finality(query, grace, None if until is None else from_micros(until), noted)
