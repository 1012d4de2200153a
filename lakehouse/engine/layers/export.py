"""Export: send gold's change feed to a topic and other stores, using the sinks in `lakehouse.sinks`.

Each micro-batch of the change feed sends the newest state of every changed row. A row is sent first to the
lead store, Kafka, exactly once for a read-committed consumer, and then to each sink. Rows with the same
message key are sent in version order and, within a version, in the order of their table keys. A deleted row
is sent as a null value. A row that is too large for Kafka is sent only to the sinks, and is recorded in
ops.unsent_rows. If a sink has lost rows, or was unavailable or full, it receives the missing rows later,
while Kafka and the other sinks continue. The lake records which stores lack rows, and why, and the export's
periodic work fails until the sink has accepted them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from lakehouse.common.errors import ServiceError, SinkTroubleError
from lakehouse.engine.layers import gold
from lakehouse.engine.layers.change_reading import ChangeReading, FeedBatch
from lakehouse.engine.layers.export_position import Noted
from lakehouse.engine.layers.following import Following, Stopwatch
from lakehouse.engine.layers.step import Batch, BatchResult, Passed, Permitted, Step, StepMaker
from lakehouse.engine.ops_tables import unsent_rows
from lakehouse.engine.progress import sent
from lakehouse.engine.progress.reading import InMemory
from lakehouse.settings import Settings
from lakehouse.sinks.change import Change, UnsentRow, next_chunk
from lakehouse.sinks.outgoing import changes_of, filter_newest, leaves, outgoing, within
from lakehouse.sinks.port import Exported, Sending, Slice
from lakehouse.sinks.registry import LEAD, used_by
from lakehouse.storage.spark.execution import Amount, amount_of, execute_for, gathered, size_of
from lakehouse.storage.spark.kept import Kept
from lakehouse.storage.tables import Lake, Progress
from lakehouse.streams.definition import GoldTable, MergedTable, Stream

LARGE_FROM_ROWS = 50_000
LARGE_FROM_BYTES = 32 << 20
_CHUNK_ROWS = 20_000
log = logging.getLogger(__name__)


def steps(lake: Lake, stream: Stream, settings: Settings, permitted: Permitted) -> list[StepMaker]:
    """Return factories for the steps that send the stream's gold tables."""
    return [
        StepMaker(
            stream.name,
            "export",
            f"export.{kept.name}",
            partial(_Export, lake, kept, made_by, settings, permitted),
        )
        for made_by in stream.gold
        for kept in (made_by, *made_by.sides)
    ]


