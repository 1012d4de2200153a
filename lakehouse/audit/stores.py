"""Stores and gold: what the export has sent stands in each of them, and nothing else.

A sink compares itself (`SinkKind.audit`), because only it knows what it keeps and for how long. Rows in
flight are no differences.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame

from lakehouse import tables
from lakehouse.audit.exports import exported_version
from lakehouse.audit.report import Check, Compared, Difference
from lakehouse.progress import cuts, sent
from lakehouse.settings import Settings
from lakehouse.sinks.port import Audited, Exported, SinkKind
from lakehouse.stream import MergedTable, Stream
from lakehouse.tables import Lake


def check_store(
    lake: Lake, stream: Stream, table: MergedTable, kind: SinkKind, *, settings: Settings, now: datetime
) -> list[Check]:
    """Compare a gold table with its rows in a store."""
    subject = Compared(stream.name, kind.name, f"gold.{table.name} → {kind.label}")
    spark, path = lake.spark, lake.path("gold", table.name)
    topic = None if table.export.topic is None else settings.topic(table.export.topic)
    progress = sent.noted(spark, path, topic)
    version = exported_version(lake, table, None if progress is None else progress.position)
    if version is None:
        return [subject.compared(0, notes=["nothing has been exported yet"])]
    if kind.name in sent.behind(spark, path, topic):
        lacks = f"{kind.label} lacks rows: it was away or full. The export fills it once it takes them"
        return [subject.compared(0, notes=[lacks])]

    def rows_at(version: int) -> DataFrame:
        return tables.read_version(spark, path, cuts.with_same_rows(spark, path, version))

    found = kind.audit(Audited(Exported(lake, path, table, settings), version, now, rows_at))
    examples = [Difference(key, what) for key, what in found.examples]
    return [subject.found(found.compared, found.differences, examples, found.notes)]
