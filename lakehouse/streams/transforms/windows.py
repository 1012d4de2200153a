"""Tumbling event-time windows, and tables with statistics of a value per window.

A window is [window_start, window_end), UTC; `lakehouse.streams.window_lengths` defines both times. A row
becomes final once event time has passed the window's end plus the grace period. While no events arrive, the
wall clock decides instead. A final row remains final even if the grace period changes
(`lakehouse.engine.progress.finality`), but is still updated as long as silver accepts records for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.storage.spark.columns import Columns
from lakehouse.storage.spark.execution import by_reference
from lakehouse.storage.tables import described, from_micros, shifted
from lakehouse.storage.tables.specs import EPOCH
from lakehouse.streams.definition import EventClock, EventTimeProgress, GoldTable, Stream, WallClock
from lakehouse.streams.messages.layout import Equals, Message, Millis, Plain
from lakehouse.streams.transforms import statistics
from lakehouse.streams.window_lengths import Seconds, WindowLength

_MINUTE = Seconds(60)
WINDOW_COLUMNS = (
    ("window_start", "timestamp", "Start of the window in event time, UTC (inclusive)."),
    ("window_end", "timestamp", "End of the window in event time, UTC (exclusive)."),
)
"""The columns of a window, with their types and catalog comments."""


@dataclass(frozen=True)
class Tumbling:
    """Tumbling windows of this length, for each combination of values in the columns `by`."""

    by: tuple[str, ...]
    length: WindowLength

    @property
    def keys(self) -> tuple[str, ...]:
        """The key of a table with one row per group and window."""
        return (*self.by, "window_start")

    def start(self) -> Column:
        """Return the start of the window that contains event_time."""
        return F.expr(self.length.start("event_time"))

    def end(self) -> Column:
        """Return the end of the window that starts at window_start."""
        return F.expr(self.length.end("window_start"))


@dataclass(frozen=True)
class StatisticsWindows:
    """The transformations for a table with statistics of `value` per window (`transforms.statistics`).

    A window becomes final `grace_s` after its end, in event time. Once no event has arrived for
    `idle_after_s`, the wall clock decides instead. `quantile_k` is the sketch size.
    """

    windows: Tumbling
    grace_s: int
    quantile_k: int
    idle_after_s: int
    value: str = "value"

    @property
    def schema(self) -> StructType:
        """One row per group and window. Only merges need the last columns."""
        window = described(
            *((name, "string", "Part of the key by which values are grouped.") for name in self.windows.by),
            *WINDOW_COLUMNS,
        )
        state = described(
            ("last_event_time", "timestamp", "Latest event time of the values, UTC."),
            (
                "is_final",
                "boolean",
                (
                    "True once event time or, without new events, the wall clock has passed window_end plus "
                    "the grace. Late records can still update the row."
                ),
            ),
        )
        return StructType([*window, *statistics.SHOWN, *state, *statistics.FOR_MERGES])

    def preaggregate(self, clean: DataFrame) -> DataFrame:
        """Return the state of each window over a micro-batch's clean rows, one row per key."""
        windows = self.keyed(clean).groupBy(*self.windows.keys).agg(*_states(self.value, self.quantile_k))
        return windows.withColumn("recomputed", F.lit(False))

    def needs_recompute(self, partials: DataFrame, current: DataFrame) -> DataFrame:
        """Return the keys of partials that cannot be merged, because their current row has no sketch.

        Maintenance clears the sketch together with m2. A recomputed window gets m2 but no sketch, because it
        can already include rows of later micro-batches. These micro-batches must recompute it again.
        """
        keys = list(self.windows.keys)
        return current.where(F.col("sketch").isNull()).join(partials, keys, "left_semi").select(*keys)

    def clock(self) -> EventClock:
        """Return the clock that makes rows final."""
        return EventClock(
            "last_event_time",
            "window_end",
            self.due_ends,
            when_idle=WallClock(
                waits=Equals("is_final", False),
                column="window_end",
                after=timedelta(seconds=self.grace_s),
                set_columns=lambda: {"is_final": F.lit(True)},
            ),
            idle_after=timedelta(seconds=self.idle_after_s),
        )

    def unsettled_from(self, progress: EventTimeProgress) -> datetime | None:
        """Return the start of the last window whose state can be cleared.

        Later windows have not ended yet.
        """
        if progress.before is None:
            return None
        length, reached = self.windows.length, (progress.before - EPOCH) // timedelta(microseconds=1)
        return from_micros(length.previous(length.start_of(reached)))

    def keyed(self, clean: DataFrame) -> DataFrame:
        """Add a column to clean rows with the start of each row's window."""
        return clean.withColumn("window_start", self.windows.start())

    def fold(self, partials: DataFrame, current: DataFrame, progress: EventTimeProgress) -> DataFrame:
        """Return the windows that are new, have new values, or become final with this progress."""
        columns = _folding(self)
        now = by_reference(F.lit(progress.now), F.col("window_start"))
        joined = partials.alias("p").join(current.alias("c"), list(self.windows.keys), "full_outer")
        touched = joined.withColumn("_now", now).where(columns.touched)
        return columns.result.of(columns.derived.added_to(columns.states.of(touched)))

    def due_ends(self, progress: EventTimeProgress) -> tuple[datetime | None, datetime]:
        """Return the earliest and latest end of the windows that become final with this progress.

        Both bounds are inclusive, and None means no lower bound. A window that ends at the lower bound may
        already be final.
        """
        grace = timedelta(seconds=self.grace_s)
        return progress.before and shifted(progress.before, -grace), shifted(progress.now, -grace)


