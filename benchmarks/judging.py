"""The cost of judging a record, by the shape of its contract, such as flat or nested, and by its format.

    python -m benchmarks.judging
    python -m benchmarks.judging --only "flat, milliseconds"        four formats of the same records

Each contract consists of two strings, an integer, a boolean and an event time. Contracts and formats take
turns. The same valid records are judged each time, and the result is discarded. For formats other than plain
JSON, the lake stores the schemas, and each run searches the records for schema ids. The printed figure is the
median of the rounds, without the first two, in which Spark compiles code.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, cast

import pyarrow as pa
import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from rich.table import Table

from benchmarks.bench import console
from benchmarks.measuring import Usage, application, used_by
from lakehouse.common.record_lines import RecordFormat
from lakehouse.engine.formats.contracts import schema_of_contract
from lakehouse.engine.formats.decode import decoded
from lakehouse.engine.formats.encoding import encoder
from lakehouse.engine.formats.schemas import DIRECTORY
from lakehouse.engine.layers import bronze
from lakehouse.engine.records.validation import judge
from lakehouse.settings import load_settings
from lakehouse.storage.spark.session import start_session
from lakehouse.streams.definition import Contract, Field, FieldType, Source

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
_IN_FORMATS: dict[str, RecordFormat] = {
    "flat, milliseconds, JSON Schema": "json-schema",
    "flat, milliseconds, Avro": "avro",
    "flat, milliseconds, Protobuf": "protobuf",
}
_SCHEMA_ID = 1

app = typer.Typer(add_completion=False)


@app.command()
def judging(
    *,
    records: Annotated[int, typer.Option(min=1, help="Records of each contract.")] = 400_000,
    only: Annotated[
        str, typer.Option(help="Only contracts and formats whose names begin with this text.")
    ] = "",
    rounds: Annotated[
        int, typer.Option(min=_WARM_UP + 1, help="How often each contract and format is judged.")
    ] = 7,
) -> None:
    """Print events per second and CPU time by contract and format."""
    with TemporaryDirectory() as directory, start_session(load_settings(), "judging", brief=False) as spark:
        rows = {
            name: _stored(spark, Path(directory, str(number)), text, records)
            for number, (name, (_, text)) in enumerate(_FORMS.items())
        }
        lakes, sources = (
            dict.fromkeys(rows, directory),
            {n: _source(*paths) for n, (paths, _) in _FORMS.items()},
        )
        for name, format_ in _IN_FORMATS.items():
            lakes[name] = f"{directory}/{format_}"
            sources[name] = replace(_source(*_FLAT), format=format_)
            rows[name] = _encoded(rows["flat, milliseconds"], sources[name], lakes[name])

        def judged(name: str) -> DataFrame:
            return judge(decoded(rows[name], sources[name], lakes[name]), sources[name], None)

        rows = {name: frame for name, frame in rows.items() if name.startswith(only)}
        used: dict[str, list[Usage]] = {name: [] for name in rows}
        for _ in range(rounds):
            for name in rows:
                with used_by(*application()) as usage:
                    judged(name).write.format("noop").mode("overwrite").save()
                used[name].append(usage)
        refused = {name: judged(name) for name in rows}
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
    """Write records in bronze's columns, and return them."""
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


def _encoded(rows: DataFrame, source: Source, lake: str) -> DataFrame:
    """Write the records in the source's format, with a schema that is stored in the lake; return them."""
    schema = schema_of_contract(source, source.format)
    kept = Path(lake, DIRECTORY, f"{_SCHEMA_ID}.json")
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps(vars(schema)), encoding="utf-8")

    def encode(values: pa.Array) -> pa.Array:
        encoded = encoder(source, _SCHEMA_ID, schema)
        return pa.array([encoded(value) for value in values.to_pylist()], pa.binary())

    written = rows.withColumn("value", cast("Any", arrow_udf)(encode, "binary")("value"))
    written.write.parquet(f"{lake}/records")
    return rows.sparkSession.read.parquet(f"{lake}/records")


if __name__ == "__main__":
    app()
