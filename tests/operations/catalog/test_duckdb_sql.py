"""DuckDB over a lake that Spark has never touched: what it answers, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lakehouse.common.errors import QueryError
from lakehouse.common.rows_as_text import as_csv, as_json
from lakehouse.engine.ops_tables.event_table import EVENTS
from lakehouse.operations.catalog import duckdb_sql as duck
from lakehouse.storage.tables import direct
from tests.support.streams import STREAMS

AT = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """Return a lake with three events in its only table."""
    found = str(tmp_path / "it's a [lake]")
    rows = [{"at": AT, "kind": "audit", "stream": name, "message": "clean"} for name in ("a", "b", "c")]
    direct.append(found, EVENTS, [dict.fromkeys(EVENTS.schema.names) | row for row in rows])
    return found


def asked(lake: str, statement: str, limit: int = 10) -> str:
    return as_json(duck.ask(lake, STREAMS, statement, limit=limit))


def test_values_are_printed_as_spark_s_are(lake: str) -> None:
    row = '{"at": "2026-03-29T01:30:00Z", "kind": "audit", "stream": "b", "table": null}'
    statement = """SELECT "at", kind, stream, "table" FROM ops.events WHERE stream = 'b'"""
    assert asked(lake, statement) == f"[{row}]"
    nested = "SELECT 1.50::DECIMAL(38, 9) AS d, MAP {'k': [1, NULL]} AS m, {'a': '\\x00'::BLOB} AS s"
    assert asked(lake, nested) == '[{"d": "1.500000000", "m": {"k": [1, null]}, "s": {"a": "00"}}]'
    assert asked(lake, "SELECT sum(length(stream)) AS n, 1e308 * 10 AS i FROM ops.events") == (
        '[{"n": 3, "i": "Infinity"}]'
    )
    assert asked(lake, "SHOW TABLES FROM ops") == '[{"name": "events"}]'


UINT64, INT128, UINT128 = 2**64 - 1, 2**127 - 1, 2**128 - 1
# What DuckDB computes, and its JSON and CSV forms.
NUMBERS: Mapping[str, tuple[str, str]] = {
    "INTERVAL 2 MONTH": ('"P2M"', "P2M"),
    "INTERVAL '1 day 90.5 seconds'": ('"P1DT90.5S"', "P1DT90.5S"),
    "-INTERVAL 1 DAY": ('"P-1D"', "P-1D"),
    "INTERVAL 0 DAY": ('"PT0S"', "PT0S"),
    "TIMESTAMP '2020-03-01' - TIMESTAMP '2020-01-01'": ('"P60D"', "P60D"),
    "255::UTINYINT": ("255", "255"),
    "65535::USMALLINT": ("65535", "65535"),
    "4294967295::UINTEGER": ("4294967295", "4294967295"),
    f"{UINT64}::UBIGINT": (str(UINT64), str(UINT64)),
    "hash('a')": ("12561829011207016135", "12561829011207016135"),
    "md5_number('a')": ("129134844867590561315626153795017621772",) * 2,
    f"-{INT128}::HUGEINT": (str(-INT128), str(-INT128)),
    f"{UINT128}::UHUGEINT": (str(UINT128), str(UINT128)),
    "histogram(length(stream))": ('{"1": 3}', '"{""1"": 3}"'),
    f"{{'a': [{UINT64}::UBIGINT], 'b': MAP {{'k': INTERVAL 1 DAY}}}}": (
        f'{{"a": [{UINT64}], "b": {{"k": "P1D"}}}}',
        f'"{{""a"": [{UINT64}], ""b"": {{""k"": ""P1D""}}}}"',
    ),
    "'x'::ENUM('x', 'y')": ('"x"', "x"),
}


@pytest.mark.parametrize("expression", NUMBERS)
def test_types_that_spark_lacks_are_numbers_and_durations(lake: str, expression: str) -> None:
    whole = expression if expression.startswith("histogram") else f"any_value({expression})"

    answer = duck.ask(lake, STREAMS, f"SELECT {whole} AS x FROM ops.events", limit=1)

    assert (as_json(answer), as_csv(answer)) == (
        f'[{{"x": {NUMBERS[expression][0]}}}]',
        f"x\n{NUMBERS[expression][1]}",
    )


@pytest.mark.parametrize(
    ("table", "meant"),
    [
        ("ops.event", "'ops.event', did you mean ops.events?"),
        ("opps.events", "'opps.events', did you mean ops.events?"),
        ("events", "'events', did you mean ops.events?"),
        ("gold.nosuch", "'gold.nosuch'"),
    ],
)
def test_a_table_that_is_not_there_is_named_with_the_nearest(lake: str, table: str, meant: str) -> None:
    with pytest.raises(QueryError) as refused:
        asked(lake, f"SELECT * FROM {table}")
    assert str(refused.value) == f"DuckDB: there is no table {meant} (tables here: ops.events)"


def test_no_more_rows_are_returned_than_asked_for(lake: str) -> None:
    answer = duck.ask(lake, STREAMS, "SELECT stream FROM ops.events ORDER BY stream", limit=2)
    assert ([row[0] for row in answer.rows], answer.truncated) == (["a", "b"], True)
    answer = duck.ask(lake, STREAMS, "SELECT stream FROM ops.events", limit=3)
    assert (len(answer.rows), answer.truncated) == (3, False)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (
            "DROP VIEW ops.events",
            "DuckDB is read-only here and refuses DROP; to change tables, use Spark with --write",
        ),
        ("COPY (SELECT 1) TO 'x.csv'", "DuckDB is read-only here and refuses COPY"),
        ("SET threads = 1", "DuckDB is read-only here and refuses SET"),
        ("SELECT 1; SELECT 2", "expected one statement, not 2"),
        (" ", "expected one statement, not 0"),
        (
            "SELECT * FROM read_csv('/etc/passwd')",
            'DuckDB: Permission Error: Cannot access file "/etc/passwd"',
        ),
        ("SELECT * FROM gold.metrics_1m", "DuckDB: there is no table 'gold.metrics_1m'"),
        ("SELEC 1", 'DuckDB: Parser Error: syntax error at or near "SELEC"'),
        ("SELECT lake", "DuckDB: Binder Error: "),
        ("SELECT TIMESTAMPTZ '12026-01-01 00:00:00Z'", "DuckDB: date value out of range"),
    ],
)
def test_what_is_refused_is_told_in_a_line(lake: str, statement: str, why: str) -> None:
    with pytest.raises(QueryError) as refused:
        asked(lake, statement)
    assert str(refused.value).startswith(why)
    assert "\n" not in str(refused.value)
    assert ("(tables here: ops.events)" in str(refused.value)) is why.startswith("DuckDB: ")
