"""Audit a lake: compare each layer with the layer before it, row by row, from Kafka to the exports.

    Kafka ── landed ── bronze ─ records ─ silver + dead letters ── gold ── gold ── exported ── Kafka
                                                                                └─ stores

The audit can run alongside the streams. It compares consistent versions (`lakehouse.engine.progress.cuts`)
and does not report in-flight rows. The audit writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from lakehouse.common.errors import AccessDeniedError, TableError
from lakehouse.operations.audit.files import check_files
from lakehouse.operations.audit.gold import check_gold
from lakehouse.operations.audit.landing import check_landing
from lakehouse.operations.audit.records import check_records
from lakehouse.operations.audit.report import Check, Compared, Difference, Report
from lakehouse.operations.audit.stores import check_lead, check_store
from lakehouse.settings import Settings
from lakehouse.sinks.registry import used_by
from lakehouse.storage import tables
from lakehouse.storage.spark.execution import Amount, executing_for
from lakehouse.storage.spark.query_errors import error_line
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Stream

__all__ = ["Check", "Difference", "Report", "audit"]

_PAUSE_S = 2.0

_Look = Callable[[], Sequence[Check]]


def audit(
    lake: Lake,
    streams: Sequence[Stream],
    settings: Settings,
    now: datetime,
    on_check: Callable[[Check], None] = lambda _check: None,
    *,
    since: datetime | None = None,
) -> Report:
    """Run all checks for the streams and return the report. A check that finds differences is repeated once.

    With `since` (UTC), the checks `landed` and `records` compare only records that landed then or later. The
    other checks always compare everything.

    Tables that do not exist yet are skipped. A table that cannot be read safely, for example because it is
    damaged, counts as a difference, and later checks of its stream can be skipped. If all tables are small,
    two streams are checked concurrently, and `on_check` is called from two threads. Raises ServiceError if
    Kafka or another store is unreachable.
    """
    amounts = {stream.name: _amount(lake, stream) for stream in streams}

    def checks(stream: Stream) -> list[Check]:
        found = []
        own = replace(lake, spark=lake.spark.newSession())  # has its own execution settings
        with executing_for(own.spark, amounts[stream.name]), suppress(TableError):  # reported by `files`
            for subject, look in _looks(own, stream, settings, now, since=since):
                for check in _made(subject, look):
                    on_check(check)
                    found.append(check)
        return found

    with ThreadPoolExecutor(1 if Amount.MANY in amounts.values() else 2) as pool:
        return Report(now, tuple(check for found in pool.map(checks, streams) for check in found))


def _amount(lake: Lake, stream: Stream) -> Amount:
    """Return the execution mode that suits the stream's largest table."""
    names = [(layer, source.table) for layer in ("bronze", "silver") for source in stream.sources]
    names += [("gold", table.name) for table in stream.tables]
    try:
        return tables.amount_in(lake.spark, [lake.path(*name) for name in names if lake.exists(*name)])
    except TableError:  # reported by `files`
        return Amount.MANY


def _looks(
    lake: Lake, stream: Stream, settings: Settings, now: datetime, *, since: datetime | None
) -> Iterator[tuple[Compared, _Look]]:
    def about(name: str, subject: str) -> Compared:
        return Compared(stream.name, name, subject)

    access = settings.kafka.access
    yield about("files", "every table"), partial(check_files, lake, stream)
    for source in stream.sources:
        name = source.table
        if lake.exists("bronze", name):
            topic = settings.topic(source.topic)
            look = partial(check_landing, lake, stream, source, topic, access, since=since)
            yield about("landed", f"bronze.{name}"), look
            if lake.exists("silver", name):
                look = partial(check_records, lake, stream, source, since)
                yield about("records", f"silver.{name}"), look
    for table in stream.gold:
        kept = (table, *table.sides)
        if not all(lake.exists("gold", one.name) for one in kept):
            continue
        yield about("gold", f"gold.{table.name}"), partial(check_gold, lake, stream, table)
        for one in kept:
            look = partial(check_lead, lake, stream, one, settings)
            yield about("exported", f"gold.{one.name}"), look
            for kind in used_by(one, settings):
                look = partial(check_store, lake, stream, one, kind, settings=settings, now=now)
                yield about(kind.name, f"gold.{one.name}"), look


def _made(subject: Compared, look: _Look) -> Sequence[Check]:
    """Run a check. If it finds differences, repeat it after a pause, because a replay may be in progress."""
    checks = _looked(subject, look)
    if any(check.differences for check in checks):
        time.sleep(_PAUSE_S)
        checks = _looked(subject, look)
    return checks


def _looked(subject: Compared, look: _Look) -> Sequence[Check]:
    try:
        return look()
    except (PySparkException, Py4JJavaError, TableError, AccessDeniedError) as error:
        return [subject.found(0, 1, [Difference({}, f"could not be compared: {error_line(error)}")])]
