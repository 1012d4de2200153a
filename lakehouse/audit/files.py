"""The tables themselves: every data file that a table's log names exists."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

from pyspark.sql import SparkSession

from lakehouse import tables
from lakehouse.audit.report import Check, Compared, Difference
from lakehouse.spark import storage
from lakehouse.stream import Stream
from lakehouse.tables import Lake


def check_files(lake: Lake, stream: Stream) -> list[Check]:
    """Compare the log of every existing table of the stream with the files in its directory."""
    return [
        _check(lake.spark, Compared(stream.name, "files", f"{layer}.{name}"), lake.path(layer, name))
        for layer, name in _names(stream)
        if lake.exists(layer, name)
    ]


def _names(stream: Stream) -> Iterator[tuple[str, str]]:
    for layer in ("bronze", "silver"):
        yield from ((layer, source.table) for source in stream.sources)
    yield "silver", "dead_letters"
    yield from (("gold", table.name) for table in stream.tables)


def _check(spark: SparkSession, subject: Compared, path: str) -> Check:
    named = [unquote(file.path) for file in tables.files(spark, path)]
    lying = set(storage.names(spark, path))
    missing = [
        Difference({"file": name}, "named by the table's log, but missing")
        for name in named
        if name not in lying
    ]
    return subject.found(len(named), len(missing), missing)
