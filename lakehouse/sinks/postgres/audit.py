"""Audit PostgreSQL: every column of its rows must equal gold at the position stored in PostgreSQL.

The rows and the position are read in one snapshot. The database compares the rows with gold at that position,
so no row is in flight. A gold row that is not exported in its current state, such as a reopened call, can be
in PostgreSQL in any state. Rows that PostgreSQL cannot store are reported as a note.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice

import psycopg
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from lakehouse.sinks.port import Audited, Example, Findings
from lakehouse.sinks.postgres import statements
from lakehouse.sinks.postgres.client import connect, reported
from lakehouse.sinks.postgres.layout import SCHEMA, STAMPS, line_of
from lakehouse.sinks.postgres.rows import Receiver
from lakehouse.sinks.postgres.statements import Sql, quoted
from lakehouse.storage.spark.collecting import streamed
from lakehouse.storage.spark.query_errors import are_files_gone
from lakehouse.storage.tables import Position

_CHUNK = 10_000


def compare(audited: Audited) -> Findings:
    """Compare a gold table with its rows in PostgreSQL."""
    exported = audited.exported
    table = Sql(exported.table)
    with connect(exported.settings.postgres.url.get_secret_value()) as connection, reported(table.name):
        place = quoted(SCHEMA, table.name)
        if not connection.execute(statements.COLUMNS, [place]).fetchone():
            return Findings(0, 1, [({}, f"there is no table gold.{table.name} in PostgreSQL")])
        connection.execute(table.receive())
        connection.commit()
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        found = connection.execute(statements.POSITION, [table.name]).fetchone()
        if found is None or found[0] != exported.sent_as:
            return Findings(0, 1, [({}, "PostgreSQL has no position for this table")])
        position = Position(found[2], found[3])
        if position.is_beginning or position.version == 0:
            return Findings(not_compared=["not compared: PostgreSQL is being filled"])
        try:
            return _compared(audited, table, position.version - 1, connection)
        except (PySparkException, Py4JError) as error:
            if not are_files_gone(error):
                raise
            return Findings(
                not_compared=["not compared: VACUUM has removed files of the version that PostgreSQL has"]
            )


def _compared(audited: Audited, table: Sql, version: int, connection: psycopg.Connection) -> Findings:
    too_long, refused, receiver = 0, 0, Receiver(connection, table)
    rows = _rows(audited, version)
    while chunk := list(islice(rows, _CHUNK)):
        too_long += sum(leaves for line, leaves in chunk if line is None)
        fitting = [(line, version, not leaves) for line, leaves in chunk if line is not None]
        refused += len(receiver.take(fitting))
    connection.execute(table.analyze())
    answer = connection.execute(table.count()).fetchone()
    different = connection.execute(table.compare()).fetchall()
    notes = [f"version {version} of gold"]
    if too_long:
        notes.append(f"{too_long:,} rows have keys too long for an index; see ops.unsent_rows")
    if refused:
        notes.append(f"{refused:,} rows have values that PostgreSQL cannot hold; see ops.unsent_rows")
    examples = [_example(*row[:3]) for row in different]
    return Findings(answer[0] if answer else 0, different[0][3] if different else 0, examples, notes)


def _rows(audited: Audited, version: int) -> Iterator[tuple[str | None, bool]]:
    table = audited.exported.table
    leaves = F.coalesce(table.export.export_when(), F.lit(False))
    for row in streamed(audited.rows_at(version).select(line_of(table), leaves)):
        yield row[0], row[1]


def _example(key: dict[str, object], is_in_gold: bool, there: dict[str, object] | None) -> Example:  # noqa: FBT001 - a column
    if there is None:
        return key, "in gold, but not in PostgreSQL"
    if not is_in_gold:
        return key, "in PostgreSQL, but not in gold"
    said = {name: value for name, value in there.items() if name not in (*key, *STAMPS)}
    return key, f"PostgreSQL has {json.dumps(said, ensure_ascii=False)}"
