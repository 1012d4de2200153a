"""SQL for the PostgreSQL sink, and creation of its tables. Errors about unsuitable tables suggest a fix.

Statements with gold's names take no parameters, because a `%` in a name would look like a placeholder.
"""

from __future__ import annotations

from collections.abc import Iterable

import psycopg
from psycopg import sql

from lakehouse.sinks.postgres.client import (
    URL,
    PostgresTroubleError,
    connect,
    encoding_of,
    reported,
    takes_any_text,
)
from lakehouse.sinks.postgres.layout import GENERATION, GONE, POSITIONS, SCHEMA, STAMPS, VERSION, columns_of
from lakehouse.streams.definition import MergedTable

_INCOMING = "lakehouse_incoming"
_EPOCH = "1970-01-01"
_MADE_UP = {
    "text": "lakehouse doctor",
    "boolean": "f",
    "date": _EPOCH,
    "timestamp with time zone": _EPOCH,
    "timestamp without time zone": _EPOCH,
}
"""Test values, keyed by type. All types that are not listed are numeric."""


class Sql:
    """Builds SQL statements for one table. Each method's docstring describes what the statement does."""

    def __init__(self, table: MergedTable) -> None:
        self.name = table.name
        self.columns = columns_of(table)
        self.stamped = {**self.columns, **dict.fromkeys(STAMPS, "bigint")}
        self.declared = table
        self._keys = list(table.keys)
        self._place = sql.Identifier(SCHEMA, table.name)
        self._incoming = sql.Identifier("pg_temp", _INCOMING)

    def create(self) -> sql.Composed:
        """Create the table as declared."""
        columns = [
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in self._declared()
        ]
        return sql.SQL("CREATE TABLE IF NOT EXISTS {} ({}, PRIMARY KEY ({}))").format(
            self._place, _listed(columns), self._names(self._keys)
        )

    def comments(self, *, is_ascii: bool) -> list[sql.Composed]:
        """Comment on the table and its columns. With `is_ascii`, non-ASCII characters become `?`."""
        said = {field.name: field.metadata.get("comment", "") for field in self.declared.schema}
        said[GENERATION] = "When the gold table was created, or adopted as a copy, in ms since the epoch."
        said[VERSION] = "The version of the gold table from which the row was sent."

        def literal(text: str) -> sql.Literal:
            return sql.Literal(text.encode("ascii", "replace").decode() if is_ascii else text)

        found = [sql.SQL("COMMENT ON TABLE {} IS {}").format(self._place, literal(self.declared.comment))]
        for name in self.stamped:
            place = sql.Identifier(SCHEMA, self.name, name)
            found.append(sql.SQL("COMMENT ON COLUMN {} IS {}").format(place, literal(said[name])))
        return found

    def add(self, name: str) -> sql.Composed:
        """Add a column that was declared after the table was created."""
        kind = sql.SQL(self.columns[name])
        return sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(self._place, sql.Identifier(name), kind)

    def receive(self) -> sql.Composed:
        """Create the connection's temporary table, into which micro-batches are copied."""
        columns: list[sql.Composable] = [
            *(
                sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind))
                for name, kind in self.columns.items()
            ),
            sql.SQL("{} bigint, {} boolean").format(sql.Identifier(VERSION), sql.Identifier(GONE)),
        ]
        return sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DELETE ROWS").format(
            sql.Identifier(_INCOMING), _listed(columns)
        )

    def copy(self) -> sql.Composed:
        """Copy lines into the temporary table.

        A line consists of the text from `line_of`, the version, and t (deleted) or f (not deleted).
        """
        return sql.SQL("COPY {} FROM STDIN").format(self._incoming)

    def receive_one(self) -> sql.Composed:
        """Copy one row of the table into the temporary table, or no row if other sessions lock all rows."""
        return sql.SQL("INSERT INTO {} SELECT {}, _version FROM {} LIMIT 1 FOR UPDATE SKIP LOCKED").format(
            self._incoming, self._names(self.columns), self._place
        )

    def make_up_one(self) -> sql.Composed:
        """Insert a row of test values into the temporary table."""
        values = [sql.Literal(_MADE_UP.get(kind.partition("(")[0], "0")) for kind in self.columns.values()]
        return sql.SQL("INSERT INTO {} VALUES ({}, 0)").format(self._incoming, _listed(values))

    def age(self, *, is_gone: bool) -> sql.Composed:
        """Raise the version of the temporary table's row, and set whether the row is deleted."""
        return sql.SQL("UPDATE {} SET _version = _version + 1, _is_gone = {}").format(
            self._incoming, sql.Literal(is_gone)
        )

    def upsert(self, generation: int) -> sql.Composed:
        """Upsert each copied row that is not deleted, unless the table contains a newer version."""
        return sql.SQL(
            "{} ON CONFLICT ({}) DO UPDATE SET {} "
            "WHERE (t._generation, t._version) < (excluded._generation, excluded._version)"
        ).format(self._inserted(generation), self._names(self._keys), self._excluded())

    def delete(self, generation: int) -> sql.Composed:
        """Delete each row copied as deleted, unless the table contains a newer version."""
        return sql.SQL(
            "DELETE FROM {} t USING {} i WHERE i._is_gone AND {} "
            "AND (t._generation, t._version) < ({}, i._version)"
        ).format(self._place, self._incoming, self._same("t", "i"), sql.Literal(generation))

    def analyze(self) -> sql.Composed:
        """Update the planner's statistics for the copied rows."""
        return sql.SQL("ANALYZE {}").format(self._incoming)

    def delete_others(self) -> sql.Composed:
        """Delete the rows that were not copied, or that were copied as deleted."""
        return sql.SQL(
            "DELETE FROM {} t WHERE NOT EXISTS (SELECT FROM {} i WHERE {} AND NOT i._is_gone)"
        ).format(self._place, self._incoming, self._same("t", "i"))

    def replace(self, generation: int) -> sql.Composed:
        """Upsert the copied rows that differ from the existing rows."""
        return sql.SQL(
            "{} ON CONFLICT ({}) DO UPDATE SET {} WHERE {} OR t._generation <> excluded._generation"
        ).format(
            self._inserted(generation),
            self._names(self._keys),
            self._excluded(),
            self._differs("t", "excluded"),
        )

    def is_empty(self) -> sql.Composed:
        """Return whether the table is empty."""
        return sql.SQL("SELECT NOT EXISTS (SELECT FROM {})").format(self._place)

    def compare(self) -> sql.Composed:
        """Return the rows that differ from the copied rows.

        Each result contains the key, whether the row was copied, the existing row, and the total number of
        differences. Rows copied with `_is_gone` are not exported in their current state, so the table can
        contain them in any state.
        """
        first = sql.Identifier(self._keys[0])
        return sql.SQL(
            "SELECT jsonb_build_object({key}), i.{first} IS NOT NULL, to_jsonb(t.*), count(*) OVER () "
            "FROM {incoming} i FULL JOIN {place} t ON {same} WHERE i.{first} IS NULL "
            "OR (NOT i._is_gone AND (t.{first} IS NULL OR {differs})) LIMIT {most}"
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
        """Return the number of copied rows that must exist in the table."""
        return sql.SQL("SELECT count(*) FROM {} WHERE NOT _is_gone").format(self._incoming)

    def _declared(self) -> Iterable[tuple[str, str]]:
        for name, kind in self.stamped.items():
            yield name, kind if name in self.columns else f"{kind} NOT NULL"

    def _inserted(self, generation: int) -> sql.Composed:
        return sql.SQL("INSERT INTO {} AS t ({}) SELECT {}, {}, _version FROM {} WHERE NOT _is_gone").format(
            self._place,
            self._names(self.stamped),
            self._names(self.columns),
            sql.Literal(generation),
            self._incoming,
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
"""POSITION with a lock: other transactions that run this statement wait until this transaction ends."""
NOTE = sql.SQL(
    "INSERT INTO {} VALUES (%s, %s, %s, %s, %s, %s, now()) ON CONFLICT (table_name) DO UPDATE SET "
    "table_id = excluded.table_id, generation = excluded.generation, version = excluded.version, "
    "files = excluded.files, is_empty = excluded.is_empty, written_at = excluded.written_at"
).format(sql.Identifier(SCHEMA, POSITIONS))
FORGET = sql.SQL("DELETE FROM {} WHERE table_name = %s").format(sql.Identifier(SCHEMA, POSITIONS))
KIND = "SELECT relkind::text FROM pg_class WHERE oid = to_regclass(%s)"
"""Returns the kind of a relation, as a letter, or no row if the relation does not exist."""
COLUMNS = (
    "SELECT attname::text, format_type(atttypid, atttypmod), "
    "attnotnull AND NOT atthasdef AND attidentity = '' FROM pg_attribute "
    "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)
"""The columns of a table: names, types as PostgreSQL spells them, and whether a value is required."""
UNIQUE_KEYS = (
    "SELECT ARRAY(SELECT a.attname::text FROM unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) k "
    "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k) FROM pg_index i "
    "WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indimmediate "
    "AND i.indpred IS NULL AND i.indexprs IS NULL ORDER BY NOT i.indisprimary"
)
"""The columns of each unique key that can be an ON CONFLICT target. The primary key is first."""
LACKING_RIGHTS = (
    "SELECT r FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) r "
    "WHERE NOT has_table_privilege(to_regclass(%s)::oid, r)"
)
"""The privileges on a table that the user lacks."""


def quoted(*names: str) -> str:
    """Return a quoted SQL name as text, in the form that `to_regclass` expects."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


_TABLES = {"r", "p"}
_OTHERS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "i": "an index",
    "I": "an index",
    "S": "a sequence",
    "c": "a type",
}
_TRIED_WITHIN_S = 5
_NEWEST = 2**63 - 1  # newer than any real generation


def require_postgres(url: str) -> None:
    """Raise PostgresTroubleError unless the URL points to a database where the user can create tables."""
    with connect(url) as connection, reported():
        prepare_schema(connection)
        connection.execute("CREATE TEMPORARY TABLE lakehouse_probe () ON COMMIT DROP")
        connection.rollback()


def prepare_schema(connection: psycopg.Connection) -> None:
    """Create the schema and the positions table if they are missing."""
    with reported():
        found = connection.execute("SELECT to_regnamespace(%s)", [SCHEMA]).fetchone()
        if found is None or found[0] is None:  # IF NOT EXISTS needs the privilege even if the schema exists
            connection.execute(CREATE_SCHEMA)
        if connection.execute(KIND, [quoted(SCHEMA, POSITIONS)]).fetchone() is None:
            connection.execute(CREATE_POSITIONS)
        _require_rights(connection, POSITIONS)


def prepare_table(connection: psycopg.Connection, table: Sql) -> None:
    """Create the table as declared, or add missing columns, in which case the export refills the table.

    Nothing is committed. Raises PostgresTroubleError if the existing table cannot store the rows.
    """
    prepare_schema(connection)
    with reported(table.name):
        kind = connection.execute(KIND, [quoted(SCHEMA, table.name)]).fetchone()
        if kind is None:
            connection.execute(table.create())
            for comment in table.comments(is_ascii=not takes_any_text(encoding_of(connection))):
                connection.execute(comment)
        else:
            _adopt(connection, table, kind[0])
        connection.execute(table.receive())


def try_row(url: str, table: Sql) -> None:
    """Test that a row can be deleted, inserted and updated, in a transaction that is rolled back.

    An existing row is used if possible, and otherwise a row of test values. Raises PostgresTroubleError if a
    statement fails or waits too long.
    """
    with connect(url, within_s=_TRIED_WITHIN_S) as connection:
        prepare_table(connection, table)
        with reported(table.name):
            if connection.execute(table.receive_one()).rowcount == 0:
                connection.execute(table.make_up_one())
            for statement in (table.delete, table.upsert, table.upsert):
                connection.execute(table.age(is_gone=statement == table.delete))
                connection.execute(statement(_NEWEST))
            connection.execute(NOTE, ["", "", 0, 0, None, False])
            connection.rollback()


def _adopt(connection: psycopg.Connection, table: Sql, kind: str) -> None:
    """Add missing columns to an existing table. Raises PostgresTroubleError for an unsuitable table."""
    place, name = f"gold.{table.name}", quoted(SCHEMA, table.name)
    if kind not in _TABLES:
        raise PostgresTroubleError(
            f"PostgreSQL has {_OTHERS.get(kind, 'something else')} called {place}, but the export needs that "
            "name for its own table. Rename it or drop it: the export creates and fills the table"
        )
    _require_rights(connection, table.name)
    there = {one: (type_, is_needed) for one, type_, is_needed in connection.execute(COLUMNS, [name])}
    again = f"DROP TABLE {place}: the export recreates and fills it"
    for column, type_ in table.stamped.items():
        if column in there and there[column][0] != type_:
            raise PostgresTroubleError(
                f"PostgreSQL has type {there[column][0]} for column {column} of {place}, but the export "
                f"needs {type_}. {again}"
            )
    if lacking := [column for column in STAMPS if column not in there]:
        raise PostgresTroubleError(
            f"PostgreSQL has a table {place} that the export did not create: it lacks {', '.join(lacking)}. "
            f"Rename it, or {again}"
        )
    for column, (_, is_needed) in there.items():
        if is_needed and column not in table.stamped:
            raise PostgresTroubleError(
                f"PostgreSQL has a NOT NULL column {column} without a default in {place}, but the export "
                f"does not write this column. Run ALTER TABLE {place} ALTER COLUMN {quoted(column)} DROP NOT "
                "NULL; the export then sends the rows"
            )
    _require_key(connection, table, again)
    missing = [column for column in table.columns if column not in there]
    for column in missing:
        connection.execute(table.add(column))
    if missing:
        connection.execute(FORGET, [table.name])


def _require_key(connection: psycopg.Connection, table: Sql, again: str) -> None:
    wanted = table.declared.keys
    keys = [key for (key,) in connection.execute(UNIQUE_KEYS, [quoted(SCHEMA, table.name)])]
    if not any(set(key) == set(wanted) for key in keys):
        there = f"the key ({', '.join(keys[0])})" if keys else "no key"
        columns = ", ".join(quoted(name) for name in wanted)
        raise PostgresTroubleError(
            f"PostgreSQL has gold.{table.name} with {there}, but the export needs ({', '.join(wanted)}). "
            f"ALTER TABLE gold.{table.name} ADD PRIMARY KEY ({columns}), or {again}"
        )


def _require_rights(connection: psycopg.Connection, name: str) -> None:
    lacking = [right for (right,) in connection.execute(LACKING_RIGHTS, [quoted(SCHEMA, name)])]
    if lacking:
        rights = ", ".join(lacking)
        raise PostgresTroubleError(
            f"the PostgreSQL user in {URL} lacks {rights} on gold.{name}; run GRANT {rights} "
            f"ON gold.{name} TO {quoted(connection.info.user)}"
        )
