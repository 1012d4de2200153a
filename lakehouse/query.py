"""Spark SQL over the lake: bronze., silver. and gold. tables by name."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import StructType, TimestampType
from rich.table import Table

from lakehouse import bronze, gold, silver, tables
from lakehouse.dead_letters import DEAD_LETTERS
from lakehouse.errors import QueryError
from lakehouse.settings import Settings
from lakehouse.streams import STREAMS
from lakehouse.tables import TableSpec


@dataclass(frozen=True)
class Answer:
    """The columns and rows of a query, with `truncated` where there were more than asked for."""

    schema: StructType
    rows: Sequence[Row]
    truncated: bool


def specs(settings: Settings) -> tuple[TableSpec, ...]:
    """Return every table of the lake, whether it has been made yet or not."""
    sources = [source for stream in STREAMS for source in stream.sources]
    merged = [table for stream in STREAMS for table in stream.gold]
    return (
        *(bronze.spec(source) for source in sources),
        *(silver.spec(source, settings) for source in sources),
        DEAD_LETTERS,
        *(gold.spec(table, settings) for table in merged),
    )


def register(spark: SparkSession, settings: Settings) -> list[str]:
    """Make the lake's tables known to the session by name and return the names of those that exist."""
    found = []
    for spec in specs(settings):
        path = tables.path_of(settings.lake, spec.layer, spec.name)
        if tables.exists(spark, path):
            tables.register(spark, spec, path)
            found.append(spec.qualified_name)
    return found


def ask(spark: SparkSession, statement: str, *, limit: int) -> Answer:
    """Run a SQL statement and return at most `limit` rows.

    Raises QueryError with Spark's explanation where the statement is refused or fails.
    """
    try:
        frame = spark.sql(statement)
        rows = frame.limit(limit + 1).collect()
    except PySparkException as error:
        raise QueryError(str(error).strip().splitlines()[0]) from None
    return Answer(frame.schema, rows[:limit], truncated=len(rows) > limit)


def plain_rows(answer: Answer) -> Iterator[list[Any]]:
    """Yield each row as values that JSON knows: times as ISO 8601 in UTC, decimals as text, bytes as hex."""
    in_utc = [isinstance(column.dataType, TimestampType) for column in answer.schema.fields]
    for row in answer.rows:
        yield [_plain(value) if not utc else _utc(value) for value, utc in zip(row, in_utc, strict=True)]


def as_json(answer: Answer) -> str:
    """Return the answer as a JSON array with one object a row and line."""
    names = answer.schema.names
    lines = (json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) for row in plain_rows(answer))
    return "[" + ",\n ".join(lines) + "]"


def as_csv(answer: Answer) -> str:
    """Return the answer as CSV with a header; null is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(answer.schema.names)
    for row in plain_rows(answer):
        writer.writerow(
            [
                json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
                for value in row
            ]
        )
    return text.getvalue().rstrip("\n")


def as_table(answer: Answer) -> Table:
    """Return the answer as a table for the terminal."""
    table = Table(caption=f"{len(answer.rows):,} row{'s' * (len(answer.rows) != 1)}", caption_justify="left")
    for name in answer.schema.names:
        table.add_column(name, overflow="fold")
    for row in plain_rows(answer):
        table.add_row(*("" if value is None else str(value) for value in row))
    return table


def _utc(value: datetime | None) -> str | None:
    return None if value is None else value.astimezone(UTC).isoformat().replace("+00:00", "Z")


_PLAIN: Mapping[type, Callable[[Any], Any]] = {
    datetime: _utc,
    date: date.isoformat,
    Decimal: str,
    bytes: bytes.hex,
    bytearray: bytearray.hex,
}


def _plain(value: Any) -> Any:
    if isinstance(value, Row):
        return {name: _plain(item) for name, item in value.asDict().items()}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    convert = _PLAIN.get(type(value))
    return value if convert is None else convert(value)
