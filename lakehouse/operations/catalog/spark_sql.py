"""Run Spark SQL on the lake's tables. Each table's name begins with its layer, as in `gold.metrics_1m`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lakehouse.common.errors import QueryError, first_line
from lakehouse.common.rows_as_text import QueryResult
from lakehouse.engine.layers import bronze, gold, silver
from lakehouse.engine.ops_tables.data_losses import DATA_LOSSES
from lakehouse.engine.ops_tables.event_table import EVENTS
from lakehouse.engine.ops_tables.history import HISTORY
from lakehouse.engine.ops_tables.lateness import LATENESS
from lakehouse.engine.ops_tables.retained import RETAINED_IDS, RETENTION
from lakehouse.engine.ops_tables.unsent_rows import UNSENT_ROWS
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.operations.quality.results import GATES, RESULTS
from lakehouse.storage import tables
from lakehouse.storage.spark import internals, members
from lakehouse.storage.spark.collecting import collected
from lakehouse.storage.tables import Lake, TableSpec, delta_members, leases
from lakehouse.streams.definition import GoldTable, Stream

_SET_ASIDE = "keys_set_aside"
_SHOWING = frozenset((*members.SHOWING, *delta_members.SHOWING))
"""The classes of Spark commands that only show existing objects. Any other command counts as a change."""


def specs(streams: Sequence[Stream]) -> tuple[TableSpec, ...]:
    """Return the specifications of the lake's tables, including tables that do not exist yet."""
    sources = [source for stream in streams for source in stream.sources]
    merged = [table for stream in streams for table in stream.tables]
    return (
        *(bronze.spec(source) for source in sources),
        *(silver.spec(source) for source in sources),
        DEAD_LETTERS,
        *(gold.spec(table) for table in merged),
        DATA_LOSSES,
        UNSENT_ROWS,
        RETENTION,
        RETAINED_IDS,
        LATENESS,
        RESULTS,
        GATES,
        EVENTS,
        HISTORY,
    )


def tables_here(known: Collection[str], lake: str) -> str:
    """Return a phrase that lists the available tables."""
    return f"tables here: {', '.join(known)}" if known else f"there are no tables in {lake} yet"


def define_views(lake: Lake, streams: Sequence[Stream], *, statement: str = "") -> list[str]:
    """Register the lake's existing tables as views in the session, and return their names.

    Registration takes time, so only tables named in the statement are registered. If it names no table, all
    tables are registered. The view ops.keys_set_aside contains the rows whose total does not fit its type.
    """
    statement = statement.lower()
    all_specs = specs(streams)
    named = [spec for spec in all_specs if spec.name in statement]
    if named and _SET_ASIDE in statement:
        named = list(all_specs)
    found = []
    for spec in named or all_specs:
        if lake.exists(spec.layer, spec.name):
            tables.define_view(lake.spark, spec, lake.path(spec.layer, spec.name))
            found.append(spec.qualified_name)
    if not named or _SET_ASIDE in statement:
        _view_set_aside(lake.spark, streams, found)
    return found


def _view_set_aside(spark: SparkSession, streams: Sequence[Stream], known: Collection[str]) -> None:
    kept = [table for stream in streams for table in stream.gold if f"gold.{table.name}" in known]
    totals = [_rows_set_aside(table, *one) for table in kept for one in table.totals.items()]
    if totals:
        spark.sql("CREATE DATABASE IF NOT EXISTS ops")
        spark.sql(f"CREATE OR REPLACE VIEW ops.{_SET_ASIDE} AS {' UNION ALL '.join(totals)}")


def _rows_set_aside(table: GoldTable, total: str, count: str) -> str:
    key = ", ".join(f"`{name}`" for name in table.keys)
    total = total.replace(".", "`.`")
    return (
        f"SELECT 'gold.{table.name}' AS `table`, to_json(struct({key})) AS key, "  # noqa: S608
        f"'beyond_total' AS reason, {count} AS count FROM gold.{table.name} WHERE `{total}` IS NULL"
    )


@contextmanager
def holding_gold(lake: Lake, streams: Sequence[Stream], statement: str) -> Iterator[None]:
    """Lease the gold tables that a statement names, so that their micro-batches wait until the block ends.

    Micro-batches rewrite gold's files, so a statement that changes rows would conflict with every
    micro-batch. A side table is covered by its main table's lease. Raises TableError if another process
    holds one of these leases.
    """
    statement = statement.lower()
    with ExitStack() as held:
        for table in (table for stream in streams for table in stream.gold):
            is_named = any(one.name in statement for one in (table, *table.sides))
            if is_named and lake.exists("gold", table.name):
                path, name = lake.path("gold", table.name), f"gold.{table.name}"
                held.enter_context(leases.held(lake.spark, path, name))
        yield


class WriteRefusedError(QueryError):
    """The statement changes something, but only reads are allowed."""


def ask(spark: SparkSession, statement: str, *, limit: int, write: bool = False) -> QueryResult:
    """Run a SQL statement and return at most `limit` rows.

    A statement that changes a table requires `write`; otherwise WriteRefusedError is raised. The statement is
    retried if another writer has changed the rows that it read. Raises QueryError with Spark's explanation if
    the statement is refused or fails.
    """
    try:
        if not write and (what := _change_in(spark, statement)) is not None:
            raise WriteRefusedError(f"this statement does more than read ({what}); --write allows changes")
        frame = tables.retry_on_conflict(lambda: spark.sql(statement))
        rows = collected(frame.limit(limit + 1))
    except PySparkException as error:
        raise QueryError(first_line(error)) from None
    return QueryResult(frame.schema, rows[:limit], truncated=len(rows) > limit)


def _change_in(spark: SparkSession, statement: str) -> str | None:
    """Return the class name of the first command that does more than read, or None if all only read."""
    changes = (name for name in internals.commands(spark, statement) if name not in _SHOWING)
    return next((name.rpartition(".")[2] for name in changes), None)
