"""One trip: new records of a stream's topics go through all of its layers in one micro-batch.

A trip lands the records, judges them, folds the clean ones and sends what has changed. It hands rows on in
memory, so no layer reads back what the one before it has just written. Still, every layer keeps its own
checkpoint in Spark's own form. A step is planned there before it begins and noted as done afterwards, as if
the layer's own query had read the versions that the trip wrote. So the layers' own queries can continue where
a trip ended or was killed, and trips can continue where a query ended. Code that reads a layer's progress
from its checkpoint need not know about trips.

A step joins the trip when its own query would have nothing to read. It leaves when it fails, or when another
writer has added rows. Then its own query catches up, and it joins again.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse import tables
from lakehouse.layers.query import BatchResult, LayerQuery, Passed
from lakehouse.layers.step import Step
from lakehouse.progress import checkpoints
from lakehouse.progress.checkpoints import KafkaPosition
from lakehouse.progress.snapshots import Appended
from lakehouse.records.kafka_source import read_between, read_new
from lakehouse.settings import Settings
from lakehouse.spark.execution import are_few, execute_for
from lakehouse.tables import Lake, Transaction
from lakehouse.topics import describe_topic

_IDLE_S = 1.0
Told = Callable[[str, int, BatchResult, float], None]


class Trip:
    """The trips of one stream: one query on its topics, and the steps that follow.

    `land` are bronze's queries. The trip query's own checkpoint is a temporary directory of the driver, for
    this start only. Bronze's checkpoints say where it begins.
    """

    def __init__(
        self,
        lake: Lake,
        land: Sequence[LayerQuery],
        steps: Callable[[], Sequence[Step]],
        settings: Settings,
        told: Told,
        *,
        is_live: bool,
    ) -> None:
        self._spark = lake.spark
        self._settings = settings
        self._told = told
        self._is_live = is_live
        self._landing = [Step(lake, query) for query in land]
        self._steps = steps
        self._directory = tempfile.mkdtemp(prefix="lakehouse-trip-")
        self.checkpoint = Path(self._directory).as_uri()
        self._reached: KafkaPosition = {}
        self._merged: dict[str, datetime] = {}  # by name of the step: when it last merged
        self._idle_since: float | None = None

    def close(self) -> None:
        """Remove the query's own checkpoint."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def records(self) -> DataFrame:
        """Return the stream's new records, from the position that bronze has reached."""
        self._reached = self._begin()
        self._idle_since = time.monotonic()
        topics, since = [_topic(step) for step in self._landing], checkpoints.kafka_place(self._reached)
        return read_new(self._spark, topics, self._settings, since=since)

    def process_batch(
        self, batch: DataFrame, transaction: Transaction, now: datetime, _count: int | None = None
    ) -> BatchResult:
        """Take a micro-batch of records through the layers; the transaction's version is the trip's own."""
        number, spark, self._idle_since = transaction.version, batch.sparkSession, None
        ends = checkpoints.kafka_position(self._spark, self.checkpoint, number)
        header = checkpoints.header_of(self._spark, self.checkpoint, number)
        # A persisted frame is planned when it is marked.
        execute_for(spark, few=are_few(rows=checkpoints.records_between(self._reached, ends)))
        with ExitStack() as held:
            landed = self._land(batch, ends, header, now, held)
            clean = self._judge(landed, header, now, held)
            self._fold(spark, clean, header, now)
            self.send(spark, header, now)
        self._idle_since = time.monotonic()
        return BatchResult(sum(one.count for one in landed.values()))

    def _begin(self) -> KafkaPosition:
        """Finish what bronze has planned but not noted as done, and return the position it has reached."""
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
            if not any(one.count for one in handed.values()):
                continue
            if self._may_wait(step, now):
                step.waits = True
                continue
            with self._trying(step):
                self._merge(spark, step, handed, header, now)
            # At once: what users wait for must not wait for the tables that come next.
            self.send(spark, header, now, of=step.query.name)

    @property
    def is_idle(self) -> bool:
        """Whether no trip is running, nor has one ended within the last second."""
        return self._idle_since is not None and time.monotonic() - self._idle_since > _IDLE_S

    def is_due(self, now: datetime) -> bool:
        """Tell whether rows have waited long enough for a table."""
        return any(step.waits and not self._may_wait(step, now) for step in self._of("gold"))

    def behind(self) -> list[Step]:
        """Return the steps that have rows to read which no trip brought."""
        steps = (*self._of("silver"), *self._of("gold"))
        return [step for step in steps if not step.waits and step.is_behind()]

    def has_changes(self) -> bool:
        """Tell whether a gold table has changes that are not sent yet."""
        return any(step.changes() is not None for step in self._of("export"))

    @property
    def is_waited_for(self) -> bool:
        """Whether rows are waiting for a table."""
        return any(step.waits for step in self._of("gold"))

    def merge_waiting(self, spark: SparkSession, header: Mapping[str, Any], now: datetime) -> None:
        """Merge and send all rows that wait for a table."""
        for step in self._of("gold"):
            if step.waits:
                with self._trying(step):
                    self._merge(spark, step, {}, header, now)
                self.send(spark, header, now, of=step.query.name)

    def _may_wait(self, step: Step, now: datetime) -> bool:
        last, pause = self._merged.get(step.query.name), timedelta(seconds=step.query.merge_every_s)
        return self._is_live and last is not None and now - last < pause

    def _merge(
        self,
        spark: SparkSession,
        step: Step,
        handed: Mapping[str, Passed],
        header: Mapping[str, Any],
        now: datetime,
    ) -> None:
        found: Mapping[str, Passed | Appended] = handed
        if step.query.is_held():
            step.leave()
            return
        if step.waits:
            found = step.plan_all(header)
        elif not step.plan(header, {name: one.transaction for name, one in handed.items()}):
            return
        whole = step.combined(spark, found)
        self._run(step, whole.rows, whole.count, now)
        step.waits, self._merged[step.query.name] = False, now

    def send(
        self, spark: SparkSession, header: Mapping[str, Any], now: datetime, of: str | None = None
    ) -> None:
        """Send the changes of the gold tables, or of one table and its side tables."""
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
