"""One trip: what is new in a stream's topics goes through all of its layers in one micro-batch.

A trip lands the records, judges the rows that have landed, folds the clean ones and sends what has changed.
What a layer has in memory the next one does not read from its table. Yet every layer keeps its own
checkpoint, in Spark's own form: a step is planned there before it begins and noted as done behind it, as if
the layer's own query had read the very versions that the trip has written. So that query can go on where a
trip has ended or was killed, and the other way round, and whoever asks a checkpoint how far its layer has
come need not know of trips.

A step joins the trip where its own query would have nothing to read. One that fails, or before which another
writer has put rows, leaves: its own query catches up, and it joins again.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse import checkpoints, cuts, tables
from lakehouse.checkpoints import KafkaPosition
from lakehouse.execution import are_few, execute_for
from lakehouse.kafka_source import read_between, read_new
from lakehouse.layer import BatchResult, LayerQuery, Passed
from lakehouse.settings import Settings
from lakehouse.tables import Transaction
from lakehouse.topics import describe_topic

_KEPT = 100  # plans of a checkpoint, as Spark keeps them
_FORGOTTEN_EVERY = 25
_MOST_VERSIONS = 10

Told = Callable[[str, int, BatchResult, float], None]


class Step:
    """A layer's query as a part of trips.

    `joined` says that it takes part; what has failed is kept in `failure` until somebody has seen to it.
    """

    def __init__(self, spark: SparkSession, query: LayerQuery, settings: Settings) -> None:
        self.query = query
        self.joined = False
        self.failure: Exception | None = None
        self.checkpoint = checkpoints.path_of(settings.lake, query.name)
        self._spark = spark
        self._lake = settings.lake
        self._application = ""
        self._last: int | None = None
        self._read: dict[str, int] = {}  # by table id: the first version that has not been read
        self._ids = {name: tables.table_id(spark, query.tables[name]) for name in self._sources}

    @property
    def _sources(self) -> tuple[str, ...]:
        """The tables that it reads: of an export its own, which may be kept beside the one that is merged."""
        return tuple(self.query.tables) if self.query.layer == "export" else self.query.reads

    def join(self) -> bool:
        """Take part from now on, if nothing waits that its own query has begun or has to read."""
        self.joined = (
            self._planned_beyond() is None
            and self._read_places()
            and self._next({}) is not None
            and not self._has_much_to_send()
        )
        if self.joined:
            self._identify()
        return self.joined

    def resume(self) -> int | None:
        """Go on behind the last micro-batch that is done; return one that is planned and not done, if any."""
        self._identify()
        return self._planned_beyond()

    def _identify(self) -> None:
        self._application = self.query.application(checkpoints.begin(self._spark, self.checkpoint))

    def _planned_beyond(self) -> int | None:
        planned = checkpoints.last_planned(self._spark, self.checkpoint)
        self._last = checkpoints.last_done(self._spark, self.checkpoint)
        return None if planned == self._last else planned

    def _has_much_to_send(self) -> bool:
        """Tell whether so many versions wait that they are better sent in micro-batches of a bounded size."""
        span = self.changes() if self.query.layer == "export" else None
        return span is not None and span[1] - span[0] >= _MOST_VERSIONS

    def _read_places(self) -> bool:
        """Read how far the last micro-batch has come; false where it has stopped within a version."""
        found = cuts.positions(self._spark, self._lake, self.query.name, self._last)
        for name in self._sources:
            place, path = found.get(self._ids[name]), self.query.tables[name]
            if place is not None:
                behind = cuts.place_behind(self._spark, path, place, feed=self.query.layer == "export")
                if behind is None:
                    return False
                self._read[self._ids[name]] = behind
        return True

    def is_behind(self) -> bool:
        """Tell whether something waits to be read."""
        return self._next({}) is None or (self.query.layer == "export" and self.changes() is not None)

    def leave(self) -> None:
        """Take no part from now on: what comes next it has to read from its tables."""
        self.joined = False

    def transaction(self) -> Transaction:
        """Return the transaction of the micro-batch that comes next."""
        return Transaction(self._application, self.number)

    @property
    def number(self) -> int:
        """The micro-batch that comes next."""
        return 0 if self._last is None else self._last + 1

    def plan(self, header: Mapping[str, Any], written: Mapping[str, Transaction]) -> bool:
        """Plan the next micro-batch: what the transactions have written to the tables that it reads.

        False where there is something else to read too: then it leaves.
        """
        places = self._next(written)
        if places is None:
            self.leave()
            return False
        self._read = places
        lines = [checkpoints.delta_place(self._ids[name], places[self._ids[name]]) for name in self._sources]
        self.plan_as(header, lines)
        return True

    def plan_as(self, header: Mapping[str, Any], lines: Sequence[str]) -> None:
        """Plan the next micro-batch as the lines say."""
        checkpoints.plan(self._spark, self.checkpoint, self.number, header, lines)

    def done(self) -> None:
        """Note that the micro-batch planned last is done."""
        number = self.number
        checkpoints.note_done(self._spark, self.checkpoint, number)
        self._last = number
        if number % _FORGOTTEN_EVERY == 0 and number > _KEPT:
            checkpoints.forget_before(self._spark, self.checkpoint, number - _KEPT)

    def changes(self) -> tuple[int, int] | None:
        """Return the first and the last version of the one table it reads that wait to be read, if any do."""
        (name,) = self._sources
        newest = tables.version_of(self._spark, self.query.tables[name])
        first = self._read.get(self._ids[name], 0)
        return None if first > newest else (first, newest)

    def plan_changes(self, header: Mapping[str, Any], last: int) -> None:
        """Plan a micro-batch of all versions up to this one."""
        (name,) = self._sources
        self._read[self._ids[name]] = last + 1
        self.plan_as(header, [checkpoints.delta_place(self._ids[name], last + 1)])

    def _next(self, written: Mapping[str, Transaction]) -> dict[str, int] | None:
        places: dict[str, int] = {}
        for name in self._sources:
            table = self._ids[name]
            found = cuts.next_place(
                self._spark, self.query.tables[name], self._read.get(table), written.get(name)
            )
            if found is None:
                return None
            places[table] = found
        return places


class Trip:
    """The trips of one stream: one query on its topics, and the steps that follow.

    `land` are the queries of bronze. The one query's own checkpoint lies in a directory of the driver's and
    is for this start only: where it begins is said by the checkpoints of bronze.
    """

    def __init__(
        self,
        spark: SparkSession,
        land: Sequence[LayerQuery],
        steps: Callable[[], Sequence[Step]],
        settings: Settings,
        told: Told,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._told = told
        self._landing = [Step(spark, query, settings) for query in land]
        self._steps = steps
        self._directory = tempfile.mkdtemp(prefix="lakehouse-trip-")
        self.checkpoint = Path(self._directory).as_uri()
        self._reached: KafkaPosition = {}

    def close(self) -> None:
        """Forget the query's own checkpoint."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def records(self) -> DataFrame:
        """Return what comes to the stream's topics from where bronze has come to."""
        self._reached = self._begin()
        topics, since = [_topic(step) for step in self._landing], checkpoints.kafka_place(self._reached)
        return read_new(self._spark, topics, self._settings, since=since)

    def take(
        self, batch: DataFrame, transaction: Transaction, now: datetime, _count: int | None = None
    ) -> BatchResult:
        """Take a micro-batch of records through the layers; the number is the trip's own."""
        number, spark = transaction.version, batch.sparkSession
        ends = checkpoints.kafka_position(self._spark, self.checkpoint, number)
        header = checkpoints.header_of(self._spark, self.checkpoint, number)
        # What is persisted is planned when it is marked.
        execute_for(spark, few=are_few(rows=checkpoints.records_between(self._reached, ends)))
        with ExitStack() as held:
            landed = self._land(batch, ends, header, now, held)
            clean = self._judge(landed, header, now, held)
            self._fold(spark, clean, header, now)
            self.send(spark, header, now)
        return BatchResult(sum(one.count for one in landed.values()))

    def _begin(self) -> KafkaPosition:
        """Finish what bronze has planned and not noted as done, and return where it has come to."""
        found: KafkaPosition = {}
        for step in self._landing:
            planned, topic = step.resume(), _topic(step)
            if planned is not None:
                self._finish(step, planned)
            last = step.number - 1 if step.number else None
            place = checkpoints.kafka_position(self._spark, step.checkpoint, last)
            known = describe_topic(self._settings.kafka_bootstrap_servers, topic)
            earliest = {} if known is None else known.earliest
            found[topic] = {**earliest, **place.get(topic, {})}
            if last is None:
                checkpoints.note_start(
                    self._spark, step.checkpoint, checkpoints.kafka_place({topic: found[topic]})
                )
        return found

    def _finish(self, step: Step, planned: int) -> None:
        topic = _topic(step)
        before, place = (
            checkpoints.kafka_position(self._spark, step.checkpoint, batch).get(topic, {})
            for batch in (planned - 1 if planned else None, planned)
        )
        first = {partition: before.get(partition, 0) for partition in place}
        first_place, end_place = (checkpoints.kafka_place({topic: offsets}) for offsets in (first, place))
        rows = read_between(self._spark, topic, self._settings, first=first_place, end=end_place)
        self._run(step, rows, None, datetime.now(UTC))

    def _land(
        self, batch: DataFrame, ends: KafkaPosition, header: Mapping[str, Any], now: datetime, held: ExitStack
    ) -> dict[str, Passed]:
        found: dict[str, Passed] = {}
        batch = held.enter_context(_persisted(batch))
        for step in self._landing:
            topic = _topic(step)
            if ends.get(topic) == self._reached.get(topic):
                continue
            step.plan_as(header, [checkpoints.kafka_place({topic: ends[topic]})])
            rows = batch if len(self._landing) == 1 else batch.where(F.col("topic") == topic)
            found[step.query.name] = self._pass_on(step, rows, None, now, held)
            self._reached[topic] = ends[topic]
        return found

    def _judge(
        self, landed: Mapping[str, Passed], header: Mapping[str, Any], now: datetime, held: ExitStack
    ) -> dict[str, Passed]:
        found: dict[str, Passed] = {}
        for step in self._of("silver"):
            (name,) = step.query.reads
            if name not in landed:
                continue
            handed = landed[name]
            with self._trying(step):
                if step.plan(header, {name: handed.transaction}):
                    found[step.query.name] = self._pass_on(step, handed.rows, handed.count, now, held)
        return found

    def _fold(
        self, spark: SparkSession, clean: Mapping[str, Passed], header: Mapping[str, Any], now: datetime
    ) -> None:
        for step in self._of("gold"):
            handed = {name: clean[name] for name in step.query.reads if name in clean}
            count = sum(one.count for one in handed.values())
            if not count:
                continue
            with self._trying(step):
                if step.query.is_held():
                    step.leave()
                    continue
                if not step.plan(header, {name: one.transaction for name, one in handed.items()}):
                    continue
                frames = {
                    name.partition(".")[2]: handed[name].rows
                    if name in handed
                    else tables.read(spark, step.query.tables[name]).limit(0)
                    for name in step.query.reads
                }
                self._run(step, step.query.combine(frames), count, now)
            # At once: what users wait for is not to wait for the tables that come after it.
            self.send(spark, header, now, of=step.query.name)

    def send(
        self, spark: SparkSession, header: Mapping[str, Any], now: datetime, of: str | None = None
    ) -> None:
        """Send what has changed in the gold tables, or in one of them and those beside it."""
        for step in self._of("export"):
            (gold,) = step.query.tables
            if of is not None and of not in step.query.reads:
                continue
            with self._trying(step):
                span = step.changes()
                if span is None:
                    continue
                step.plan_changes(header, span[1])
                feed = tables.read_changes(spark, step.query.tables[gold], *span)
                self._run(step, feed, None, now)

    def _of(self, layer: str) -> Iterator[Step]:
        return (step for step in self._steps() if step.query.layer == layer)

    @contextmanager
    def _trying(self, step: Step) -> Iterator[None]:
        try:
            yield
        except Exception as failure:  # noqa: BLE001 - told by who runs the trip
            step.failure = failure
            step.leave()

    def _run(self, step: Step, rows: DataFrame, count: int | None, now: datetime) -> None:
        started, transaction = time.monotonic(), step.transaction()
        result = step.query.process(rows, transaction, now, count)
        self._told(step.query.name, transaction.version, result, time.monotonic() - started)
        step.done()

    def _pass_on(
        self, step: Step, rows: DataFrame, count: int | None, now: datetime, held: ExitStack
    ) -> Passed:
        if step.query.pass_on is None:
            raise TypeError(f"{step.query.name} passes nothing on")
        started, transaction = time.monotonic(), step.transaction()
        passed = held.enter_context(step.query.pass_on(rows, transaction, now, count))
        self._told(step.query.name, transaction.version, passed.result, time.monotonic() - started)
        step.done()
        return passed


def _topic(step: Step) -> str:
    return str(step.query.topic)


@contextmanager
def _persisted(rows: DataFrame) -> Iterator[DataFrame]:
    kept = rows.persist()
    try:
        yield kept
    finally:
        kept.unpersist()
