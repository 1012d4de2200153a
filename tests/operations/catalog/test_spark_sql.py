"""Spark SQL over a small lake, and the formats in which answers are printed."""

from __future__ import annotations

import csv
import io
import json
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import StructType

from lakehouse.common.errors import QueryError
from lakehouse.common.rows_as_text import QueryResult, as_csv, as_json, plain_rows
from lakehouse.engine.layers import gold, silver
from lakehouse.operations.catalog.spark_sql import WriteRefusedError, ask, define_views, specs
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.tables import Lake
from tests.support.streams import METRICS, METRICS_1M, STREAMS

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def answer(schema: str, *rows: tuple[Any, ...]) -> QueryResult:
    columns = StructType.fromDDL(schema)
    assert isinstance(columns, StructType)
    return QueryResult(columns, [Row(*row) for row in rows], truncated=False)


def filled(spark: SparkSession, lake: str) -> None:
    """Create two of the tables of a lake, one of them with rows."""
    source = METRICS.sources[0]
    path = Lake(spark, lake).ensure(silver.spec(source))
    rows = [
        ("api", "latency", 12.5, None, NOON, NOON, "metrics-events", 0, 0, NOON, NOON, None),
        ("Zürich", "errors", 1.0, "prod", NOON, NOON, "metrics-events", 0, 1, NOON, NOON, None),
    ]
    clean = local_frame(spark, rows, silver.spec(source).schema)
    tables.append(clean, path)
    Lake(spark, lake).ensure(gold.spec(METRICS_1M))


@pytest.fixture
def lake(nameless: SparkSession, lake_settings: Settings, tmp_path: Path) -> Settings:
    """Return a lake with two of its tables, in a directory whose name is hard to quote."""
    settings = lake_settings.changed({"lake": str(tmp_path / "it's a lake")})
    filled(nameless, settings.lake)
    return settings


