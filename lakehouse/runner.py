"""Runs layers: their queries take turns in one application, and leave between two micro-batches.

With `available-now` the layers run one after the other, each until it has caught up, and as many
micro-batches work side by side as the run is told. With an interval all queries stay up and one micro-batch
works at a time. Either way turns are given in the order in which they are asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from lakehouse import bronze, checkpoints, export, gold, silver
from lakehouse.errors import LakehouseError, StreamError
from lakehouse.execution import executing_for
from lakehouse.failures import gist, is_loss, is_table_change
from lakehouse.guards import Guards
from lakehouse.layer import LAYERS, Allow, BatchResult, Gate, LayerName, LayerQuery
from lakehouse.settings import Settings
from lakehouse.stopping import Stop
from lakehouse.stream import Stream
from lakehouse.tables import Transaction
from lakehouse.triggers import AVAILABLE_NOW, check_trigger, interval_ms
from lakehouse.turns import Turns

_POLL_S = 0.05
_LIVE_POLL_S = 0.2  # there are many queries, and each look at one costs a call to the JVM
_LONGEST_WAIT_S = 6.0
_RESTARTS = 5  # of a query that has written nothing in between
_MODULES = {"bronze": bronze, "silver": silver, "gold": gold, "export": export}


@dataclass(frozen=True)
class BatchDone:
    """A micro-batch that has been written: by which query, its number, what it did, and how long it took.

    The number is null for what a query has done by the wall clock alone.
    """

    query: str
    batch: int | None
    result: BatchResult
    duration_s: float


OnBatch = Callable[[BatchDone], None]
Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Return the wall clock's time."""
    return datetime.now(UTC)


@dataclass
class _Running:
    """A started query, with the number of the last micro-batch whose writes are complete.

    `before` are the queries whose turns come before this one's: those it reads from, and for the first of a
    chain those at its ends. `rounds` counts turns, `rounds_seen` those of `before` at the last look.
    """

    query: LayerQuery
    handle: StreamingQuery | None = None
    written: int = -1
    rounds: int = 0
    before: list[_Running] = field(default_factory=list)
    rounds_seen: int = 0
    restarts: int = 0
    failure: BaseException | None = None

    @property
    def cause(self) -> BaseException | None:
        """What ended the query, null while it goes on and after it was stopped."""
        return self.failure or (self.handle.exception() if self.handle is not None else None)

    @property
    def rounds_before(self) -> int:
        """Turns that the queries before this one have had."""
        return sum(one.rounds for one in self.before)


def run(
    spark: SparkSession,
    streams: Sequence[Stream],
    layers: Sequence[LayerName],
    settings: Settings,
    *,
    trigger: str,
    on_batch: OnBatch = lambda _done: None,
    stop: Stop | None = None,
    clock: Clock = utc_now,
    allow: Collection[Allow] = (),
    on_notice: Callable[[str], None] = lambda _text: None,
    gate: Gate | None = None,
    at_once: int = 1,
) -> None:
    """Run the layers of the streams until caught up (`available-now`) or until asked to stop (an interval).

    `clock` says what time it is, UTC. `allow` is what the guards do not refuse. `on_notice` gets a line for
    what they let through, and for a query that starts again because a table of its has another schema. What
    the wall clock makes due is done once after catching up, and within one trigger of its time while an
    interval runs. With a `gate` a stream is exported only while its gate is open: after catching up, and
    every `gate_interval_s` while an interval runs, between two micro-batches, so that what leaves is what was
    looked at. While catching up `at_once` micro-batches of a layer work side by side, which pays where rows
    are few; `on_batch` is then called from several threads.
    A rerun goes on where the last run's checkpoints say. Raises CheckpointError where a checkpoint, its
    tables and its topic do not belong together (`lakehouse.guards`), and the LakehouseError or Spark error of
    the query that failed, after the others have been stopped.
    """
    stop = stop or Stop()
    check_trigger(trigger)
    guards = Guards(spark, settings, allow, on_notice)
    start = _Start(spark, settings, trigger, on_batch, clock, guards, at_once)
    ordered = [layer for layer in LAYERS if layer in layers]
    gated = gate if "export" in ordered else None
    if gated is not None:
        ordered.remove("export")
        start = replace(start, export=lambda: _export_open(start, streams, gated, stop))
    groups = [[layer] for layer in ordered] if trigger == AVAILABLE_NOW else [ordered]
    for group in groups:
        if stop.requested:
            return
        _run_together(start, _queries(start, streams, group), stop)
    if trigger == AVAILABLE_NOW and start.export is not None and not stop.requested:
        start.export()


