"""A gold table's layout in PostgreSQL: columns, types, rows as COPY lines, and limits."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType

from lakehouse.common.printable import printable
from lakehouse.streams.definition import GoldTable, MergedTable

NAME, LABEL = "postgres", "PostgreSQL"
SCHEMA = "gold"
POSITIONS = "lakehouse_positions"
GENERATION, VERSION = STAMPS = ("_generation", "_version")
"""Columns that the export adds: the gold table's generation, and the version that the row came from."""
GONE = "_is_gone"
"""The column that marks an incoming row as deleted."""
MOST_KEY_BYTES = 2_500
"""The maximum size of a key as text. A PostgreSQL index entry can take up at most a third of a page."""

_TYPES = {
    "string": "text",
    "byte": "smallint",
    "short": "smallint",
    "integer": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
}
_NUL, _ESCAPE = "\0", "␀"
_KEPT = {_ESCAPE: _ESCAPE * 2, _NUL: f"{_ESCAPE}0"}
_OF_COPY = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}  # the server decodes these
_NULL = "\\N"

_MOST_NAME_BYTES = 63  # NAMEDATALEN - 1: longer names are truncated
_MOST_COLUMNS, _MOST_KEYS = 1_600, 32
_OF_SYSTEM = {"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}
_OF_INDEX = "_pkey"


def columns_of(table: MergedTable) -> dict[str, str]:
    """Return the types of a table's PostgreSQL columns, keyed by column name."""
    state = table.state.columns if isinstance(table, GoldTable) and table.state is not None else ()
    types = {field.name: _type_of(field.dataType) for field in table.schema if field.name not in state}
    return {name: kind for name, kind in types.items() if kind is not None}


def line_of(table: MergedTable) -> Column:
    """Return a column with a gold row as a COPY line (no newline), or null if the key is too long to index.

    PostgreSQL cannot store NUL in text, so NUL is replaced by `␀0`, and `␀` by `␀␀`. The key's length is
    measured after the replacement.
    """
    types = {field.name: field.dataType.typeName() for field in table.schema}
    texts = [_text(name, types[name]) for name in columns_of(table)]
    key = F.concat_ws("", *(_kept(name) if types[name] == "string" else name for name in table.keys))
    line = F.concat_ws("\t", *(F.coalesce(text, F.lit(_NULL)) for text in texts))
    return F.when(F.octet_length(key) <= MOST_KEY_BYTES, line)


def key_bytes(key: str) -> int:
    """Return the length in bytes that a key's text has in PostgreSQL, after escaping."""
    for character, escape in _KEPT.items():
        key = key.replace(character, escape)
    return len(key.encode())


def key_alone(line: str, table: MergedTable) -> str:
    """Return a COPY line in which every non-key column is null."""
    texts = zip(columns_of(table), line.split("\t"), strict=True)
    return "\t".join(text if name in table.keys else _NULL for name, text in texts)


def unfit(table: MergedTable) -> Iterator[str]:
    """Yield the reasons why PostgreSQL cannot store the table as declared."""
    columns = columns_of(table)
    if table.name == POSITIONS or table.name.endswith(_OF_INDEX):
        owner = "the export" if table.name == POSITIONS else "a primary key's index"
        yield f"the name {table.name} is reserved for {owner}"
    for what, name in (("the table's name", table.name), *(("the column", name) for name in columns)):
        size = len(name.encode())
        if size > _MOST_NAME_BYTES:
            start = printable(name[:_MOST_NAME_BYTES])
            yield f"{what} {start} is {size} bytes long, but PostgreSQL truncates names to {_MOST_NAME_BYTES}"
    for name in sorted(_OF_SYSTEM.union(STAMPS, [GONE]).intersection(columns)):
        owner = "by PostgreSQL" if name in _OF_SYSTEM else "for the export"
        yield f"the column {name} is reserved {owner}"
    for name in table.keys:
        if name not in columns:
            yield f"PostgreSQL has no type for the key column {name}"
    if len(columns) + len(STAMPS) > _MOST_COLUMNS:
        most = _MOST_COLUMNS - len(STAMPS)
        yield f"it has {len(columns):,} columns, but a PostgreSQL table can have at most {most:,}"
    if len(table.keys) > _MOST_KEYS:
        yield f"its key has {len(table.keys)} columns, but a PostgreSQL key can have at most {_MOST_KEYS}"


def _type_of(kind: DataType) -> str | None:
    if isinstance(kind, DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    return _TYPES.get(kind.typeName())


def _kept(name: str) -> Column:
    """Return a column's text with NUL escaped."""
    text = F.col(name)
    for character, escape in _KEPT.items():
        text = F.replace(text, F.lit(character), F.lit(escape))
    return text


def _text(name: str, kind: str) -> Column:
    if kind == "string":
        text = _kept(name)
        for character, escape in _OF_COPY.items():
            text = F.replace(text, F.lit(character), F.lit(escape))
        return text
    text = F.col(name).cast("string")
    return F.concat(text, F.lit("+00")) if kind == "timestamp" else text  # sessions use UTC
