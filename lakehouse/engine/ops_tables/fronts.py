"""A silver table's progress, as recorded in its commits: its front, and the latest landing time processed.

    silver.metrics_events front    1795723989203000   the greatest own event time of valid records, in us
    silver.metrics_events landed   1795723990117000   the greatest `ingested_at` that was processed, in us

A record's watermark is the front of the valid records that landed before it, minus the allowed lateness
(`lakehouse.engine.ops_tables.lateness`). All records in a bronze commit have the same landing time, and
therefore the same watermark. Only event times in the records themselves count, not Kafka's timestamps. A
valid record still counts if it becomes a dead letter, because the dead letter stores the record's own event
time. A record also counts after retention has deleted it, because retention records the greatest own event
time. Records accepted by a replay do not count, so that a user's decision cannot make other records late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lakehouse.storage.tables import Move, from_micros
from lakehouse.streams.contract import OWN_TIME

FRONT = "_front"
"""A column of `before_landings`: the front just before the landing time (UTC), or null if there was none."""


@dataclass(frozen=True)
class Progress:
    """The progress recorded in a silver table's commits, in microseconds; a time is None if not recorded."""

    table: str
    front_us: int | None
    landed_us: int | None

    @classmethod
    def noted_in(cls, noted: Mapping[str, int], table: str) -> Progress:
        """Return the progress that the table's transactions (`txn`) record."""
        return cls(table, noted.get(f"{table} front"), noted.get(f"{table} landed"))

    @property
    def front(self) -> datetime | None:
        """The greatest own event time of processed valid records, UTC, or None if there are none."""
        return None if self.front_us is None else from_micros(self.front_us)

    @property
    def landed(self) -> datetime | None:
        """The greatest landing time of processed records, UTC, or None if there are none."""
        return None if self.landed_us is None else from_micros(self.landed_us)

    def after(self, own_us: int | None, landed_us: int | None) -> Progress:
        """Return the progress after a micro-batch with these greatest times (None if unknown)."""
        return Progress(self.table, _greatest(self.front_us, own_us), _greatest(self.landed_us, landed_us))

    def moves_to(self, later: Progress) -> tuple[Move, ...]:
        """Return the moves with which a commit requires this progress and records the later progress."""
        return (
            Move(f"{self.table} front", self.front_us, later.front_us),
            Move(f"{self.table} landed", self.landed_us, later.landed_us),
        )


def own_times(rows: DataFrame, is_sound: Column) -> DataFrame:
    """Return each row's landing time and own event time. The event time is null unless the row is valid."""
    return rows.select("ingested_at", F.when(is_sound, F.col(OWN_TIME)).alias(OWN_TIME))


def before_landings(times: DataFrame, front: datetime | None) -> DataFrame:
    """Return the front before each landing time, given the own event times of valid records.

    `front` (UTC) is the front before the first landing, or None if there is none. Grain: one row per landing
    time; key: `ingested_at`.
    """
    each = times.groupBy("ingested_at").agg(F.max(OWN_TIME).alias("_own"))
    earlier = Window.orderBy("ingested_at").rowsBetween(Window.unboundedPreceding, -1)
    known = F.greatest(F.max("_own").over(earlier), F.lit(front).cast("timestamp"))
    return each.select("ingested_at", known.alias(FRONT))


def _greatest(one: int | None, other: int | None) -> int | None:
    return max((us for us in (one, other) if us is not None), default=None)