@dataclass(frozen=True)
class _Folding:
    """The columns that a fold computes, built once: changed windows, states, derived values, the result."""

    touched: Column
    states: Columns
    derived: Columns
    result: Columns


@cache
def _states(value: str, quantile_k: int) -> tuple[Column, ...]:
    states = statistics.aggregates(F.col(value), quantile_k) | {"last_event_time": F.max("event_time")}
    return tuple(state.alias(name) for name, state in states.items())


@cache
def _folding(table: StatisticsWindows) -> _Folding:
    window_end = table.windows.end()
    by_event_time = window_end <= F.col("_now") - F.expr(f"INTERVAL {table.grace_s} SECONDS")
    states = {
        **{name: F.col(name) for name in table.windows.keys},
        **statistics.merged("c", "p"),
        "last_event_time": F.greatest("c.last_event_time", "p.last_event_time"),
        "recomputed": F.col("p.recomputed"),
        "window_end": window_end,
        "is_final": by_event_time | F.coalesce("c.is_final", F.lit(False)),
    }
    sketch = F.when(~F.coalesce("recomputed", F.lit(False)), F.col("sketch"))
    return _Folding(
        touched=F.col("p.count").isNotNull() | (by_event_time & ~F.col("c.is_final")),
        states=Columns(states),
        derived=Columns(statistics.derived()),
        result=Columns({name: F.col(name) for name in table.schema.names} | {"sketch": sketch}),
    )


def statistics_message(names: Mapping[str, str]) -> Message:
    """Return the message for a row: columns under the JSON names in `names`, then times and statistics."""
    return Message(
        {
            **{name: Plain(column) for name, column in names.items()},
            "windowStart": Millis("window_start"),
            "windowEnd": Millis("window_end"),
            **{name: Plain(name) for name in statistics.SHOWN.names},
            "lastEventTime": Millis("last_event_time"),
            "isFinal": Plain("is_final"),
        }
    )


def service_metrics(streams: Iterable[Stream]) -> GoldTable | None:
    """Return the first table with one-minute statistics of each service's metrics, or None if there is none.

    The table is recognized by its windows and its message, whose key consists of serviceId and metricName.
    """
    message = statistics_message({"serviceId": "service_id", "metricName": "metric_name"})
    tables = (table for stream in streams for table in stream.gold)
    return next((one for one in tables if one.window == _MINUTE and one.export.value == message), None)
