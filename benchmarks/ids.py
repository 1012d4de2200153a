"""The cost of ids when silver has millions of them, for the start and for each micro-batch.

    python -m benchmarks.ids

A silver table of payments gets ten million rows from one month, in time order but not in order of their ids.
As in a step's start, the fingerprints are read. Then micro-batches are judged and settled. Some contain only
new ids; others also contain records that repeat or correct rows from anywhere in the month. Without ids, a
micro-batch costs only the judging. Figures are medians of the rounds, without the first two.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory
from typing import Annotated

import psutil
import typer
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.table import Table

from benchmarks.bench import console
from benchmarks.measuring import Usage, application, used_by
from lakehouse.engine.layers import bronze, silver
from lakehouse.engine.layers.identities import Identities
from lakehouse.engine.records.validation import judge
from lakehouse.settings import load_settings
from lakehouse.storage import tables
from lakehouse.storage.spark.execution import Amount, executing_for
from lakehouse.storage.spark.session import start_session
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Source, Stream
from lakehouse.streams.kinds import Records, windowed_sums

_LANDED = datetime(2026, 2, 1, tzinfo=UTC)
_MONTH_S = 30 * 86_400
_WARM_UP = 2

app = typer.Typer(add_completion=False)


@app.command()
def ids(
    *,
    rows: Annotated[int, typer.Option(min=1, help="Rows in silver at the start.")] = 10_000_000,
    batch: Annotated[int, typer.Option(min=1, help="Records in a micro-batch.")] = 10_000,
    known: Annotated[
        int,
        typer.Option(min=0, help="How many records of a micro-batch have ids that are already in silver."),
    ] = 100,
    rounds: Annotated[int, typer.Option(min=_WARM_UP + 1, help="Micro-batches of each kind.")] = 8,
) -> None:
    """Print wall and CPU seconds for the start and for micro-batches, with and without ids."""
    settings = load_settings()
    with TemporaryDirectory() as directory, start_session(settings, "ids", brief=False) as spark:
        table = Table(title=f"{rows:,} ids in silver, micro-batches of {batch:,}")
        for name in ("", "wall s", "CPU s"):
            table.add_column(name, justify="left" if not name else "right")
        for sequence_by in (None, "version"):
            source = _source(sequence_by)
            lake = Lake(spark, f"{directory}/{sequence_by}")
            paths = silver.ensure(lake, source)
            _fill(spark, paths.clean, rows)
            before = psutil.Process().memory_info().rss
            known_ids = silver.identities_of(lake, Stream("ids", (source,), ()), source)
            nothing = _judged(spark, source, 0, 0, rows)
            with used_by(*application()) as start, executing_for(spark, Amount.MANY):
                known_ids.settle(nothing, tables.begin(spark, paths.clean))
            kept_mb = (psutil.Process().memory_info().rss - before) / 1e6
            what = "unique" if sequence_by is None else "corrected"
            table.add_row(
                f"{what}: start, {kept_mb:.0f} MB more", f"{start.wall_s:.1f}", f"{start.cpu_s:.1f}"
            )
            for label, repeats in (("new ids", 0), (f"{known:,} known ids", known)):
                usages = []
                for number in range(rounds):
                    judged = _judged(spark, source, batch, repeats, rows + number * batch).persist()
                    usages.append(_settling(judged, known_ids, paths.clean))
                    judged.unpersist()
                _add(table, f"{what}: {label}", usages)
        _add(table, "judging alone", [_judging(spark, _source(None), batch, rows) for _ in range(rounds)])
    console.print(table)


def _add(table: Table, name: str, usages: list[Usage]) -> None:
    def median(of: Callable[[Usage], float]) -> str:
        return f"{statistics.median(map(of, usages[_WARM_UP:])):.2f}"

    table.add_row(name, median(lambda usage: usage.wall_s), median(lambda usage: usage.cpu_s))


def _source(sequence_by: str | None) -> Source:
    records = Records("payments", unique_by="id", sequence_by=sequence_by)
    stream = windowed_sums("payments", records, by="user", value="amount", length="5m")
    return replace(stream.sources[0], allowed_lateness_s=2 * _MONTH_S)


def _fill(spark: SparkSession, path: str, rows: int) -> None:
    """Write the rows that judging would produce, instead of judging ten million records."""
    number = F.col("id")
    columns = {
        "id": F.format_string("payment-%d", number),
        "version": F.lit(1),
        "user": F.format_string("u%d", number % 1000),
        "amount": number % 97 + 1,
        "event_time": F.timestamp_millis(_at_ms(number)),
        "own_time": F.timestamp_millis(_at_ms(number)),
        "topic": F.lit("payments"),
        "partition": F.lit(0),
        "offset": number * 10 + 1,
        "ingested_at": F.lit(_LANDED),
    }
    fields = tables.read(spark, path).schema.fields
    values = [columns.get(one.name, F.lit(None)).cast(one.dataType).alias(one.name) for one in fields]
    with executing_for(spark, Amount.MANY):
        tables.append(spark.range(rows).select(*values).orderBy("event_time"), path)


def _judged(spark: SparkSession, source: Source, count: int, repeats: int, first: int) -> DataFrame:
    """Judge records with new ids, and `repeats` records with ids from the first rows and a later version."""
    new = spark.range(first, first + count - repeats).select(
        F.col("id").alias("number"), F.lit(1).alias("version")
    )
    step = max(1, first // max(1, repeats))
    old = spark.range(repeats).select((F.col("id") * step).alias("number"), F.lit(2).alias("version"))
    return judge(_bronze(new.unionByName(old)).coalesce(1), source, None)


def _settling(judged: DataFrame, known: Identities, path: str) -> Usage:
    judged.count()
    spark = judged.sparkSession
    with executing_for(spark, Amount.FEW), used_by(*application()) as usage:
        known.settle(judged, tables.begin(spark, path)).rows.count()
    return usage


def _judging(spark: SparkSession, source: Source, count: int, first: int) -> Usage:
    with executing_for(spark, Amount.FEW), used_by(*application()) as usage:
        _judged(spark, source, count, 0, first).write.format("noop").mode("overwrite").save()
    return usage


def _at_ms(number: Column) -> Column:
    return (F.lit(int((_LANDED - timedelta(days=31)).timestamp())) + number * 7919 % _MONTH_S) * 1000


def _bronze(records: DataFrame) -> DataFrame:
    """Return bronze rows for records with these numbers and versions. Numbers determine event times."""
    number = F.col("number")
    at_ms = _at_ms(number)
    text = '{"id":"payment-%1$d","version":%2$d,"user":"u%3$d","amount":%4$d,"timestamp":%5$d}'
    value = F.format_string(text, number, F.col("version"), number % 1000, number % 97 + 1, at_ms)
    columns = {
        "value": value.cast("binary"),
        "topic": F.lit("payments"),
        "partition": F.lit(0),
        "offset": number * 10 + F.col("version"),
        "timestamp": F.lit(_LANDED),
        "timestamp_type": F.lit(0),
        "ingested_at": F.lit(_LANDED),
    }
    return records.select(
        *(
            columns.get(column.name, F.lit(None)).cast(column.dataType).alias(column.name)
            for column in bronze.SCHEMA.fields
        )
    )


if __name__ == "__main__":
    app()
