"""Ids: of the records with one id, silver has the one that it should, and letters say so of the others."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import functions as F

from lakehouse.audit.report import Check, Compared
from lakehouse.repair.rebuild_silver import differing_by_id
from lakehouse.stream import Source, Stream
from lakehouse.tables import Lake


def check_ids(lake: Lake, stream: Stream, source: Source, now: datetime) -> list[Check]:
    """Compare the records of a source with each other again, and the outcome with silver and the letters."""
    rows = lake.read("silver", source.table).count()
    closed = lake.read("silver", "dead_letters").where(F.col("job") == f"silver.{source.table}")
    counts = {row.status: row["count"] for row in closed.groupBy("status").count().collect()}
    notes = [", ".join(f"{counts.get(one, 0):,} {one}" for one in ("duplicate", "superseded", "deletion"))]
    by = source.unique_by if source.sequence_by is None else f"{source.unique_by}, {source.sequence_by}"
    subject = Compared(stream.name, "ids", f"silver.{source.table} by {by}")
    return [subject.compared(rows, [differing_by_id(lake, stream, source, now)], notes)]
