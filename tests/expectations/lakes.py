"""Tiny lakes written as literals: the tables that a suite reads, row by row.

A row is {column: SQL expression}; omitted columns are null. A lake is {view: rows}; the table itself is also
a view, `layer_name`. Rows have expressions instead of values, because Spark sessions use UTC, but Python uses
the machine's time zone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lakehouse.engine.layers import bronze
from lakehouse.engine.records import dead_letters
from lakehouse.engine.records.validation import clean_schema
from lakehouse.operations.quality import subjects
from lakehouse.storage.spark import internals
from tests.support.streams import STREAMS

Row = Mapping[str, str]
TinyLake = Mapping[str, Sequence[Row]]

_CHANGES = StructType().add("_change_type", "string").add("_commit_version", "long")

SCHEMAS: Mapping[str, StructType] = {
    "limits": subjects.LIMITS,
    "silver_dead_letters": dead_letters.SCHEMA,
    **{f"bronze_{source.table}": bronze.SCHEMA for stream in STREAMS for source in stream.sources},
    **{
        f"silver_{source.table}": clean_schema(source.contract)
        for stream in STREAMS
        for source in stream.sources
    },
    **{f"gold_{table.name}": table.schema for stream in STREAMS for table in stream.tables},
    **{
        f"gold_{table.name}_changes": StructType([*table.schema, *_CHANGES])
        for stream in STREAMS
        for table in stream.tables
    },
}
TABLES = tuple(
    view.replace("_", ".", 1) for view in SCHEMAS if view != "limits" and not view.endswith("_changes")
)

LIMITS: Row = {
    "now": "TIMESTAMP '2026-03-29 12:00:00Z'",
    "sales_threshold": "2000",
    "future_tolerance_s": "300",
}


@dataclass(frozen=True)
class Case:
    """A lake in which a table meets its suite, and by expectation a change that makes only that one fail."""

    good: TinyLake
    bad: Mapping[str, TinyLake]


def at(time: str, day: str = "2026-03-29") -> str:
    """Return a UTC time, by default on the day of all the lakes."""
    return f"TIMESTAMP '{day} {time}Z'"


def text(value: str) -> str:
    return f"'{value}'"


def later() -> TinyLake:
    """Return the change that makes every table stale: it is a day and a half later."""
    return {"limits": [{**LIMITS, "now": at("23:00:00", "2026-03-30")}]}


def frame(spark: SparkSession, view: str, rows: Sequence[Row]) -> DataFrame:
    """Return a view's rows in its schema, evaluated; otherwise, every query would optimize the literals."""
    schema = SCHEMAS[view]
    unknown = {column for row in rows for column in row} - set(schema.names)
    assert not unknown, f"{view} has no columns {sorted(unknown)}"
    selects = (
        "SELECT "
        + ", ".join(
            f"CAST({row.get(column.name, 'NULL')} AS {column.dataType.simpleString()}) AS `{column.name}`"
            for column in schema
        )
        for row in rows
    )
    # Within the JVM: as Python values, times would depend on the machine's time zone.
    local = internals.held(spark.sql(" UNION ALL ".join(selects)))
    assert local is not None
    return local
