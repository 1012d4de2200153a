"""What other writers note about their files never rules out one that has a row, nor hides the greatest time.

Each writes a row with a later time than the one before; results from statistics are compared with the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType, TimestampType

from lakehouse.operations.telemetry.delta_log import Log
from lakehouse.storage import tables
from lakehouse.storage.tables import HighWaterMark, Lake, TableSpec, direct
from lakehouse.storage.tables.pruning import Between, Near
from tests.support import other_writers
from tests.support.damage import as_in_a_new_process
from tests.support.pipeline import micros, utc

Write = Callable[[SparkSession, str, int, datetime], None]
SPEC = TableSpec(
    "silver", "numbers", StructType().add("k", LongType()).add("t", TimestampType()), stats=("k", "t")
)
ROWS = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us", tz="UTC"))])


def row(number: int, at: datetime) -> pa.Table:
    return pa.table({"k": [number], "t": [at]}, schema=ROWS)


def rewritten_in(zone: str, statement: str) -> Write:
    """Return a writer whose file is rewritten by a Spark session in this time zone."""

    def write(spark: SparkSession, path: str, number: int, at: datetime) -> None:
        tables.append(spark.createDataFrame(row(number, at), SPEC.schema), path)
        with other_writers.in_zone(spark, zone) as session:
            session.sql(statement.format(table=f"delta.`{path}`", number=number))

    return write


def by_deltalake(_spark: SparkSession, path: str, number: int, at: datetime) -> None:
    write_deltalake(path, row(number, at), mode="append")


def updated_by_deltalake(_spark: SparkSession, path: str, number: int, at: datetime) -> None:
    write_deltalake(path, row(-number, at), mode="append")
    DeltaTable(path).update({"k": f"{number}"}, predicate=f"k = {-number}")


def by_pyarrow(note: Callable[[datetime], str]) -> Write:
    """Return a writer that notes its file's times in its own way."""

    def write(_spark: SparkSession, path: str, number: int, at: datetime) -> None:
        bounds = {"k": number, "t": note(at)}
        stats = {"numRecords": 1, "minValues": bounds, "maxValues": bounds, "nullCount": {"k": 0, "t": 0}}
        other_writers.add_by_pyarrow(path, row(number, at), stats)

    return write


def by_duckdb(_spark: SparkSession, path: str, number: int, at: datetime) -> None:
    other_writers.add_by_duckdb(path, row(number, at))


_UPDATE = "UPDATE {table} SET k = k WHERE k = {number}"
WITH_SECONDS = "Saint John's, 3:30:52 behind"
WRITERS: dict[str, tuple[datetime, Write]] = {
    "Los Angeles": (utc("1905-03-29T00:59:59.123456"), rewritten_in("America/Los_Angeles", _UPDATE)),
    "Berlin": (utc("1916-04-30T22:00:00.000001"), rewritten_in("Europe/Berlin", "OPTIMIZE {table}")),
    WITH_SECONDS: (utc("1929-12-31T23:59:59.999999"), rewritten_in("America/St_Johns", _UPDATE)),
    "Kolkata": (utc("1969-12-31T23:59:59.999999"), rewritten_in("Asia/Kolkata", _UPDATE)),
    "deltalake": (utc("2026-10-25T01:30:00.000999"), by_deltalake),
    "deltalake, updated": (utc("2026-11-01T05:00:00"), updated_by_deltalake),
    "pyarrow with microseconds": (utc("2026-12-31T23:59:59.999500"), by_pyarrow(datetime.isoformat)),
    "pyarrow without an offset": (
        utc("2027-01-01T00:00:00.000001"),
        by_pyarrow(lambda at: at.isoformat(" ").removesuffix("+00:00")),
    ),
    "DuckDB": (utc("2027-01-02T00:00:00.000001"), by_duckdb),
    "Berlin again": (utc("2027-01-03T00:00:00.000001"), rewritten_in("Europe/Berlin", _UPDATE)),
}


@pytest.mark.soak
def test_every_row_and_the_greatest_time_are_found_behind_the_notes_of_any_writer(lake: Lake) -> None:
    spark, path = lake.spark, lake.ensure(SPEC)
    times = [at for at, _ in WRITERS.values()]
    for number, (writer, (at, write)) in enumerate(WRITERS.items()):
        write(spark, path, number, at)
        as_in_a_new_process(spark)
        assert HighWaterMark(path, "t").value(spark) == at, writer

    commit = tables.begin(spark, path)
    every = len(commit.candidates(Near(((Between("k", None, None),),))).files)
    for number, (writer, (at, _)) in enumerate(WRITERS.items()):
        for near in (Between("t", at, at), Between("k", number, number)):
            found = commit.candidates(Near(((near,),)))
            here = commit.rows(found).select("k", F.unix_micros("t").alias("micros")).collect()
            assert (number, micros(at)) in [(one.k, one.micros) for one in here], (writer, near)
            assert len(found.files) < every, (writer, near)

    for number, (writer, (at, _)) in enumerate(WRITERS.items()):
        if writer == WITH_SECONDS:  # whose offset deltalake does not understand
            continue
        at_it = ds.field("t") == pa.scalar(at, ROWS.field("t").type)
        assert [one["k"] for one in direct.rows_where(lake.root, SPEC, ["k"], at_it)] == [number]
    upto, newest = zip(*direct.newest_first(lake.root, SPEC, "t"), strict=True)
    assert upto[:2] == (None, None)
    assert max(times) in [one["t"] for one in newest[2]()]
    log = Log(path, "t")
    assert log.refresh()
    assert log.newest == max(times).replace(microsecond=0)
