"""Tumbling windows of event time, and tables that keep the statistics of a value in each.

A window is [window_start, window_start + length), UTC; the starts are multiples of the length since the
epoch. A row is_final when event time has passed its window's end by the grace; a later update of a final row
is still possible, as long as silver accepts records for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse import statistics
from lakehouse.settings import Settings
from lakehouse.stream import Front


@dataclass(frozen=True)
class Tumbling:
    """Windows of one length for each group of `by`."""

    by: tuple[str, ...]
    length_s: int

    @property
    def keys(self) -> tuple[str, ...]:
        """The key of a table with one row a window."""
        return (*self.by, "window_start")

    def start(self) -> Column:
        """Return the start of the window that an event_time lies in."""
        micros = F.unix_micros("event_time")
        return F.timestamp_micros(micros - F.pmod(micros, F.lit(self.length_s * 1_000_000)))

    def end(self) -> Column:
        """Return the end of the window that begins at window_start."""
        return F.col("window_start") + F.expr(f"INTERVAL {self.length_s} SECONDS")


@dataclass(frozen=True)
class StatisticsWindows:
    """The transformations of a table that keeps `lakehouse.statistics` of `value` in windows."""

    windows: Tumbling

    @property
    def schema(self) -> StructType:
        """One row a group and window; last, what only the next merge needs."""
        names = StructType()
        for name in self.windows.by:
            names = names.add(name, "string")
        return StructType(
            [
                *names.add("window_start", "timestamp").add("window_end", "timestamp"),
                *statistics.SCHEMA.fields[:11],
                *StructType().add("last_event_time", "timestamp").add("is_final", "boolean"),
                *statistics.SCHEMA.fields[11:],
            ]
        )

    def partial(self, clean: DataFrame, settings: Settings) -> DataFrame:
        """Return the state of each window over the clean rows of a micro-batch, one row a key."""
        states = statistics.aggregates(F.col("value"), settings.quantile_k) | {
            "last_event_time": F.max("event_time")
        }
        return clean.groupBy(*self.windows.by, self.windows.start().alias("window_start")).agg(
            *(state.alias(name) for name, state in states.items())
        )

    def fold(self, partials: DataFrame, current: DataFrame, front: Front, settings: Settings) -> DataFrame:
        """Return the windows that are new, have new values, or have become final by the front."""
        keys, window_end = list(self.windows.keys), self.windows.end()
        joined = partials.alias("p").join(current.alias("c"), keys, "full_outer")
        final = _is_final(window_end, front, settings)
        touched = joined.where(F.col("p.count").isNotNull() | (final & ~F.col("c.is_final")))
        states = touched.select(
            *keys,
            *(state.alias(name) for name, state in _merged().items()),
            F.greatest("c.last_event_time", "p.last_event_time").alias("last_event_time"),
        )
        return (
            states.withColumns(statistics.derived())
            .withColumn("window_end", window_end)
            .withColumn("is_final", final)
            .select(*self.schema.names)
        )


def _merged() -> dict[str, Column]:
    """Return the state of standing and new values together, where the standing row still has one."""
    cleared = F.col("c.count").isNotNull() & F.col("c.sketch").isNull() & F.col("p.count").isNotNull()
    refusal = F.raise_error(
        F.concat(
            F.lit("a record came for the window of "),
            F.col("window_start").cast("string"),
            F.lit(", whose state maintenance has cleared because it was too old to be updated"),
        )
    )
    states = statistics.merged("c", "p")
    return states | {"sketch": F.when(cleared, refusal.cast("binary")).otherwise(states["sketch"])}


def due_windows(front: Front, settings: Settings) -> Column:
    """Select the current rows that become final between the two ends of the front."""
    final_now = _is_final(F.col("window_end"), front, settings)
    if front.before is None:
        return final_now
    return final_now & ~_is_final(F.col("window_end"), Front(None, front.before), settings)


def fixed_settings(settings: Settings) -> Mapping[str, str]:
    """Return the settings that rows with statistics depend on."""
    return {"quantile_k": str(settings.quantile_k), "grace_s": str(settings.grace_s)}


def statistics_message(names: Mapping[str, str]) -> Column:
    """Return what leaves of a row: the columns of `names` under their JSON names, times, statistics."""
    return F.struct(
        *(F.col(column).alias(name) for name, column in names.items()),
        F.unix_millis("window_start").alias("windowStart"),
        F.unix_millis("window_end").alias("windowEnd"),
        *(F.col(name) for name in statistics.SCHEMA.names[:11]),
        F.unix_millis("last_event_time").alias("lastEventTime"),
        F.col("is_final").alias("isFinal"),
    )


def _is_final(window_end: Column, front: Front, settings: Settings) -> Column:
    return window_end <= F.lit(front.now) - F.expr(f"INTERVAL {settings.grace_s} SECONDS")
