"""Compute the keys of gold rows from a silver row, as the stream's declaration defines them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lakehouse.engine.records.validation import silver_schema
from lakehouse.streams.definition import GoldTable, MergedTable, Source, only
from lakehouse.streams.messages.layout import Row
from lakehouse.streams.transforms.nulls import FilledNulls


@dataclass(frozen=True)
class RowKey:
    """A gold row's key, or the reason why it cannot be computed. Times are in epoch microseconds."""

    columns: Row | None
    reason: str | None = None


def columns_for(source: Source, table: MergedTable) -> tuple[str, ...]:
    """Return the silver columns from which the keys of a gold table are computed."""
    columns = silver_schema(source).names
    return (*(name for name in table.keys if name in columns), "event_time")


def key_of(source: Source, main: GoldTable, table: MergedTable, row: Row) -> RowKey:
    """Return the key of the row in the gold table `table` into which a silver row of `source` is merged.

    `main` is the table itself or, for a side table, the table that it is maintained with. The key is known if
    each key column is a column of silver or the start of the window that contains the event time. It is
    unknown if the table combines several silver tables, selects rows, or computes columns.
    """
    silver, defaults = f"silver.{source.table}", _defaults(main)
    if defaults is None:
        tables = " and ".join(f"silver.{name}" for name in main.reads)
        how = "combines" if len(main.reads) > 1 else "is computed from selected"
        why = f"a row of gold.{table.name} {how} rows of {tables}"
        return RowKey(None, f"{why}, so a single silver row does not determine its key")
    columns, found = silver_schema(source).names, dict[str, Any]()
    window, time = table.window, table.time_columns and table.time_columns[0]
    for name in table.keys:
        if name in columns:
            found[name] = defaults.get(name) if row[name] is None else row[name]
        elif window is not None and name == time and row["event_time"] is not None:
            found[name] = window.start_of(row["event_time"])
        else:
            return RowKey(None, f"the key column {name} of gold.{table.name} is not a column of {silver}")
    lacking = [name for name, value in found.items() if value is None]
    if lacking:
        return RowKey(None, f"a key column of gold.{table.name} is null in {silver}: {', '.join(lacking)}")
    return RowKey(found)


def _defaults(main: GoldTable) -> Row | None:
    """Return the defaults for null key columns, or None if `combine` is neither FilledNulls nor `only`."""
    if isinstance(main.combine, FilledNulls):
        return main.combine.defaults
    return {} if main.combine is only else None
