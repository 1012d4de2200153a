"""Rows of hostile text as JSON, CSV and a table."""

from __future__ import annotations

import json
from decimal import Decimal

from pyspark.sql import Row
from pyspark.sql.types import ArrayType, StringType, StructType

from lakehouse.common.rows_as_text import QueryResult, as_csv, as_json

SCHEMA = (
    StructType()
    .add("=key", "string")
    .add("n", "decimal(9,2)")
    .add("f", "double")
    .add("l", ArrayType(StringType()))
)


def rows(*keys: str | None) -> QueryResult:
    found = [Row(**{"=key": key, "n": Decimal("-1.50"), "f": -0.5, "l": ["=x\x9b"]}) for key in keys]
    return QueryResult(SCHEMA, found, truncated=False)


def test_csv_quotes_formulas_and_no_numbers() -> None:
    told = as_csv(rows("=1+1", "+49 170", "-x", "@A1", "\tx", "\rx", "-5", "+1.5e3", "a=b", None, "-1+1"))
    keys = [line.split(",")[0] for line in told.split("\n")]
    assert keys == [
        "'=key",
        "'=1+1",
        "'+49 170",
        "'-x",
        "'@A1",
        r"'\tx",
        r"'\rx",
        "-5",
        "+1.5e3",
        "a=b",
        "",
        "'-1+1",
    ]
    assert told.split("\n")[1] == '\'=1+1,-1.50,-0.5,"[""=x\\u009b""]"'


def test_a_row_of_csv_is_one_printable_line() -> None:
    told = as_csv(rows("a\nb\x1b[2J", "\u202eb"))
    assert [line.split(",")[0] for line in told.split("\n")] == ["'=key", r"a\nb\x1b[2J", r"\u{202e}b"]


def test_json_is_printable_and_exact() -> None:
    told = as_json(rows("a\nb\x1b[2J\x9b\u202e"))
    assert json.loads(told)[0]["=key"] == "a\nb\x1b[2J\x9b\u202e"
    assert told.isprintable()
