"""The statements of the PostgreSQL sink, and what a gold row is in them: a line of COPY's text format."""

from __future__ import annotations

from collections.abc import Iterable

from psycopg import sql
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType

from lakehouse.stream import GoldTable, MergedTable

SCHEMA = "gold"
POSITIONS = "lakehouse_positions"
MOST_KEY_BYTES = 2_500
"""Of a row's key as text: an index of PostgreSQL has no entry beyond a third of its page."""

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
_ESCAPES = {_ESCAPE: _ESCAPE * 2, _NUL: f"{_ESCAPE}0", "\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


def columns_of(table: MergedTable) -> dict[str, str]:
    """Return the columns that a table has in PostgreSQL, with their types there."""
    state = table.state.columns if isinstance(table, GoldTable) and table.state is not None else ()
    types = {field.name: _type_of(field.dataType) for field in table.schema if field.name not in state}
    return {name: kind for name, kind in types.items() if kind is not None}


def line_of(table: MergedTable) -> Column:
    """Return a row of gold as a line, without its end; null if its key is too long for an index.

    PostgreSQL's text cannot hold the character NUL: it becomes `␀0`, and `␀` becomes `␀␀`.
    """
    types = {field.name: field.dataType.typeName() for field in table.schema}
    texts = [
        _escaped(name) if types[name] == "string" else _text(name, types[name]) for name in columns_of(table)
    ]
    key = F.concat_ws("", *table.keys)
    line = F.concat_ws("\t", *(F.coalesce(text, F.lit("\\N")) for text in texts))
    return F.when(F.octet_length(key) <= MOST_KEY_BYTES, line)


def _type_of(kind: DataType) -> str | None:
    if isinstance(kind, DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    return _TYPES.get(kind.typeName())


def _escaped(name: str) -> Column:
    text = F.col(name)
    for character, escape in _ESCAPES.items():
        text = F.replace(text, F.lit(character), F.lit(escape))
    return text


def _text(name: str, kind: str) -> Column:
    text = F.col(name).cast("string")
    return F.concat(text, F.lit("+00")) if kind == "timestamp" else text  # sessions are in UTC


class Sql:
    """The statements about one table."""

    def __init__(self, table: MergedTable) -> None:
        self.name = table.name
        self.columns = columns_of(table)
        self.stamped = {**self.columns, "generation": "bigint", "version": "bigint"}
        self._table = table
        self._keys = list(table.keys)
        self._place = sql.Identifier(SCHEMA, table.name)
        self._incoming = sql.Identifier("pg_temp", f"lakehouse_{table.name}")

    def create(self) -> sql.Composed:
        """Create the table, as the declaration says."""
        columns = [
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in self._declared()
        ]
        return sql.SQL("CREATE TABLE IF NOT EXISTS {} ({}, PRIMARY KEY ({}))").format(
            self._place, _listed(columns), self._names(self._keys)
        )

    def comments(self) -> list[sql.Composed]:
        """Say what a row is, and what the columns are."""
        found = [sql.SQL("COMMENT ON TABLE {} IS {}").format(self._place, sql.Literal(self._table.comment))]
        said = {field.name: field.metadata.get("comment", "") for field in self._table.schema}
        said["generation"] = "When the gold table's versions became its own, in ms since the epoch."
        said["version"] = "The version of the gold table that has the row so."
        for name in self.stamped:
            place = sql.Identifier(SCHEMA, self.name, name)
            found.append(sql.SQL("COMMENT ON COLUMN {} IS {}").format(place, sql.Literal(said[name])))
        return found

    def add(self, name: str) -> sql.Composed:
        """Add a column that the declaration has got since."""
        kind = sql.SQL(self.columns[name])
        return sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(self._place, sql.Identifier(name), kind)

    def receive(self) -> sql.Composed:
        """Create the temporary table that a micro-batch is copied into, for this connection."""
        columns: list[sql.Composable] = [
            *(
                sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind))
                for name, kind in self.columns.items()
            ),
            sql.SQL("version bigint, is_gone boolean"),
        ]
        return sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DELETE ROWS").format(
            sql.Identifier(f"lakehouse_{self.name}"), _listed(columns)
        )

    def copy(self) -> sql.Composed:
        """Copy lines into it: `line_of`, then the version, and t for a row that is gone, else f."""
        return sql.SQL("COPY {} FROM STDIN").format(self._incoming)

    def upsert(self) -> sql.Composed:
        """Put the rows that stand, each unless a newer one is there; the parameter is the generation."""
        return sql.SQL(
            "{} ON CONFLICT ({}) DO UPDATE SET {} "
            "WHERE (t.generation, t.version) < (excluded.generation, excluded.version)"
        ).format(self._inserted(), self._names(self._keys), self._excluded())

    def delete(self) -> sql.Composed:
        """Delete the rows that are gone, unless a newer one is there; the parameter is the generation."""
        return sql.SQL(
            "DELETE FROM {} t USING {} i WHERE i.is_gone AND {} "
            "AND (t.generation, t.version) < (%s, i.version)"
        ).format(self._place, self._incoming, self._same("t", "i"))

    def analyze(self) -> sql.Composed:
        """Let the planner know how much was copied."""
        return sql.SQL("ANALYZE {}").format(self._incoming)

    def delete_others(self) -> sql.Composed:
        """Delete the rows that were not copied."""
        return sql.SQL("DELETE FROM {} t WHERE NOT EXISTS (SELECT FROM {} i WHERE {})").format(
            self._place, self._incoming, self._same("t", "i")
        )

    def replace(self) -> sql.Composed:
        """Put the rows that differ from those that are there; the parameter is the generation."""
        return sql.SQL(
            "{} ON CONFLICT ({}) DO UPDATE SET {} WHERE {} OR t.generation <> excluded.generation"
        ).format(self._inserted(), self._names(self._keys), self._excluded(), self._differs("t", "excluded"))

    def is_empty(self) -> sql.Composed:
        """Tell whether the table has no row."""
        return sql.SQL("SELECT NOT EXISTS (SELECT FROM {})").format(self._place)

    def compare(self) -> sql.Composed:
        """Return key, what is there and how many differ, of rows that are not what has been copied.

        Where `is_gone`, the export does not send the row as it is now, and any state of it may be there.
        """
        first = sql.Identifier(self._keys[0])
        return sql.SQL(
            "SELECT jsonb_build_object({key}), i.{first} IS NOT NULL, to_jsonb(t), count(*) OVER () "
            "FROM {incoming} i FULL JOIN {place} t ON {same} WHERE i.{first} IS NULL "
            "OR (NOT i.is_gone AND (t.{first} IS NULL OR {differs})) LIMIT {most}"
        ).format(
            key=_listed(
                sql.SQL("{}, coalesce(i.{}, t.{})").format(sql.Literal(name), *[sql.Identifier(name)] * 2)
                for name in self._keys
            ),
            first=first,
            incoming=self._incoming,
            place=self._place,
            same=self._same("t", "i"),
            differs=self._differs("t", "i"),
            most=sql.Literal(20),
        )

    def count(self) -> sql.Composed:
        """Return how many rows were copied that have to be there."""
        return sql.SQL("SELECT count(*) FROM {} WHERE NOT is_gone").format(self._incoming)

    def _declared(self) -> Iterable[tuple[str, str]]:
        for name, kind in self.stamped.items():
            yield name, kind if name in self.columns else f"{kind} NOT NULL"

    def _inserted(self) -> sql.Composed:
        return sql.SQL("INSERT INTO {} AS t ({}) SELECT {}, %s, version FROM {} WHERE NOT is_gone").format(
            self._place, self._names(self.stamped), self._names(self.columns), self._incoming
        )

    def _excluded(self) -> sql.Composed:
        names = [name for name in self.stamped if name not in self._keys]
        return _listed(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in names)

    def _same(self, one: str, other: str) -> sql.Composed:
        pairs = [self._pair(name, one, other, "=") for name in self._keys]
        return sql.SQL(" AND ").join(pairs)

    def _differs(self, one: str, other: str) -> sql.Composed:
        names = [name for name in self.columns if name not in self._keys]
        pairs: list[sql.Composable] = [self._pair(name, one, other, "IS DISTINCT FROM") for name in names]
        return sql.SQL("({})").format(sql.SQL(" OR ").join(pairs or [sql.SQL("false")]))

    def _pair(self, name: str, one: str, other: str, by: str) -> sql.Composed:
        left, right = sql.Identifier(one, name), sql.Identifier(other, name)
        return sql.SQL("{} {} {}").format(left, sql.SQL(by), right)

    def _names(self, names: Iterable[str]) -> sql.Composed:
        return _listed(map(sql.Identifier, names))