def _queries(start: _Start, streams: Sequence[Stream], layers: Sequence[LayerName]) -> Iterator[LayerQuery]:
    for layer in layers:
        for stream in streams:
            yield from _MODULES[layer].queries(start.spark, stream, start.settings)


def _export_open(start: _Start, streams: Sequence[Stream], gate: Gate, stop: Stop) -> None:
    """Export what has come of the streams whose gates are open; nothing else may write gold meanwhile."""
    for stream in streams:
        if not stop.requested and gate.is_open(stream, start.clock()):
            catching_up = replace(start, trigger=AVAILABLE_NOW, export=None)
            _run_together(catching_up, _queries(catching_up, [stream], ["export"]), stop)


@dataclass(frozen=True)
class _Start:
    """What starting a query takes besides the query."""

    spark: SparkSession
    settings: Settings
    trigger: str
    on_batch: OnBatch
    clock: Clock
    guards: Guards
    at_once: int
    export: Callable[[], None] | None = None


def _run_together(start: _Start, queries: Iterable[LayerQuery], stop: Stop) -> None:
    turns = Turns(start.spark, start.at_once if start.trigger == AVAILABLE_NOW else 1)
    running: list[_Running] = []
    try:
        # A query's session is a copy of the one that starts it, and stays so until its rows are many.
        with executing_for(start.spark, few=True):
            for query in queries:
                running.append(_Running(query))
                _form_ring(running)
                _start(start, running[-1], turns, stop)
        _wait(start, running, turns, stop)
    finally:
        _leave(running, turns)
        for one in running:
            one.query.close()
    for one in running:
        _raise_failure(start, one)


def _form_ring(running: Sequence[_Running]) -> None:
    """Let every query's turn come after those it reads from, and a first one's after its chain's ends."""
    by_name = {one.query.name: one for one in running}
    for one in running:
        one.before = [by_name[name] for name in one.query.reads if name in by_name]
    read = {name for one in running for name in one.query.reads}
    ends = [one for one in running if one.query.name not in read]
    firsts = [one for one in running if not one.before]
    closing = [[end for end in ends if end is not first and _leads_to(first, end)] for first in firsts]
    for first, its_ends in zip(firsts, closing, strict=True):
        first.before = its_ends


def _leads_to(first: _Running, end: _Running) -> bool:
    return any(one is first or _leads_to(first, one) for one in end.before)


def _await_predecessor(one: _Running, stop: Stop) -> None:
    """Hold a written micro-batch until there is something new to plan the next one with.

    A query plans as soon as its micro-batch returns. If it did so at once it would choose its input a whole
    round before its turn, and an event would take a round for every layer. The wait is bounded, so that a
    silent predecessor costs little.
    """
    if not one.before:
        return
    deadline = time.monotonic() + _LONGEST_WAIT_S
    while one.rounds_before == one.rounds_seen and time.monotonic() < deadline and not stop.requested:
        time.sleep(_POLL_S / 5)


def _start(start: _Start, one: _Running, turns: Turns, stop: Stop) -> None:
    query = one.query
    checkpoint = checkpoints.path_of(start.settings.lake, query.name)
    start.guards.check(query, start.clock())

    def on_micro_batch(batch: DataFrame, number: int) -> None:
        with turns.one():
            one.rounds_seen = one.rounds_before
            try:
                started = time.monotonic()
                context = batch.sparkSession.sparkContext
                application = query.application(str(context.getLocalProperty("sql.streaming.queryId")))
                result = query.process(batch, Transaction(application, number), start.clock())
                one.written = number
                one.rounds += 1
                one.restarts = 0
                start.on_batch(BatchDone(query.name, number, result, time.monotonic() - started))
            except BaseException as failure:
                one.failure = failure
                raise
        if start.trigger != AVAILABLE_NOW:
            _await_predecessor(one, stop)

    writer = query.rows().writeStream.queryName(query.name).option("checkpointLocation", checkpoint)
    one.handle = _with_trigger(writer, start.trigger).foreachBatch(on_micro_batch).start()


