"""Format rows as JSON, CSV or terminal tables."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.types import ArrayType, DataType, MapType, NumericType, StructType, TimestampType
from rich.table import Table

from lakehouse.common.printable import printable, printable_json
from lakehouse.common.terminal import table_of

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # prefixes that spreadsheets interpret as formulas
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class QueryResult:
    """The columns and rows that a query returned. `truncated` is true if it had more rows than requested."""

    schema: StructType
    rows: Sequence[Row]
    truncated: bool


def plain_rows(answer: QueryResult) -> Iterator[list[Any]]:
    """Yield each row as a list of JSON-compatible values.

    Times and intervals become ISO 8601; instants are in UTC, with a Z. Bytes become hex. Decimals, NaN,
    infinities and other values that JSON cannot represent become text.
    """
    types = [column.dataType for column in answer.schema.fields]
    for row in answer.rows:
        yield [_plain(value, type_) for value, type_ in zip(row, types, strict=True)]


def differing(
    frames: Sequence[DataFrame], most: int, what: str = "what"
) -> tuple[int, list[tuple[dict[str, Any], str]]]:
    """Return the frames' total number of rows, and up to `most` + 1 example rows from each frame.

    `what` names the column that describes the difference. An example is a pair: a dict of the row's other
    columns, and the text in `what`.
    """
    found, examples = 0, list[tuple[dict[str, Any], str]]()
    for frame in frames:
        keys = [name for name in frame.columns if name != what]
        rows = frame.select(*keys, what).limit(most + 1)
        some = list(plain_rows(QueryResult(rows.schema, rows.collect(), truncated=False)))
        found += len(some) if len(some) <= most else frame.count()
        examples += [(dict(zip(keys, row[:-1], strict=True)), str(row[-1])) for row in some]
    return found, examples


def as_json(answer: QueryResult) -> str:
    """Return the result as a JSON array with one object per row, each on its own line."""
    names = answer.schema.names
    lines = (printable_json(dict(zip(names, row, strict=True))) for row in plain_rows(answer))
    return "[" + ",\n ".join(lines) + "]"


def as_csv(answer: QueryResult) -> str:
    """Return the result as CSV with a header line and one line per row. Nulls become empty fields.

    Text is made printable, and gets a leading ' if a spreadsheet would read it as a formula. Numbers and
    numeric text are unchanged.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    numeric = [isinstance(column.dataType, NumericType) for column in answer.schema.fields]
    writer.writerow(map(_field, answer.schema.names))
    for row in plain_rows(answer):
        cells = zip(row, numeric, strict=True)
        writer.writerow(
            [value if value is None or is_number else _field(value) for value, is_number in cells]
        )
    return text.getvalue().rstrip("\n")


def as_table(answer: QueryResult) -> Table:
    """Return the result as a table for the terminal."""
    caption = f"{len(answer.rows):,} row{'s' * (len(answer.rows) != 1)}"
    return table_of(answer.schema.names, plain_rows(answer), caption=caption, caption_justify="left")


def iso_duration(months: int, days: int, nanoseconds: int) -> str:
    """Return an interval as ISO 8601: months, days, and seconds with a fraction."""
    seconds = Decimal(nanoseconds).scaleb(-9).normalize()
    parts = ((months, "M"), (days, "D"))
    day_part = "".join(f"{number}{unit}" for number, unit in parts if number)
    return f"P{day_part}" if day_part and not seconds else f"P{day_part}T{seconds:f}S"


def _field(value: Any) -> str:
    """Return a value as a printable CSV field that no spreadsheet evaluates as a formula."""
    text = value if isinstance(value, str) else printable_json(value)
    is_formula = text.startswith(_FORMULA) and _NUMBER.fullmatch(text) is None
    return printable(f"'{text}" if is_formula else text)


def _plain(value: Any, type_: DataType) -> Any:
    if value is None:
        return None
    if isinstance(type_, StructType):
        fields = zip(type_.fields, value, strict=True)
        return {field.name: _plain(item, field.dataType) for field, item in fields}
    if isinstance(type_, MapType):
        return {str(_plain(k, type_.keyType)): _plain(v, type_.valueType) for k, v in value.items()}
    if isinstance(type_, ArrayType):
        return [_plain(item, type_.elementType) for item in value]
    if isinstance(type_, TimestampType) and isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return _plain_scalar(value)


def _plain_scalar(value: Any) -> Any:
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else json.dumps(value)
    return _text(value)


def _text(value: Any) -> str:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        microseconds = value.seconds * 1_000_000 + value.microseconds
        return iso_duration(0, value.days, microseconds * 1_000)
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bytes | bytearray):
        return value.hex()
    return str(value)
