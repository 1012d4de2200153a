"""Check `files`: every data file named in a table's log exists and has the recorded size."""

from __future__ import annotations

from urllib.parse import unquote

from pyspark.sql import SparkSession

from lakehouse.common.errors import TableError
from lakehouse.operations.audit.report import Check, Compared, Difference
from lakehouse.storage import tables
from lakehouse.storage.spark import files as storage
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Stream

_MISSING = -1


def check_files(lake: Lake, stream: Stream) -> list[Check]:
    """Compare the logs of the stream's existing tables with the files in their directories.

    A table that cannot be read safely, for example after a power failure, counts as a difference.
    """
    names = [(layer, source.table) for layer in ("bronze", "silver") for source in stream.sources]
    names += [("silver", "dead_letters"), *(("gold", table.name) for table in stream.tables)]
    checks = []
    for layer, name in names:
        subject = Compared(stream.name, "files", f"{layer}.{name}")
        try:
            if lake.exists(layer, name):
                checks.append(_check(lake.spark, subject, lake.path(layer, name)))
        except TableError as error:
            checks.append(subject.found(0, 1, [Difference({}, str(error))]))
    return checks


def _check(spark: SparkSession, subject: Compared, path: str) -> Check:
    named = {unquote(file.path): file.size_bytes for file in tables.files(spark, path)}
    lying = storage.sizes(spark, path)
    wrong = [
        Difference({"file": name}, what)
        for name, size in named.items()
        if (what := _what(size, lying.get(name, _MISSING))) is not None
    ]
    return subject.found(len(named), len(wrong), wrong)


def _what(size: int, there: int | None) -> str | None:
    if there == _MISSING:
        return "is in the table's log, but missing"
    if there not in (size, None):
        return f"has {there:,} bytes, but {size:,} in the table's log: a power failure may have truncated it"
    return None