def _with_trigger(writer: DataStreamWriter, trigger: str) -> DataStreamWriter:
    if trigger == AVAILABLE_NOW:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{interval_ms(trigger)} milliseconds")


def _wait(start: _Start, running: Sequence[_Running], turns: Turns, stop: Stop) -> None:
    """Return when every query has ended, when one has failed, or when a stop is requested.

    Meanwhile, at most once a trigger, and at the end of a catch-up, what the wall clock makes due is done.
    """
    live = start.trigger != AVAILABLE_NOW
    interval_s = (interval_ms(start.trigger) or 0) / 1000
    next_tick = time.monotonic() + interval_s
    next_export = time.monotonic() + start.settings.gate_interval_s
    while not stop.event.wait(_LIVE_POLL_S if live else _POLL_S):
        active = [one for one in running if one.handle is not None and one.handle.isActive]
        failed = [one for one in running if one not in active and one.cause is not None]
        if failed:
            if not all(_started_again(start, one, turns, stop) for one in failed):
                return
            continue
        if not active or (live and time.monotonic() >= next_tick):
            next_tick = time.monotonic() + interval_s
            if not _tick(start, running, turns):
                return
        if not active:
            return
        if live and start.export is not None and time.monotonic() >= next_export:
            with turns.all():
                start.export()
            next_export = time.monotonic() + start.settings.gate_interval_s


def _started_again(start: _Start, one: _Running, turns: Turns, stop: Stop) -> bool:
    """Start a query again that has met a table's new schema, and tell whether it has."""
    if not _may_start_again(one):
        return False
    start.guards.notice(f"{one.query.name} starts again: {gist(one.cause or StreamError())}")
    one.restarts += 1
    one.failure = None
    one.written = -1  # what has been written is in the checkpoint, or will be written again
    _start(start, one, turns, stop)
    return True


def _may_start_again(one: _Running) -> bool:
    ended = one.handle is not None and one.handle.exception() is not None
    return ended and one.cause is not None and is_table_change(one.cause) and one.restarts < _RESTARTS


def _tick(start: _Start, running: Sequence[_Running], turns: Turns) -> bool:
    """Do what the wall clock makes due and tell whether that went well."""
    for one in running:
        ticker, now = one.query.ticker, start.clock()
        if ticker is None or not ticker.is_due(now):
            continue
        try:
            with turns.all():
                started = time.monotonic()
                result = ticker.tick(now)
                if result.rows:
                    one.rounds += 1
                    start.on_batch(BatchDone(one.query.name, None, result, time.monotonic() - started))
        except Exception as failure:  # noqa: BLE001 - raised by the run's end like a micro-batch's
            one.failure = failure
            return False
    return True


def _leave(running: Sequence[_Running], turns: Turns) -> None:
    """Stop every query between two micro-batches.

    Once all turns are ours no micro-batch is writing and none can begin; one that has just written still
    has to note so in its checkpoint, which is waited for. What waits for its turn has done nothing yet.
    """
    turns.end()
    for one in running:
        handle = one.handle
        if handle is None:
            continue
        while handle.isActive and _last_committed(handle) < one.written:
            time.sleep(_POLL_S / 2)
        handle.stop()


def _last_committed(handle: StreamingQuery) -> int:
    progress = handle.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def _raise_failure(start: _Start, one: _Running) -> None:
    cause = one.cause
    if cause is None or _may_start_again(one):  # the latter was to stop before it could
        return
    if isinstance(cause, LakehouseError):
        raise cause
    if is_loss(cause):
        start.guards.refuse_losses(one.query, cause)
    raise StreamError(f"{one.query.name} failed: {type(cause).__name__}: {gist(cause)}") from cause