def _listed(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)


CREATE_SCHEMA = sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(SCHEMA))
CREATE_POSITIONS = sql.SQL(
    "CREATE TABLE IF NOT EXISTS {} (table_name text PRIMARY KEY, table_id text NOT NULL, generation bigint "
    "NOT NULL, version bigint NOT NULL, files bigint, is_empty boolean NOT NULL, "
    "written_at timestamp with time zone NOT NULL)"
).format(sql.Identifier(SCHEMA, POSITIONS))
POSITION = sql.SQL(
    "SELECT table_id, generation, version, files, is_empty FROM {} WHERE table_name = %s"
).format(sql.Identifier(SCHEMA, POSITIONS))
LOCKED_POSITION = sql.SQL("{} FOR UPDATE").format(POSITION)
"""The same, while others who ask so wait for the end of this transaction."""
NOTE = sql.SQL(
    "INSERT INTO {} VALUES (%s, %s, %s, %s, %s, %s, now()) ON CONFLICT (table_name) DO UPDATE SET "
    "table_id = excluded.table_id, generation = excluded.generation, version = excluded.version, "
    "files = excluded.files, is_empty = excluded.is_empty, written_at = excluded.written_at"
).format(sql.Identifier(SCHEMA, POSITIONS))
FORGET = sql.SQL("DELETE FROM {} WHERE table_name = %s").format(sql.Identifier(SCHEMA, POSITIONS))
COLUMNS = (
    "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
    "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
)
"""Of a table: names and types as PostgreSQL writes them."""


def quoted(*names: str) -> str:
    """Return a name in SQL as text, as `to_regclass` takes it."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)
