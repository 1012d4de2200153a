"""Runs layers: their queries take turns in one application, and leave between two micro-batches.

With `available-now` the layers run one after the other, each until it has caught up. With an interval all
queries stay up, and a fair semaphore lets one micro-batch work at a time, in the order in which they ask.
The semaphore is the JVM's, because a query waits for it on its own thread there, and `StreamingQuery.stop`
can then interrupt the wait as it interrupts any other.
"""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import FrameType
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from lakehouse import bronze, checkpoints, export, gold, silver, tables
from lakehouse.errors import CheckpointError, LakehouseError, SettingsError, StreamError
from lakehouse.layer import LAYERS, BatchResult, LayerName, LayerQuery
from lakehouse.settings import Settings
from lakehouse.stream import Stream
from lakehouse.tables import Transaction

AVAILABLE_NOW = "available-now"
_INTERVAL = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]+)", re.ASCII)
_UNITS_MS = (
    dict.fromkeys(("ms", "millisecond", "milliseconds"), 1)
    | dict.fromkeys(("s", "second", "seconds"), 1000)
    | dict.fromkeys(("m", "minute", "minutes"), 60_000)
    | dict.fromkeys(("h", "hour", "hours"), 3_600_000)
)
_POLL_S = 0.05
_LIVE_POLL_S = 0.2  # there are many queries, and each look at one costs a call to the JVM
_LONGEST_WAIT_S = 6.0
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
    failure: BaseException | None = None

    @property
    def rounds_before(self) -> int:
        """Turns that the queries before this one have had."""
        return sum(one.rounds for one in self.before)


@dataclass
class Stop:
    """A request to leave after the current micro-batch; set by a signal or by another thread."""

    event: threading.Event = field(default_factory=threading.Event)

    def request(self) -> None:
        """Ask the run to leave."""
        self.event.set()

    @property
    def requested(self) -> bool:
        """Tell whether the run has been asked to leave."""
        return self.event.is_set()


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
) -> None:
    """Run the layers of the streams until caught up (`available-now`) or until asked to stop (an interval).

    `clock` says what time it is, UTC. What the wall clock makes due is done once after catching up, and
    within one trigger of its time while an interval runs.
    A rerun goes on where the last run's checkpoints say. Raises CheckpointError where a table has rows that
    its checkpoint knows nothing of, and the LakehouseError or Spark error of the query that failed, after
    the others have been stopped.
    """
    stop = stop or Stop()
    check_trigger(trigger)
    ordered = [layer for layer in LAYERS if layer in layers]
    groups = [[layer] for layer in ordered] if trigger == AVAILABLE_NOW else [ordered]
    for group in groups:
        if stop.requested:
            return
        queries = (
            query
            for layer in group
            for stream in streams
            for query in _MODULES[layer].queries(spark, stream, settings)
        )
        _run_together(_Start(spark, settings, trigger, on_batch, clock), queries, stop)


def check_trigger(trigger: str) -> None:
    """Raise SettingsError unless the trigger is available-now or an interval such as "1 second"."""
    if trigger != AVAILABLE_NOW and _interval_ms(trigger) is None:
        raise SettingsError(
            f'unknown trigger "{trigger}"; use {AVAILABLE_NOW} or an interval such as "1 second"'
        )


