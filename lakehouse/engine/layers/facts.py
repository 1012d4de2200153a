"""Row counts and time bounds for a micro-batch of validated rows, computed in one aggregation."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cache

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse.engine.records.dead_letters import status_by
from lakehouse.engine.records.identity import OPEN, is_sound
from lakehouse.storage.tables import from_micros
from lakehouse.streams.contract import OWN_TIME


@dataclass(frozen=True)
class Facts:
    """The row counts of a validated micro-batch, and its time bounds in microseconds (None if unknown).

    `dead` counts the refused records, and `closed` counts those whose dead letters are closed. `own_us` is
    the greatest event time that accepted records themselves contain, and `least_us` is the earliest event
    time of any accepted record. All records landed between `first_us` and `landed_us`.
    """

    rows: int
    dead: int
    closed: int
    own_us: int | None
    least_us: int | None
    first_us: int | None
    landed_us: int | None

    @classmethod
    def of(cls, judged: DataFrame) -> Facts:
        """Aggregate validated rows, which should be persisted."""
        return cls(*(judged.agg(*_columns()).first() or (0, 0, 0, None, None, None, None)))

    @property
    def is_one_landing(self) -> bool:
        """Whether all records landed in the same commit to bronze."""
        return self.first_us == self.landed_us

    @property
    def least(self) -> datetime | None:
        """The earliest event time of the accepted records, UTC."""
        return None if self.least_us is None else from_micros(self.least_us)


@cache
def _columns() -> tuple[Column, ...]:
    """Return the aggregates, in the field order of `Facts`."""
    sound = is_sound()
    is_closed = ~sound & (status_by(F.col("reasons")) != OPEN)
    return (
        F.count(F.lit(1)),
        F.count_if(~sound),
        F.count_if(is_closed),
        F.max(F.when(sound, F.unix_micros(OWN_TIME))),
        F.min(F.when(sound, F.unix_micros("event_time"))),
        F.min(F.unix_micros("ingested_at")),
        F.max(F.unix_micros("ingested_at")),
    )
