"""Check that each store contains exactly the gold rows that the export has sent.

Each sink implements its own comparison (`SinkKind.audit`), because stores differ in which rows they keep, and
for how long. Gold is read at the version that the export has reached, so pending changes cannot hide a
difference. If some rows could not be compared, the check reports this and is not clean.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial

from pyspark.sql import DataFrame

from lakehouse.engine.ops_tables import unsent_rows
from lakehouse.engine.progress import cuts, sent
from lakehouse.operations.audit.report import Check, Compared, Difference
from lakehouse.operations.copies import marker as markers
from lakehouse.settings import Settings
from lakehouse.sinks.port import Audited, AuditedLead, Exported, Findings, SinkKind, Unsent
from lakehouse.sinks.registry import LEAD
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake, Position
from lakehouse.streams.definition import MergedTable, Stream


def check_lead(lake: Lake, stream: Stream, table: MergedTable, settings: Settings) -> list[Check]:
    """Compare a gold table with its Kafka topic, if it has one. Kafka is the lead store."""
    place = LEAD.place(table, settings)
    if place is None:
        return []
    exported = Exported(lake, lake.path("gold", table.name), table, settings)
    marker = markers.read(lake.spark, lake.root)
    audited = AuditedLead(
        exported,
        place,
        sent.noted(lake.spark, exported.path, place),
        partial(_version_of, exported),
        partial(_unsent, exported, place),
        None if marker is None else marker.of,
    )
    subject = Compared(stream.name, "exported", f"gold.{table.name} → {place}")
    return [_check(subject, LEAD.audit(audited))]


def check_store(
    lake: Lake, stream: Stream, table: MergedTable, kind: SinkKind, *, settings: Settings, now: datetime
) -> list[Check]:
    """Compare a gold table with its rows in a store."""
    exported = Exported(lake, lake.path("gold", table.name), table, settings)
    spark, path, place = lake.spark, exported.path, LEAD.place(table, settings)
    subject = Compared(stream.name, kind.name, f"gold.{table.name} → {kind.label}")
    progress = sent.noted(spark, path, place)
    version = None if progress is None else _version_of(exported, progress.position)
    if version is None:
        return [subject.compared(0, notes=["nothing has been exported yet"])]
    if kind.name in sent.lacking(spark, path, place):
        lacks = f"{kind.label} was unavailable or full, or refused rows; the export sends them once it can"
        return [subject.found(0, 0, [], not_compared=[lacks])]

    def rows_at(version: int) -> DataFrame:
        return tables.read_version(spark, path, cuts.with_same_rows(spark, path, version))

    return [_check(subject, kind.audit(Audited(exported, version, now, rows_at)))]


def _check(subject: Compared, found: Findings) -> Check:
    examples = [Difference(*one) for one in found.examples]
    return subject.found(found.compared, found.differences, examples, found.notes, found.not_compared)


def _version_of(exported: Exported, position: Position) -> int | None:
    """Return the last version that an export at this position has completely sent, or None."""
    if position.is_beginning or position.version == 0:
        return None
    return cuts.with_same_rows(exported.spark, exported.path, position.version - 1)


def _unsent(exported: Exported, place: str) -> Unsent | None:
    rows = unsent_rows.read(exported.lake, exported.table.name, place)
    return None if rows is None else Unsent(rows, unsent_rows.are_removed(rows))
