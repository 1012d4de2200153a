"""Keys and messages are the same in Spark and in plain Python, whatever names the rows have."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from lakehouse.serving.reading.gold import columns_of
from lakehouse.sinks.outgoing import group_of, message_of
from lakehouse.streams.definition import MergedTable
from lakehouse.streams.messages.key_names import escaped_text
from lakehouse.streams.messages.layout import GROUP_SEPARATORS, Row
from tests.support.streams import STREAMS

TABLES = [table for stream in STREAMS for table in stream.tables]
ROWS = 400
_NASTY = [
    ":",
    "-",
    "{",
    "}",
    "%",
    "%3A",
    "%25",
    "%2",
    "3A",
    " ",
    "ü",
    "\u2028",
    "😀",
    '"',
    "\\",
    "\n",
    "a",
    "NaN",
]
_PAYLOADS = [
    None,
    "",
    "ok",
    "12",
    '"12"',
    "12 apples",
    "1,2",
    "NaN",
    "true",
    "null and void",
    '{"b":1,"a":[1.5,null,"ü"]}',
    "[]",
    "-0.5",
    "{not",
]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_spark_and_python_make_the_same_of_every_row(spark: SparkSession, table: MergedTable) -> None:
    rows, view = list(made(table)), table.export.redis
    schema = [field for field in table.schema if field.name in columns_of(table)]
    frame = spark.createDataFrame(
        [tuple(row[field.name] for field in schema) for row in rows], StructType(schema)
    )
    found = frame.select(
        view.row_key().alias("row_key"),
        group_of(table).alias("group"),
        view.member().alias("member"),
        view.order().alias("order"),
        message_of(table).alias("message"),
        (F.lit(None) if table.final is None else table.final()).alias("final"),
    ).collect()
    assert len(found) == ROWS
    for spark_row, row in zip(found, map(in_micros, rows), strict=True):
        group = view.group.of(row)
        assert spark_row.row_key == view.row_key.of(row)
        assert spark_row.group == (None if group is None else escaped_text(group, GROUP_SEPARATORS))
        assert spark_row.member == view.member.of(row)
        assert spark_row.order == view.order.of(row)
        assert exactly(spark_row.message) == exactly(table.export.value.text(row))
        assert table.final is None or spark_row.final == table.final.of(row)


def made(table: MergedTable) -> Iterator[Row]:
    rng = random.Random(table.name)
    for _ in range(ROWS):
        yield {name: value_of(table.schema[name].dataType, name, rng) for name in columns_of(table)}


def value_of(kind: DataType, name: str, rng: random.Random) -> Any:
    """Return a value of the type; key columns are never null."""
    if name in {"analytics", "metrics"}:
        return rng.choice(_PAYLOADS)
    makers: dict[type[DataType], Callable[[], Any]] = {
        StringType: lambda: "".join(rng.choices(_NASTY, k=rng.randrange(1, 5))),
        TimestampType: lambda: _EPOCH + timedelta(microseconds=rng.randrange(-(10**15), 4 * 10**15)),
        BooleanType: lambda: rng.random() < 0.5,
        LongType: lambda: rng.randrange(2**63),
        IntegerType: lambda: rng.randrange(2**31),
        DoubleType: lambda: rng.choice([0.0, -1.5, 1e-300, 1e140, 0.1, rng.random(), 12345678.9]),
        DecimalType: lambda: Decimal(rng.choice([0, 5, -(10**9), 10**20, rng.randrange(10**30)])).scaleb(-9),
    }
    return makers[type(kind)]()


def in_micros(row: Row) -> Row:
    return {
        name: (value - _EPOCH) // timedelta(microseconds=1) if isinstance(value, datetime) else value
        for name, value in row.items()
    }


def exactly(message: str) -> Any:
    """Return a message with exact decimals, and with doubles' exponents normalized."""
    pairs: dict[str, Any] = json.loads(message, parse_float=lambda text: Decimal(text).normalize())
    return pairs


AT_MS = 1_772_366_400_000
SEPARATED = {
    "service_id": "a:b",
    "metric_name": "%3A-",
    "environment": "{e}:",
    "user1": "a-b",
    "user2": "c:%2D",
    "product": "p:%3A",
    "user_id": "u:%3A",
    "window_start": AT_MS * 1000,
    "ts": AT_MS * 1000,
    "partition": 2,
    "offset": 7,
}
ROW_KEYS = {
    "metrics_1m": f"a%3Ab:%253A-:{AT_MS}",
    "metrics_summary_10m": f"environment={{e}}%3A:metric=%253A-:{AT_MS}",
    "call_records": f"a%2Db-c:%252D:{AT_MS}",
    "product_sales": "p:%3A",
    "sales_notifications": "p%3A%253A:2:7",
    "user_transactions_5m": f"u%3A%253A:{AT_MS}",
}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_names_of_a_key_of_several_are_escaped(table: MergedTable) -> None:
    assert table.export.redis.row_key.of(SEPARATED) == ROW_KEYS[table.name]
