"""What judging a record costs, by the form of its contract: flat or nested, with numbers or text as times.

    python -m benchmarks.judging

Each contract has a string, a word, a whole number, a boolean and an event time. The same records, which keep
it, are judged by turns with those of the other contracts, and the result is thrown away. The median of the
rounds is printed, without the first two, in which Spark's code is compiled.
"""

from __future__ import annotations

import statistics
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.table import Table

from benchmarks.bench import console
from benchmarks.measuring import Usage, application, used_by
from lakehouse.layers import bronze
from lakehouse.records.validation import judge
from lakehouse.settings import load_settings
from lakehouse.spark.session import start_session
from lakehouse.stream import Contract, Field, FieldType, Source

_LANDED = datetime(2026, 1, 2, tzinfo=UTC)
_WARM_UP = 2
_FLAT, _NESTED = ("domain", "length", "at"), ("meta.domain", "length.new", "meta.at")
_FLAT_TEXT = '{"domain":"d%1$d","kind":"edit","length":%2$d,"bot":%3$b,"at":'
_NESTED_TEXT = '{"kind":"edit","length":{"new":%2$d},"bot":%3$b,"meta":{"domain":"d%1$d","at":'
_MILLIS, _ISO = "17672256%4$05d", '"2026-01-01T00:%5$02d:00Z"'
_FORMS = {
    "flat, milliseconds": (_FLAT, f"{_FLAT_TEXT}{_MILLIS}}}"),
    "flat, ISO 8601": (_FLAT, f"{_FLAT_TEXT}{_ISO}}}"),
    "nested, milliseconds": (_NESTED, f"{_NESTED_TEXT}{_MILLIS}}}}}"),
    "nested, ISO 8601": (_NESTED, f"{_NESTED_TEXT}{_ISO}}}}}"),
}

app = typer.Typer(add_completion=False)


@app.command()
def judging(
    *,
    records: Annotated[int, typer.Option(min=1, help="Records of each contract.")] = 400_000,
    rounds: Annotated[int, typer.Option(min=_WARM_UP + 1, help="How often each is judged.")] = 7,
) -> None:
    """Print events per second and CPU time by the form of the contract."""
    used: dict[str, list[Usage]] = {name: [] for name in _FORMS}
    with TemporaryDirectory() as directory, start_session(load_settings(), "judging", brief=False) as spark:
        rows = {
            name: _stored(spark, Path(directory, str(number)), text, records)
            for number, (name, (_, text)) in enumerate(_FORMS.items())
        }
        for _ in range(rounds):
            for name, (paths, _) in _FORMS.items():
                with used_by(*application()) as usage:
                    judge(rows[name], _source(*paths), None).write.format("noop").mode("overwrite").save()
                used[name].append(usage)
        refused = {name: judge(rows[name], _source(*_FORMS[name][0]), None) for name in _FORMS}
        assert not any(frame.where(F.size("reasons") > 0).count() for frame in refused.values())  # noqa: S101
    table = Table(title=f"{records:,} records judged, median of {rounds - _WARM_UP} rounds")
    for name in ("contract", "events/s", "CPU-s per million"):
        table.add_column(name, justify="left" if name == "contract" else "right")
    for name, usages in used.items():
        wall_s = statistics.median(usage.wall_s for usage in usages[_WARM_UP:])
        cpu_s = statistics.median(usage.cpu_s for usage in usages[_WARM_UP:])
        table.add_row(name, f"{records / wall_s:,.0f}", f"{cpu_s / records * 1e6:.1f}")
    console.print(table)


def _source(domain: str, length: str, at: str) -> Source:
    fields = (
        Field(domain, "domain", FieldType.STRING),
        Field("kind", "kind", FieldType.STRING),
        Field(length, "length", FieldType.LONG),
        Field("bot", "bot", FieldType.BOOLEAN),
    )
    return Source("changes", "changes", Contract(fields, event_time=at))


def _stored(spark: SparkSession, path: Path, text: str, records: int) -> DataFrame:
    """Write records as bronze has them, and return them."""
    number = F.col("id")
    values = (number % 50, number % 1000, number % 3 == 0, number % 100_000, number % 60)
    known = {
        "key": F.lit(b"k"),
        "value": F.format_string(text, *values).cast("binary"),
        "topic": F.lit("changes"),
        "partition": F.lit(0),
        "offset": number,
        "timestamp": F.lit(_LANDED),
        "timestamp_type": F.lit(0),
        "ingested_at": F.lit(_LANDED),
    }
    columns = [
        known.get(column.name, F.lit(None)).cast(column.dataType).alias(column.name)
        for column in bronze.SCHEMA.fields
    ]
    spark.range(records).select(*columns).write.parquet(str(path))
    return spark.read.parquet(str(path))


if __name__ == "__main__":
    app()
