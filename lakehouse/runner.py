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
from types import FrameType
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from lakehouse import bronze, export, gold, silver, tables
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
_POLL_S = 0.2
_LONGEST_WAIT_S = 6.0
_MODULES = {"bronze": bronze, "silver": silver, "gold": gold, "export": export}


@dataclass(frozen=True)
class BatchDone:
    """A micro-batch that has been written: by which query, its number, what it did, and how long it took."""

    query: str
    batch: int
    result: BatchResult
    duration_s: float


OnBatch = Callable[[BatchDone], None]


@dataclass
class _Running:
    """A started query, with the number of the last micro-batch whose writes are complete.

    `before` is the query whose turn comes before this one's: the one it reads from, and for the first of a
    chain the last. `rounds` counts turns, `rounds_seen` those of `before` at the last look.
    """

    query: LayerQuery
    handle: StreamingQuery | None = None
    written: int = -1
    rounds: int = 0
    before: _Running | None = None
    rounds_seen: int = 0
    failure: BaseException | None = None


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
) -> None:
    """Run the layers of the streams until caught up (`available-now`) or until asked to stop (an interval).

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
        _run_together(_Start(spark, settings, trigger, on_batch), queries, stop)


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


def _run_together(start: _Start, queries: Iterable[LayerQuery], stop: Stop) -> None:
    turns = _jvm(start.spark).java.util.concurrent.Semaphore(1, True)  # noqa: FBT003
    running: list[_Running] = []
    try:
        for query in queries:
            running.append(_Running(query))
            _form_ring(running)
            _start(start, running[-1], turns, stop)
        _wait(running, stop)
    finally:
        _leave(running, turns)
        for one in running:
            one.query.close()
    for one in running:
        _raise_failure(one)


def _form_ring(running: Sequence[_Running]) -> None:
    """Let every query's turn come after that of the one it reads from, and a first one's after the last's."""
    by_name = {one.query.name: one for one in running}
    for one in running:
        one.before = by_name.get(one.query.reads or "")
    for one in running:
        first = one
        while first.before is not None and first.query.reads == first.before.query.name:
            first = first.before
        if first is not one:
            first.before = one


def _await_predecessor(one: _Running, stop: Stop) -> None:
    """Hold a written micro-batch until there is something new to plan the next one with.

    A query plans as soon as its micro-batch returns. If it did so at once it would choose its input a whole
    round before its turn, and an event would take a round for every layer. The wait is bounded, so that a
    silent predecessor costs little.
    """
    before = one.before
    if before is None:
        return
    deadline = time.monotonic() + _LONGEST_WAIT_S
    while before.rounds == one.rounds_seen and time.monotonic() < deadline and not stop.requested:
        time.sleep(_POLL_S / 20)


def _start(start: _Start, one: _Running, turns: Any, stop: Stop) -> None:
    query = one.query
    checkpoint = f"{start.settings.lake.rstrip('/')}/_checkpoints/{query.name}"
    _refuse_lost_checkpoint(start.spark, query, checkpoint)

    def on_micro_batch(batch: DataFrame, number: int) -> None:
        _take_turn(turns)
        one.rounds_seen = one.before.rounds if one.before else 0
        try:
            started = time.monotonic()
            context = batch.sparkSession.sparkContext
            application = f"{query.name}:{context.getLocalProperty('sql.streaming.queryId')}"
            result = query.process(batch, Transaction(application, number))
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


def _wait(running: Sequence[_Running], stop: Stop) -> None:
    """Return when every query has ended, when one has failed, or when a stop is requested."""
    while not stop.event.wait(_POLL_S):
        active = [one for one in running if one.handle is not None and one.handle.isActive]
        ended_badly = any(one.handle is not None and one.handle.exception() for one in running)
        if not active or ended_badly:
            return


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
            time.sleep(_POLL_S / 10)
        handle.stop()


def _last_committed(handle: StreamingQuery) -> int:
    progress = handle.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def _raise_failure(one: _Running) -> None:
    error = one.handle.exception() if one.handle is not None else None
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
    if query.fills is None or _is_there(spark, f"{checkpoint}/metadata"):
        return
    if not tables.read(spark, query.fills).isEmpty():
        raise CheckpointError(
            f"{query.name} has rows, but its checkpoint {checkpoint} is gone; starting again from the "
            f"beginning would write them twice. Put the checkpoint back, or delete {query.fills} (and what "
            f"was made from it) and run again to rebuild it"
        )


def _is_there(spark: SparkSession, path: str) -> bool:
    hadoop_path = _jvm(spark).org.apache.hadoop.fs.Path(path)
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    return bool(hadoop_path.getFileSystem(configuration).exists(hadoop_path))


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm
