"""Tiny lakes, written as literals: the tables a suite looks at, row by row.

A row is {column: SQL expression}; columns that it leaves out are null. A lake is {view: rows}, where the
table itself is a view too, `layer_name`. Expressions and not values, because a Spark session's time is UTC
while Python's is the machine's.
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
    """A lake in which a table meets its suite, and by expectation what to change so that it alone fails."""

    good: TinyLake
    bad: Mapping[str, TinyLake]


def at(time: str, day: str = "2026-03-29") -> str:
    """Return a UTC time of the day that all the lakes are of."""
    return f"TIMESTAMP '{day} {time}Z'"


def text(value: str) -> str:
    return f"'{value}'"


def later() -> TinyLake:
    """The change that makes every table stale, a day and a half later."""
    return {"limits": [{**LIMITS, "now": at("23:00:00", "2026-03-30")}]}


def frame(spark: SparkSession, view: str, rows: Sequence[Row]) -> DataFrame:
    """Return the rows of a view in its schema, computed: every query would optimize the literals again."""
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
    # Within the JVM: as Python's values times would depend on the machine's time zone.
    local = internals.held(spark.sql(" UNION ALL ".join(selects)))
    assert local is not None
    return local