class _JvmHandler:
    """Hands a signal that reaches the JVM to a Stop; under spark-submit it is the JVM that gets SIGTERM."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop

    def handle(self, _signal: object) -> None:
        self._stop.request()

    class Java:
        implements = ("sun.misc.SignalHandler",)


@contextlib.contextmanager
def stopping_on_signals(spark: SparkSession) -> Iterator[Stop]:
    """Turn SIGTERM and Ctrl-C, to this process or its JVM, into a request to leave after the micro-batch."""
    stop = Stop()

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop.request()

    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    jvm = _jvm(spark)
    jvm_handler = _JvmHandler(stop)
    for name in ("TERM", "INT"):
        jvm.sun.misc.Signal.handle(jvm.sun.misc.Signal(name), jvm_handler)
    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class _Start:
    """What starting a query takes besides the query."""

    spark: SparkSession
    settings: Settings
    trigger: str
    on_batch: OnBatch
    clock: Clock


def _run_together(start: _Start, queries: Iterable[LayerQuery], stop: Stop) -> None:
    turns = _jvm(start.spark).java.util.concurrent.Semaphore(1, True)  # noqa: FBT003
    running: list[_Running] = []
    try:
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
        _raise_failure(one)


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


def _start(start: _Start, one: _Running, turns: Any, stop: Stop) -> None:
    query = one.query
    checkpoint = checkpoints.path_of(start.settings.lake, query.name)
    _refuse_lost_checkpoint(start.spark, query, checkpoint)

    def on_micro_batch(batch: DataFrame, number: int) -> None:
        _take_turn(turns)
        one.rounds_seen = one.rounds_before
        try:
            started = time.monotonic()
            context = batch.sparkSession.sparkContext
            application = f"{query.name}:{context.getLocalProperty('sql.streaming.queryId')}"
            result = query.process(batch, Transaction(application, number), start.clock())
            one.written = number
            one.rounds += 1
            start.on_batch(BatchDone(query.name, number, result, time.monotonic() - started))
        except BaseException as failure:
            one.failure = failure
            raise
        finally:
            turns.release()
        if start.trigger != AVAILABLE_NOW:
            _await_predecessor(one, stop)

    writer = query.rows.writeStream.queryName(query.name).option("checkpointLocation", checkpoint)
    one.handle = _with_trigger(writer, start.trigger).foreachBatch(on_micro_batch).start()


def _take_turn(turns: Any) -> None:
    """Wait for the turn; a stop of the query interrupts the wait, and Spark is told so in few words.

    Spark recognises an interrupt in Python by a pattern whose cost in stack grows with the text after it,
    and the Java stack trace of the original message is enough to overflow it.
    """
    try:
        turns.acquire()
    except Py4JJavaError as error:
        if "InterruptedException" not in str(error.java_exception):
            raise
        raise InterruptedError(
            "py4j.protocol.Py4JJavaError: An error occurred while calling acquire: "
            "java.lang.InterruptedException"
        ) from None


def _with_trigger(writer: DataStreamWriter, trigger: str) -> DataStreamWriter:
    if trigger == AVAILABLE_NOW:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{_interval_ms(trigger)} milliseconds")


def _interval_ms(trigger: str) -> int | None:
    """Return the length of an interval, None where it is none; Spark knows fewer units and fractions."""
    found = _INTERVAL.fullmatch(trigger)
    unit_ms = _UNITS_MS.get(found[2]) if found else None
    return None if found is None or unit_ms is None else round(float(found[1]) * unit_ms)


def _wait(start: _Start, running: Sequence[_Running], turns: Any, stop: Stop) -> None:
    """Return when every query has ended, when one has failed, or when a stop is requested.

    Meanwhile, at most once a trigger, and at the end of a catch-up, what the wall clock makes due is done.
    """
    live = start.trigger != AVAILABLE_NOW
    interval_s = (_interval_ms(start.trigger) or 0) / 1000
    next_tick = time.monotonic() + interval_s
    while not stop.event.wait(_LIVE_POLL_S if live else _POLL_S):
        active = [one for one in running if one.handle is not None and one.handle.isActive]
        if any(one.handle is not None and one.handle.exception() for one in running):
            return
        if not active or (live and time.monotonic() >= next_tick):
            next_tick = time.monotonic() + interval_s
            if not _tick(start, running, turns):
                return
        if not active:
            return


def _tick(start: _Start, running: Sequence[_Running], turns: Any) -> bool:
    """Do what the wall clock makes due and tell whether that went well."""
    for one in running:
        ticker, now = one.query.ticker, start.clock()
        if ticker is None or not ticker.is_due(now):
            continue
        turns.acquire()
        try:
            started = time.monotonic()
            result = ticker.tick(now)
            if result.rows:
                one.rounds += 1
                start.on_batch(BatchDone(one.query.name, None, result, time.monotonic() - started))
        except Exception as failure:  # noqa: BLE001 - raised by the run's end like a micro-batch's
            one.failure = failure
            return False
        finally:
            turns.release()
    return True


def _leave(running: Sequence[_Running], turns: Any) -> None:
    """Stop every query between two micro-batches.

    Once the turn is ours no micro-batch is writing and none can begin; one that has just written still
    has to note so in its checkpoint, which is waited for. What waits for its turn has done nothing yet.
    """
    turns.acquire()
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


def _raise_failure(one: _Running) -> None:
    error = (one.handle.exception() if one.handle is not None else None) or one.failure
    if error is None:
        return
    if isinstance(one.failure, LakehouseError):
        raise one.failure
    cause = one.failure or error
    raise StreamError(f"{one.query.name} failed: {type(cause).__name__}: {_gist(cause)}") from cause


def _gist(error: BaseException) -> str:
    """Return what an error says, without the stack traces that Spark puts into messages."""
    java = str(error.java_exception.toString()) if isinstance(error, Py4JJavaError) else str(error)
    lines = java.splitlines()
    return next((line.strip() for line in lines if line.strip()), "no message")


def _refuse_lost_checkpoint(spark: SparkSession, query: LayerQuery, checkpoint: str) -> None:
    if query.fills is None or checkpoints.exists(spark, checkpoint):
        return
    if not tables.read(spark, query.fills).isEmpty():
        raise CheckpointError(
            f"{query.name} has rows, but its checkpoint {checkpoint} is gone; starting again from the "
            f"beginning would write them twice. Put the checkpoint back, or delete {query.fills} (and what "
            f"was made from it) and run again to rebuild it"
        )


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm
