"""`lakehouse sql`: runs one SQL statement on the lake."""

from __future__ import annotations

from contextlib import nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse.common.errors import QueryError, SettingsError
from lakehouse.common.terminal import Console, echo

if TYPE_CHECKING:
    from lakehouse.common.rows_as_text import QueryResult

app = typer.Typer()


class Engine(StrEnum):
    """The engine that runs a statement."""

    SPARK = "spark"
    DUCKDB = "duckdb"


class RowFormat(StrEnum):
    """The format in which a result is printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


@app.command()
def sql(
    statement: Annotated[str, typer.Argument(help='One statement: "SELECT * FROM gold.metrics_1m LIMIT 5"')],
    format_: Annotated[
        RowFormat, typer.Option("--format", help="Output format; json keeps values exact.")
    ] = RowFormat.TABLE,
    limit: Annotated[int, typer.Option(min=1, help="Print at most this many rows.")] = 1000,
    *,
    write: Annotated[bool, typer.Option("--write", help="Allow statements that change tables.")] = False,
    engine: Annotated[
        Engine,
        typer.Option(
            help="The SQL engine. duckdb starts immediately, has its own dialect, and is read-only."
        ),
    ] = Engine.SPARK,
) -> None:
    """Run one SQL statement on tables such as bronze.NAME, silver.NAME, gold.NAME and ops.NAME.

    Times are printed in UTC. SHOW TABLES IN gold (DuckDB: FROM gold) lists the tables. A statement that
    changes a table needs --write. The streams can keep running. The statement does not see rows that the
    streams append to bronze or silver in the meantime. With --write, micro-batches wait if they write to a
    gold table that the statement names.
    """
    from lakehouse.operations.catalog import duckdb_sql as duck
    from lakehouse.operations.catalog.spark_sql import (
        WriteRefusedError,
        ask,
        define_views,
        holding_gold,
        tables_here,
    )
    from lakehouse.storage.tables import open_lake
    from lakehouse.streams.registry import load, read_settings

    settings = read_settings()
    streams = load(settings)
    if engine is Engine.DUCKDB:
        if write:
            raise SettingsError("--engine duckdb is read-only; omit --engine to change tables")
        _show(duck.ask(settings.lake, streams, statement, limit=limit), format_, limit)
        return
    with open_lake(settings, "lakehouse sql", reads_only=not write) as lake:
        define_views(lake, streams, statement=statement)
        try:
            with holding_gold(lake, streams, statement) if write else nullcontext():
                answer = ask(lake.spark, statement, limit=limit, write=write)
        except WriteRefusedError:
            raise
        except QueryError as error:
            hint = tables_here(define_views(lake, streams), lake.root)
            raise QueryError(f"{error} ({hint})") from None
        _show(answer, format_, limit)


def _show(answer: QueryResult, format_: RowFormat, limit: int) -> None:
    from lakehouse.common.rows_as_text import as_csv, as_json, as_table

    if format_ is RowFormat.JSON:
        echo(*as_json(answer).split("\n"))
    elif format_ is RowFormat.CSV:
        echo(*as_csv(answer).split("\n"))
    else:
        Console().print(as_table(answer))
    if answer.truncated:
        Console(stderr=True).print(
            f"only the first {limit:,} rows are shown; --limit N shows more", style="yellow"
        )
