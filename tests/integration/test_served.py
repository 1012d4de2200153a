"""The API returns what Spark has written: every row of every gold table is compared with Spark SQL."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pytest
from pydantic import SecretStr
from pyspark.sql import SparkSession
from pyspark.sql.types import DecimalType, TimestampType
from starlette.testclient import TestClient

from lakehouse.operations.catalog.spark_sql import define_views
from lakehouse.serving.app import make_app
from lakehouse.serving.security.access import Access
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import MergedTable
from lakehouse.streams.registry import load
from tests.support.streams import STREAMS

TABLES = [table for stream in STREAMS for table in stream.tables]
NOWHERE = SecretStr("redis://127.0.0.1:1/0")
PAGE = 97


def answered(client: TestClient, table: str) -> Iterator[dict[str, Any]]:
    """Yield every row that the API returns for a table, page by page."""
    path = f"/api/v1/tables/{table}/rows?limit={PAGE}"
    cursor = ""
    while True:
        found = client.get(f"{path}{cursor}")
        assert found.status_code == 200, found.text
        page = json.loads(found.text, parse_float=Decimal)
        assert page["source"] == "gold"
        yield from page["rows"]
        if page["next"] is None:
            return
        cursor = f"&cursor={page['next']}"


def queried(spark: SparkSession, table: MergedTable) -> list[dict[str, Any]]:
    """Return every row of a table from Spark SQL, with times in epoch milliseconds."""
    schema = spark.table(f"gold.{table.name}").schema
    columns = (
        f"unix_millis({field.name}) AS {field.name}"
        if isinstance(field.dataType, TimestampType)
        else field.name
        for field in schema
    )
    statement = f"SELECT {', '.join(columns)} FROM gold.{table.name}"
    return [row.asDict() for row in spark.sql(statement).collect()]


def as_spark_has_it(table: MergedTable, column: str, value: Any) -> Any:
    """Return a JSON value in the type of its column; text and payloads are unchanged."""
    kind = table.schema[column].dataType
    if isinstance(kind, DecimalType):
        return None if value is None else Decimal(value)
    if kind.typeName() == "double" and value is not None:
        return float(value)
    return value


def same(expected: Any, found: Any) -> bool:
    if expected == found or all(isinstance(one, float) and math.isnan(one) for one in (expected, found)):
        return True
    return isinstance(expected, str) and json.loads(expected, parse_float=Decimal) == found


def differences(spark: SparkSession, client: TestClient, table: MergedTable) -> tuple[int, list[str]]:
    expected = {tuple(row[name] for name in table.keys): row for row in queried(spark, table)}
    rows = list(answered(client, table.name))
    found = {tuple(row["key"][name] for name in table.keys): row for row in rows}
    wrong = [f"{table.name}: {key} is not in both" for key in expected.keys() ^ found.keys()]
    wrong += [f"{table.name}: rows come twice"] if len(rows) != len(found) else []
    for key in expected.keys() & found.keys():
        for name, part in table.export.value.values.items():
            if len(part.columns) == 1:
                column = part.columns[0]
                value = as_spark_has_it(table, column, found[key]["data"][name])
                if not same(expected[key].get(column), value):
                    wrong.append(f"{table.name}: {key}: {name} is {value}, not {expected[key].get(column)}")
    return len(expected), wrong


def check_all(spark: SparkSession, settings: Settings) -> dict[str, int]:
    define_views(Lake(spark, settings.lake), STREAMS)
    with client_of(settings, {"redis.url": NOWHERE}) as client:
        found = {table.name: differences(spark, client, table) for table in TABLES}
    assert [one for _, wrong in found.values() for one in wrong] == []
    return {name: rows for name, (rows, _) in found.items()}


def check_redis(settings: Settings) -> dict[str, Counter[str]]:
    """Ask for every row by its key: Redis and gold must agree. Return how often each has answered."""
    with client_of(settings) as client, client_of(settings, {"redis.url": NOWHERE}) as without:
        sources: dict[str, Counter[str]] = {}
        for table in TABLES:
            sources[table.name] = Counter()
            for row in answered(without, table.name):
                found = client.get(f"/api/v1/tables/{table.name}/row", params=asked(table, row["key"]))
                assert found.status_code == 200, found.text
                one = json.loads(found.text, parse_float=Decimal)
                assert (one["key"], one["data"]) == (row["key"], row["data"])
                sources[table.name][one["source"]] += 1
    return sources


def asked(table: MergedTable, key: dict[str, Any]) -> dict[str, Any]:
    return {name: key[name] for name in table.keys if key[name] is not None}


@contextmanager
def client_of(settings: Settings, changes: Mapping[str, Any] | None = None) -> Iterator[TestClient]:
    app = make_app(settings.changed(changes or {}), load(settings), Access(None))
    with TestClient(app, base_url="http://localhost:8080") as client:
        yield client


@pytest.mark.soak
def test_the_rows_of_every_stream_are_answered_as_spark_has_them(
    nameless: SparkSession, filled_lake: Settings
) -> None:
    rows = check_all(nameless, filled_lake)
    assert rows["metrics_1m"] > PAGE
    assert min(rows.values()) > 0
    for table, sources in check_redis(filled_lake).items():
        assert sources["redis"] > 0, table
        assert sources.keys() <= {"redis", "gold"}  # some rows are not exported