@pytest.fixture(scope="module")
def unchanged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Return such a lake for the tests that change nothing."""
    found = Lake(spark, str(tmp_path_factory.mktemp("unchanged")))
    filled(spark, found.root)
    return found


def test_the_tables_that_exist_are_known_by_name_and_nothing_is_written_to_the_lake(
    spark: SparkSession, lake: Settings
) -> None:
    files = sorted(Path(lake.lake).rglob("*"))

    assert define_views(Lake(spark, lake.lake), STREAMS) == ["silver.metrics_events", "gold.metrics_1m"]
    assert define_views(Lake(spark, lake.lake), STREAMS) == ["silver.metrics_events", "gold.metrics_1m"]

    assert sorted(Path(lake.lake).rglob("*")) == files
    found = ask(spark, "SELECT service_id, value FROM silver.metrics_events ORDER BY offset", limit=10)
    assert [tuple(row) for row in found.rows] == [("api", 12.5), ("Zürich", 1.0)]
    assert ask(spark, "SELECT * FROM gold.metrics_1m", limit=10).rows == []
    shown = ask(spark, "SHOW TABLES IN gold", limit=10)
    assert [row.tableName for row in shown.rows] == ["metrics_1m"]


def test_an_empty_lake_has_no_tables(spark: SparkSession, lake_settings: Settings) -> None:
    assert define_views(Lake(spark, lake_settings.lake), STREAMS) == []


def test_every_table_of_the_lake_has_a_spec() -> None:
    sources = ("metrics_events", "call_analytics", "call_metrics", "sales_events", "transactions")

    assert sorted(spec.qualified_name for spec in specs(STREAMS)) == sorted(
        [
            *(f"bronze.{name}" for name in sources),
            *(f"silver.{name}" for name in sources),
            "silver.dead_letters",
            "gold.metrics_1m",
            "gold.metrics_summary_10m",
            "gold.call_records",
            "gold.product_sales",
            "gold.sales_notifications",
            "gold.user_transactions_5m",
            "ops.data_losses",
            "ops.events",
            "ops.expectation_results",
            "ops.gates",
            "ops.history",
            "ops.lateness",
            "ops.retained_ids",
            "ops.retention",
            "ops.unsent_rows",
        ]
    )


@pytest.mark.parametrize(("limit", "rows", "truncated"), [(2, 2, True), (3, 3, False), (4, 3, False)])
def test_an_answer_says_whether_there_is_more(
    spark: SparkSession, limit: int, rows: int, truncated: bool
) -> None:
    found = ask(spark, "SELECT id FROM range(3)", limit=limit)

    assert len(found.rows) == rows
    assert found.truncated is truncated
    assert found.schema.names == ["id"]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("SELEC 1", "PARSE_SYNTAX_ERROR"),
        ("SELECT * FROM gold.no_such_table", "no_such_table"),
        ("SELECT missing FROM range(1)", "missing"),
        ("SELECT 1 / id FROM range(1)", "DIVIDE_BY_ZERO"),
    ],
)
def test_a_statement_that_fails_is_refused_in_sparks_words_without_a_stack(
    spark: SparkSession, statement: str, said: str
) -> None:
    with pytest.raises(QueryError) as caught:
        ask(spark, statement, limit=10)

    assert said in str(caught.value)
    assert "stacktrace" not in str(caught.value)
    assert "\tat " not in str(caught.value)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM silver.metrics_events",
        "/* SELECT */ delete from silver.metrics_events WHERE offset = 0",
        "UPDATE silver.metrics_events SET value = 0",
        "INSERT INTO silver.metrics_events SELECT * FROM silver.metrics_events",
        "INSERT OVERWRITE silver.metrics_events SELECT * FROM silver.metrics_events",
        "WITH one AS (SELECT * FROM silver.metrics_events) INSERT INTO silver.metrics_events TABLE one",
        "FROM silver.metrics_events INSERT INTO silver.metrics_events SELECT *",
        "MERGE INTO silver.metrics_events t USING (SELECT 1) s ON false WHEN MATCHED THEN DELETE",
        "TRUNCATE TABLE silver.metrics_events",
        "DROP TABLE silver.metrics_events",
        "ALTER TABLE silver.metrics_events ADD COLUMN more string",
        "CREATE TABLE silver.more AS SELECT 1 AS one",
        "CREATE TEMPORARY VIEW more AS SELECT 1 AS one",
        "OPTIMIZE silver.metrics_events",
        "VACUUM silver.metrics_events",
        "RESTORE TABLE silver.metrics_events TO VERSION AS OF 0",
        "EXECUTE IMMEDIATE 'DELETE FROM silver.metrics_events'",
        "BEGIN DELETE FROM silver.metrics_events; END",
    ],
)
def test_a_statement_that_changes_something_is_refused_unless_it_is_asked_for(
    nameless: SparkSession, unchanged: Lake, statement: str
) -> None:
    define_views(unchanged, STREAMS)
    path = unchanged.path("silver", "metrics_events")
    version = tables.version_of(nameless, path)

    with pytest.raises(WriteRefusedError, match="--write"):
        ask(nameless, statement, limit=1)

    assert tables.version_of(nameless, path) == version


@pytest.mark.parametrize(
    "statement",
    [
        "SHOW SCHEMAS",
        "SHOW TABLES IN silver",
        "DESCRIBE TABLE EXTENDED silver.metrics_events",
        "DESCRIBE HISTORY silver.metrics_events",
        "DESCRIBE DETAIL silver.metrics_events",
        "SHOW TBLPROPERTIES silver.metrics_events",
        "EXPLAIN DELETE FROM silver.metrics_events",
        "WITH one AS (SELECT 1) SELECT * FROM one UNION ALL VALUES (2)",
        "TABLE silver.metrics_events",
    ],
)
def test_what_only_reads_needs_no_leave(nameless: SparkSession, unchanged: Lake, statement: str) -> None:
    define_views(unchanged, STREAMS)
    assert ask(nameless, statement, limit=10).rows


@pytest.mark.soak
def test_corrections_beside_other_writers_are_made_again_until_each_has_been_made(
    spark: SparkSession, lake: Settings
) -> None:
    """Two writers make three each, so none can be overtaken more often than a statement is tried."""
    define_views(Lake(spark, lake.lake), STREAMS)
    together = Barrier(2)

    def correct() -> None:
        for _ in range(3):
            together.wait(300)
            statement = "UPDATE silver.metrics_events SET value = value + 1 WHERE offset = 0"
            ask(spark, statement, limit=1, write=True)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(correct) for _ in range(2)]:
            done.result()

    found = ask(spark, "SELECT value FROM silver.metrics_events ORDER BY offset", limit=10)
    assert [row.value for row in found.rows] == [18.5, 1.0]


def test_values_become_what_json_knows(spark: SparkSession) -> None:
    expressions = {
        "timestamp'2026-01-01 00:00:00Z'": "2026-01-01T00:00:00Z",
        "timestamp'2026-01-01 02:00:00.123456+02:00'": "2026-01-01T00:00:00.123456Z",
        "timestamp'1969-12-31 23:59:59.999Z'": "1969-12-31T23:59:59.999000Z",
        # 01:30 occurs twice on this night in St. John's, the time zone of the tests.
        "timestamp'2025-11-02 04:00:00Z'": "2025-11-02T04:00:00Z",
        "timestamp'2025-11-02 05:00:00Z'": "2025-11-02T05:00:00Z",
        "timestamp_ntz'2026-01-01 00:00:00'": "2026-01-01T00:00:00",
        "date'2026-01-01'": "2026-01-01",
        "cast(null as timestamp)": None,
        "12.500": "12.500",
        "cast(0 as decimal(38,9))": "0.000000000",
        "cast(12345678901234567890 as decimal(38,9))": "12345678901234567890.000000000",
        "cast(1.5 as double)": 1.5,
        "double('NaN')": "NaN",
        "double('-Infinity')": "-Infinity",
        "9007199254740993": 9007199254740993,
        "true": True,
        "'é\"😀'": 'é"😀',
        "X'00ff'": "00ff",
        "interval '1 02:03:04' day to second": "P1DT7384S",
        "array(timestamp'2026-01-01 00:00:00Z', null)": ["2026-01-01T00:00:00Z", None],
        "named_struct('at', timestamp'2026-01-01 00:00:00Z', 'n', 1.50)": {
            "at": "2026-01-01T00:00:00Z",
            "n": "1.50",
        },
        "map(date'2026-01-01', array(X'01'))": {"2026-01-01": ["01"]},
        "parse_json('{\"a\":[1]}')": '{"a":[1]}',
    }
    columns = ", ".join(f"{expression} AS c{n}" for n, expression in enumerate(expressions))

    found = ask(spark, f"SELECT {columns}", limit=1)

    (values,) = plain_rows(found)
    assert dict(zip(expressions, values, strict=True)) == expressions
    names = [f"c{n}" for n in range(len(expressions))]
    assert json.loads(as_json(found)) == [dict(zip(names, expressions.values(), strict=True))]


def test_times_are_in_utc_wherever_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    noon = answer("at timestamp, n int", (datetime(2026, 7, 1, 12), 1))  # noqa: DTZ001 - as PySpark hands it over

    printed = []
    for zone in ("UTC", "America/St_Johns", "Asia/Kathmandu"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        printed.append(next(plain_rows(noon))[0])
    monkeypatch.undo()
    time.tzset()

    assert printed == ["2026-07-01T12:00:00Z", "2026-07-01T14:30:00Z", "2026-07-01T06:15:00Z"]


def test_json_has_one_object_a_line_and_strict_words() -> None:
    found = answer("name string, value double", ("Zürich", 1.0), ("b", float("inf")), ("c", None))

    assert as_json(found) == (
        '[{"name": "Zürich", "value": 1.0},\n'
        ' {"name": "b", "value": "Infinity"},\n'
        ' {"name": "c", "value": null}]'
    )
    assert as_json(answer("name string")) == "[]"


def test_csv_has_a_header_and_quotes_what_needs_it() -> None:
    found = answer(
        "name string, n int, yes boolean, list array<int>, map map<string, boolean>",
        ('say "hi", then\nleave', 1, True, [1, 2], {"é": True}),
        (None, None, None, None, None),
    )

    text = as_csv(found)

    assert text == ('name,n,yes,list,map\n"say ""hi"", then\\nleave",1,true,"[1, 2]","{""é"": true}"\n,,,,')
    assert list(csv.reader(io.StringIO(text)))[1] == [
        r'say "hi", then\nleave',
        "1",
        "true",
        "[1, 2]",
        '{"é": true}',
    ]


def test_csv_of_no_rows_is_its_header() -> None:
    assert as_csv(answer("a int, b string")) == "a,b"
