"""A small gold table in PostgreSQL without a lake: its statements, lines and stored rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import psycopg
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from lakehouse.sinks.postgres.client import connect, reported
from lakehouse.sinks.postgres.rows import Receiver
from lakehouse.sinks.postgres.statements import Sql, prepare_table
from lakehouse.streams.definition import MergedTable
from tests.support.streams import METRICS_1M

GENERATION = 7


class Incoming(NamedTuple):
    """A row to be copied."""

    line: str
    version: int
    is_gone: bool


def declared(name: str = "notes", keys: tuple[str, ...] = ("id",), **kinds: Any) -> MergedTable:
    """Return a table with these columns; by default a key, a text, a number and a time."""
    given = kinds or {"id": StringType(), "note": StringType(), "n": LongType(), "at": TimestampType()}
    schema = StructType([StructField(one, kind) for one, kind in given.items()])
    return replace(METRICS_1M, name=name, keys=keys, schema=schema, state=None, time_columns=None)


NOTES = declared()


def row(
    id_: str, note: str = "-", version: int = 1, at: str = "2026-03-29 00:59:00+00", *, is_gone: bool = False
) -> Incoming:
    """Return a row of NOTES, as the export sends it."""
    return Incoming(f"{id_}\t{note}\t1\t{at}", version, is_gone)


class There:
    """The steps of exporting a table's rows, over one connection."""

    def __init__(self, url: str, table: MergedTable = NOTES) -> None:
        self.sql = Sql(table)
        self.connection = connect(url)
        try:
            prepare_table(self.connection, self.sql)
        except BaseException:
            self.connection.close()
            raise
        self.connection.commit()

    def send(self, *rows: Incoming) -> Mapping[int, str]:
        """Send a micro-batch; return which rows were refused, and why."""
        with reported(self.sql.name):
            self.connection.execute("SELECT")  # begins a transaction
            receiver = Receiver(self.connection, self.sql)
            refused = receiver.take(rows)
            self.connection.execute(self.sql.upsert(GENERATION))
            if receiver.has_gone:
                self.connection.execute(self.sql.delete(GENERATION))
            self.connection.commit()
        return refused


def ask(url: str, query: str) -> Sequence[tuple[Any, ...]]:
    """Run a statement as another user of the database would."""
    with psycopg.connect(url, autocommit=True, client_encoding="UTF8") as connection:
        done = connection.execute(query)
        return done.fetchall() if done.description else []
