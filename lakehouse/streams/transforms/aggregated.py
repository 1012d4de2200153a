"""Tables of aggregates: a micro-batch's rows are reduced to states per key, which are merged into gold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from lakehouse.storage.spark.columns import Columns, Grouped
from lakehouse.storage.tables import described
from lakehouse.streams.definition import EventTimeProgress
from lakehouse.streams.transforms.aggregates import (
    ROWS,
    Aggregate,
    Part,
    merged_state,
    state_of_rows,
    state_type,
)
from lakehouse.streams.transforms.windows import WINDOW_COLUMNS, Tumbling
from lakehouse.streams.window_lengths import WindowLength

STATE = "state"
ROW_COUNT = f"{STATE}.{ROWS.name}"
"""The column with a row's state, and the field in it with the number of rows."""


@dataclass(frozen=True)
class AggregatedRows:
    """The transformations for a table with one row per key, or per key and window of this length.

    `by` maps the key's columns to their types, and `aggregates` the other columns to their aggregates.
    """

    by: Mapping[str, DataType]
    window: WindowLength | None
    aggregates: Mapping[str, Aggregate]

    @property
    def keys(self) -> tuple[str, ...]:
        """The key of a row."""
        return (*self.by, *(("window_start",) if self.window is not None else ()))

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The parts of a row's state, without duplicates."""
        every = [ROWS, *(part for one in self.aggregates.values() for part in one.parts)]
        return tuple({part.name: part for part in every}.values())

    @property
    def totals(self) -> list[str]:
        """The parts of the state that are null if a sum does not fit in its type."""
        return [part.name for part in self.parts if part.is_total]

    @cached_property
    def schema(self) -> StructType:
        """One row per key, or per key and window. Only merges need the last column."""
        return described(
            *((name, type_, "Part of the key by which rows are grouped.") for name, type_ in self.by.items()),
            *(WINDOW_COLUMNS if self.window is not None else ()),
            *((name, one.type, one.comment) for name, one in self.aggregates.items()),
            (STATE, state_type(self.parts), "The state of the aggregates, for merges."),
        )

    def preaggregate(self, rows: DataFrame) -> DataFrame:
        """Return the state of each key over a micro-batch's selected rows."""
        return self._grouped.of(self.keyed(rows)).withColumn("recomputed", F.lit(False))

    def keyed(self, rows: DataFrame) -> DataFrame:
        """Add the start of its window to each row, if the table has windows."""
        windows = self._windows
        return rows if windows is None else rows.withColumn("window_start", windows.start())

    def fold(self, partials: DataFrame, current: DataFrame, _progress: EventTimeProgress) -> DataFrame:
        """Return the keys that have new rows, with their states merged."""
        joined = partials.alias("p").join(current.alias("c"), list(self.keys), "left")
        return self._shown.of(self._merged.of(joined))

    def needs_recompute(self, partials: DataFrame, current: DataFrame) -> DataFrame:
        """Return the keys with a current or new total that is null because it does not fit in its type.

        The sum of the two totals can still fit.
        """
        keys = list(self.keys)
        both = current.alias("c").join(partials.alias("p"), keys)
        return both.where(self._overflows("c") | self._overflows("p")).select(*keys)

    def _overflows(self, side: str) -> Column:
        found = [F.col(f"{side}.{STATE}.{name}").isNull() for name in self.totals]
        return F.array_contains(F.array(*found), F.lit(True))

    @cached_property
    def _windows(self) -> Tumbling | None:
        return None if self.window is None else Tumbling(tuple(self.by), self.window)

    @cached_property
    def _grouped(self) -> Grouped:
        state = state_of_rows(self.parts)
        return Grouped([F.col(name) for name in self.keys], {STATE: state})

    @cached_property
    def _merged(self) -> Columns:
        keys = {name: F.col(name) for name in self.keys}
        both = merged_state(self.parts, F.col(f"c.{STATE}"), F.col(f"p.{STATE}"))
        return Columns({**keys, STATE: both})

    @cached_property
    def _shown(self) -> Columns:
        state, windows = F.col(STATE), self._windows
        ends = {} if windows is None else {"window_end": windows.end()}
        values = {name: one.value(state).cast(one.type) for name, one in self.aggregates.items()}
        found = {**{name: F.col(name) for name in self.keys}, **ends, **values, STATE: state}
        return Columns({name: found[name] for name in self.schema.names})