class _Export(Step):
    """A step that sends the changes of one gold table, and periodically refills sinks that lack rows."""

    layer = "export"

    def __init__(
        self,
        lake: Lake,
        table: MergedTable,
        made_by: GoldTable,
        settings: Settings,
        permitted: Permitted,
    ) -> None:
        self.name = f"export.{table.name}"
        self.ticker = self
        self._lake = lake
        self._table = table
        self._source = f"gold.{made_by.name}"  # its micro-batches also fill this table
        self._path = lake.ensure_source(gold.spec(table))
        self._max_bytes = settings.run.max_bytes
        exported = Exported(lake, self._path, table, settings, permitted.on_notice, self._note_unsent)
        self._place = LEAD.place(table, settings)
        with self._leading(datetime.now(UTC)):
            self._lead = LEAD.make(exported)
            noted = self._noted()
        self._reading = ChangeReading(
            lake.spark, self.name, f"gold.{table.name}", self._path, permitted.allow
        )
        begun = noted.begun(permitted)
        self._reading.begin(begun)
        kinds = used_by(table, settings)
        own = {kind.name: kind.own(table) for kind in kinds if kind.own is not None}
        self._changes, self._leaves = Kept(changes_of(table, own).of), leaves(table)
        self._sinks = [Following(kind.make(exported), lacking=begun.lacking_of(kind.name)) for kind in kinds]
        if LEAD.name in (begun.lacking or {}):  # an earlier attempt failed, and the lead works again
            self._note_lacking()

    def plan(self, handed: Mapping[str, InMemory]) -> Batch | None:  # noqa: ARG002 - it reads a change feed
        """Choose the next changes, or return None if there are none."""
        part = self._reading.next(max_bytes=self.limit or self._max_bytes)
        return None if part is None else self._reading.batch(part)

    @contextmanager
    def write(self, batch: Batch, now: datetime) -> Iterator[Passed]:
        """Send the chosen changes. Changes that the lead already has are sent only to the sinks."""
        if not isinstance(batch, FeedBatch):
            raise TypeError(f"{self.name} can only write a micro-batch of changes")
        yield Passed(self._reading.written(batch, lambda one: self._write(one, now)))

    def _write(self, batch: FeedBatch, now: datetime) -> BatchResult:
        amount = amount_of(size_bytes=size_of(batch.rows))
        execute_for(batch.rows.sparkSession, amount)
        leaving = filter_newest(gathered(batch.rows, amount), self._table).where(self._leaves)
        if batch.lost is not None and self._lead is not None:
            unsent_rows.note_removed(self._lake, self._table.name, self._lead.place, batch.lost, now=now)
        sending = Sending(batch.span, now, self._reading.position is None, batch.lost is not None)
        result = self._send(leaving, sending, amount)
        progress = Progress(self._reading.sent_as, batch.span.after)
        lacking = self._lacking()
        sent.note(self._lake.spark, self._path, self._place, progress, at=now, lacking=lacking)
        self._reading.advance(batch.span.after)
        return result

    def end_here(self, filled: Collection[str]) -> None:
        """Send no changes beyond the current version, unless this run fills the table."""
        if self._source not in filled:
            self._reading.end_here()

    def is_due(self, now: datetime) -> bool:  # noqa: ARG002 - sinks have their own intervals
        """Return whether a sink lacks rows."""
        return any(sink.is_due() for sink in self._sinks)

    def tick(self, now: datetime) -> BatchResult:
        """Fill the sinks that lack rows.

        If it is not known which sinks lack rows, for example after a failure, fills all of them.

        Tries every sink before raising SinkTroubleError for one that did not accept its rows.
        """
        due = [sink for sink in self._sinks if sink.is_due()] or self._sinks
        filled, failures = dict[str, int](), list[SinkTroubleError]()
        for sink in due:
            try:
                with self._noting_changes():
                    sink.require(now)
                with self._noting_changes():
                    filled[sink.name] = sink.fill(self._reading.position)
            except SinkTroubleError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return BatchResult(sum(filled.values()), filled)

    def close(self) -> None:
        """Close the connections to all stores."""
        if self._lead is not None:
            self._lead.close()
        for sink in self._sinks:
            sink.close()

    def _noted(self) -> Noted:
        """Return the export's recorded progress, including the part that the lead has recorded."""
        spark, path, table, lead = self._lake.spark, self._path, f"gold.{self._table.name}", self._lead
        if lead is None:
            return Noted(spark, path, table, None, None, None)
        sliced = lead.begun()
        return Noted(spark, path, table, lead.place, lead.sent(), sliced)

    def _send(self, leaving: DataFrame, sending: Sending, amount: Amount) -> BatchResult:
        most = {"rows": LARGE_FROM_ROWS - 1, "size_bytes": LARGE_FROM_BYTES}
        changes = within(leaving, self._changes, **most) if amount is not Amount.MANY else None
        if changes is None:
            with outgoing(leaving, self._changes) as rows:
                if rows.count > most["rows"] or rows.size_bytes > most["size_bytes"]:
                    return self._hand_on(rows.in_parts(), replace(sending, is_large=True))
                changes = rows.all_at_once()
        return self._hand_on(iter(changes), sending)

    def _hand_on(self, changes: Iterator[Change], sending: Sending) -> BatchResult:
        """Send the rows to the lead, and pass each slice to the sinks once the lead has accepted it."""
        rows, sent_rows, refused, reading, leading = 0, 0, 0, Stopwatch(), Stopwatch()
        slices = leading.over(self._led(reading.over(changes), sending))
        first = next(slices, Slice([]))  # before any sink is called, because sinks may be unavailable
        for sink in self._sinks:
            sink.begin(sending)
        for one in chain([first], slices):
            rows += len(one.changes)
            sent_rows += one.sent
            refused += len(one.refused)
            for sink in self._sinks:
                sink.write(one.changes)
        written = {sink.name: sink.end() for sink in self._sinks}
        seconds = {sink.name: sink.seconds for sink in self._sinks}
        if self._lead is not None:
            written = {self._lead.place: sent_rows, **written}
            seconds = {self._lead.name: leading.seconds - reading.seconds, **seconds}
        if refused:
            written["unsent"] = refused
        return BatchResult(rows, written, seconds)

    def _led(self, changes: Iterator[Change], sending: Sending) -> Iterator[Slice]:
        if self._lead is None:
            yield from map(Slice, iter(lambda: next_chunk(changes, _CHUNK_ROWS), []))
        else:
            with self._leading(sending.now):
                yield from self._lead.send(changes, sending)

    def _lacking(self) -> dict[str, sent.Lacking]:
        return {sink.name: sink.lacking for sink in self._sinks if sink.lacking is not None}

    def _note_lacking(self) -> None:
        position = self._reading.position
        progress = None if position is None else Progress(self._reading.sent_as, position)
        sent.note_lacking(self._lake.spark, self._path, self._place, self._lacking(), progress)

    @contextmanager
    def _noting_changes(self) -> Iterator[None]:
        """After the block, record why which sinks lack rows, if that has changed."""
        before = self._lacking()
        try:
            yield
        finally:
            if self._lacking() != before:
                self._note_lacking()

    @contextmanager
    def _leading(self, now: datetime) -> Iterator[None]:
        """If the lead fails in the block, record why."""
        try:
            yield
        except ServiceError as error:
            try:
                self._note_led(error, now)
            except (PySparkException, Py4JError, OSError):
                log.debug("the failure of %s could not be noted", self.name, exc_info=True)
            raise

    def _note_led(self, error: ServiceError, now: datetime) -> None:
        spark, path, place = self._lake.spark, self._path, self._place
        known = sent.lacking(spark, path, place)
        lacking = sent.Lacking.of(error, known.get(LEAD.name), now)
        if lacking != known.get(LEAD.name):
            sent.note_lacking(spark, path, place, {**known, LEAD.name: lacking})

    def _note_unsent(self, place: str, refused: Sequence[UnsentRow], now: datetime) -> None:
        unsent_rows.note(self._lake, self._table.name, place, refused, now=now)
