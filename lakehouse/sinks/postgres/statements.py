"""The statements of the PostgreSQL sink.

Statements with gold's names have no parameters: a `%` in a name would be taken for one.
"""

from __future__ import annotations

from collections.abc import Iterable

from psycopg import sql

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
"""Values by type; other types are numbers."""


class Sql:
    """The statements about one table."""

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
        """Return the comments on the table and its columns; with `is_ascii`, other characters become `?`."""
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
        """Add a column that was declared since."""
        kind = sql.SQL(self.columns[name])
        return sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(self._place, sql.Identifier(name), kind)

    def receive(self) -> sql.Composed:
        """Create the temporary table that a micro-batch is copied into, for this connection."""
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
        """Copy lines into the temporary table: `line_of`, the version, and t for a deleted row, else f."""
        return sql.SQL("COPY {} FROM STDIN").format(self._incoming)

    def receive_one(self) -> sql.Composed:
        """Copy one of the table's rows into it, if there is one that no other session has locked."""
        return sql.SQL("INSERT INTO {} SELECT {}, _version FROM {} LIMIT 1 FOR UPDATE SKIP LOCKED").format(
            self._incoming, self._names(self.columns), self._place
        )

    def make_up_one(self) -> sql.Composed:
        """Insert a made-up row into it."""
        values = [sql.Literal(_MADE_UP.get(kind.partition("(")[0], "0")) for kind in self.columns.values()]
        return sql.SQL("INSERT INTO {} VALUES ({}, 0)").format(self._incoming, _listed(values))

    def age(self, *, is_gone: bool) -> sql.Composed:
        """Raise the version of the row in it, and set whether it is deleted."""
        return sql.SQL("UPDATE {} SET _version = _version + 1, _is_gone = {}").format(
            self._incoming, sql.Literal(is_gone)
        )

    def upsert(self, generation: int) -> sql.Composed:
        """Upsert the rows that are not deleted, each unless a newer one is there."""
        return sql.SQL(
            "{} ON CONFLICT ({}) DO UPDATE SET {} "
            "WHERE (t._generation, t._version) < (excluded._generation, excluded._version)"
        ).format(self._inserted(generation), self._names(self._keys), self._excluded())

    def delete(self, generation: int) -> sql.Composed:
        """Delete the deleted rows, each unless a newer one is there."""
        return sql.SQL(
            "DELETE FROM {} t USING {} i WHERE i._is_gone AND {} "
            "AND (t._generation, t._version) < ({}, i._version)"
        ).format(self._place, self._incoming, self._same("t", "i"), sql.Literal(generation))

    def analyze(self) -> sql.Composed:
        """Update the planner's statistics of the copied rows."""
        return sql.SQL("ANALYZE {}").format(self._incoming)

    def delete_others(self) -> sql.Composed:
        """Delete the rows that were not copied, or were copied as deleted."""
        return sql.SQL(
            "DELETE FROM {} t WHERE NOT EXISTS (SELECT FROM {} i WHERE {} AND NOT i._is_gone)"
        ).format(self._place, self._incoming, self._same("t", "i"))

    def replace(self, generation: int) -> sql.Composed:
        """Upsert the rows that differ from the existing ones."""
        return sql.SQL(
            "{} ON CONFLICT ({}) DO UPDATE SET {} WHERE {} OR t._generation <> excluded._generation"
        ).format(
            self._inserted(generation),
            self._names(self._keys),
            self._excluded(),
            self._differs("t", "excluded"),
        )

    def is_empty(self) -> sql.Composed:
        """Tell whether the table has no row."""
        return sql.SQL("SELECT NOT EXISTS (SELECT FROM {})").format(self._place)

    def compare(self) -> sql.Composed:
        """Return rows that differ from the copied ones: key, whether it was copied, existing row, total.

        Rows copied with `_is_gone` are not sent in their current state, so any state of them may be there.
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
        """Return how many of the copied rows must exist."""
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
"""The same, with a lock: others that use this statement wait for the end of the transaction."""
NOTE = sql.SQL(
    "INSERT INTO {} VALUES (%s, %s, %s, %s, %s, %s, now()) ON CONFLICT (table_name) DO UPDATE SET "
    "table_id = excluded.table_id, generation = excluded.generation, version = excluded.version, "
    "files = excluded.files, is_empty = excluded.is_empty, written_at = excluded.written_at"
).format(sql.Identifier(SCHEMA, POSITIONS))
FORGET = sql.SQL("DELETE FROM {} WHERE table_name = %s").format(sql.Identifier(SCHEMA, POSITIONS))
KIND = "SELECT relkind::text FROM pg_class WHERE oid = to_regclass(%s)"
"""The kind of a relation in the schema, as a letter; no row if it does not exist."""
COLUMNS = (
    "SELECT attname::text, format_type(atttypid, atttypmod), "
    "attnotnull AND NOT atthasdef AND attidentity = '' FROM pg_attribute "
    "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)
"""A table's columns: names, types as PostgreSQL writes them, and whether each row must have a value."""
UNIQUE_KEYS = (
    "SELECT ARRAY(SELECT a.attname::text FROM unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) k "
    "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k) FROM pg_index i "
    "WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indimmediate "
    "AND i.indpred IS NULL AND i.indexprs IS NULL ORDER BY NOT i.indisprimary"
)
"""A table's unique keys that ON CONFLICT can name, as columns; the primary key first."""
LACKING_RIGHTS = (
    "SELECT r FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) r "
    "WHERE NOT has_table_privilege(to_regclass(%s)::oid, r)"
)
"""The rights on a table that the user lacks."""


def quoted(*names: str) -> str:
    """Return a quoted SQL name as text, as `to_regclass` takes it."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)
