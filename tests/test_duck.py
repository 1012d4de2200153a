"""DuckDB over a lake that no Spark has touched: what it answers, and what it refuses."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from lakehouse import duck
from lakehouse.errors import QueryError
from lakehouse.ops.event_table import EVENTS
from lakehouse.render import as_json
from lakehouse.tables import direct
from tests.streams import STREAMS

AT = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """A lake with three events in its only table."""
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
            "with DuckDB a statement can only read (DROP); Spark changes tables, by --write",
        ),
        ("COPY (SELECT 1) TO 'x.csv'", "with DuckDB a statement can only read (COPY)"),
        ("SET threads = 1", "with DuckDB a statement can only read (SET)"),
        ("SELECT 1; SELECT 2", "this is 2 statements; give one"),
        (" ", "this is 0 statements; give one"),
        (
            "SELECT * FROM read_csv('/etc/passwd')",
            'DuckDB: Permission Error: Cannot access file "/etc/passwd"',
        ),
        ("SELECT * FROM gold.metrics_1m", "DuckDB: Catalog Error: Table with name "),
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
