"""How far a silver table has come, by what its commits say: its front, and what of bronze it has processed.

    silver.metrics_events front    1795723989203000   the greatest own time of sound records, in microseconds
    silver.metrics_events landed   1795723990117000   the greatest `ingested_at` that it has processed

The watermark of a record is the front over the sound records that landed before it, minus the lateness that
is allowed for it (`lakehouse.ops.lateness`). All records of a commit of bronze have one landing, and so one
watermark. Sound records count whatever becomes of them: one that is no row has a letter, which keeps its own
time, and retention notes the greatest that it takes. One that a replay has let in does not: what a person
decides about a record makes no other one late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lakehouse.contract import OWN_TIME
from lakehouse.tables import Move, from_micros

FRONT = "_front"
"""The column that `before_landings` returns: the front before a landing, UTC; null for none."""


@dataclass(frozen=True)
class Progress:
    """What the commits of a silver table, `layer.name`, note; in microseconds, null for nothing."""

    table: str
    front_us: int | None
    landed_us: int | None

    @classmethod
    def noted_in(cls, noted: Mapping[str, int], table: str) -> Progress:
        """Return it as some transactions of the table say it."""
        return cls(table, noted.get(f"{table} front"), noted.get(f"{table} landed"))

    @property
    def front(self) -> datetime | None:
        """The greatest own time of sound records that it has processed, UTC."""
        return None if self.front_us is None else from_micros(self.front_us)

    @property
    def landed(self) -> datetime | None:
        """The greatest landing that it has processed, UTC."""
        return None if self.landed_us is None else from_micros(self.landed_us)

    def after(self, own_us: int | None, landed_us: int | None) -> Progress:
        """Return it once records with these greatest times have been processed; null: no such record."""
        return Progress(self.table, _greatest(self.front_us, own_us), _greatest(self.landed_us, landed_us))

    def moves_to(self, later: Progress) -> tuple[Move, ...]:
        """Return what a commit expects, and notes."""
        return (
            Move(f"{self.table} front", self.front_us, later.front_us),
            Move(f"{self.table} landed", self.landed_us, later.landed_us),
        )


def own_times(rows: DataFrame, is_sound: Column) -> DataFrame:
    """Return when rows landed, and the own times of the sound ones; null for the others."""
    return rows.select("ingested_at", F.when(is_sound, F.col(OWN_TIME)).alias(OWN_TIME))


def before_landings(times: DataFrame, front: datetime | None) -> DataFrame:
    """Return the front before each landing, given the own times of sound records.

    `front` (UTC) is that before all of them; null for none. Grain: one row per landing; key: `ingested_at`.
    """
    each = times.groupBy("ingested_at").agg(F.max(OWN_TIME).alias("_own"))
    earlier = Window.orderBy("ingested_at").rowsBetween(Window.unboundedPreceding, -1)
    known = F.greatest(F.max("_own").over(earlier), F.lit(front).cast("timestamp"))
    return each.select("ingested_at", known.alias(FRONT))


def _greatest(one: int | None, other: int | None) -> int | None:
    return max((us for us in (one, other) if us is not None), default=None)
