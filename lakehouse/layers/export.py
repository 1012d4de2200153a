"""Export: gold's change feed to Kafka and Redis.

Each micro-batch of the change feed sends the newest state of every row. It goes to the table's topic, exactly
once for a read-committed consumer, and to Redis, guarded by the row's version: the Delta commit that wrote
it. Rows of one Kafka key are sent in the order of their versions, then of their keys. A deleted row is sent
as a null value. A row that is too large for the topic goes to Redis alone and is noted in ops.unsent_rows. If
Redis has lost its rows, or was away or full, it gets those of the time to live again; Kafka does not wait for
that. What it did not get is noted in the lake, and told by the work that the clock makes due.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from datetime import datetime, timedelta
from functools import partial

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse import tables
from lakehouse.errors import TableError
from lakehouse.kafka.topics import create_topics
from lakehouse.layers import gold
from lakehouse.layers.change_reading import ChangeReading
from lakehouse.layers.export_position import Noted
from lakehouse.layers.outgoing import filter_leaving, filter_newest, group_of, newest_since, outgoing, within
from lakehouse.layers.step import Allow, Batch, BatchResult, Passed, Permitted, Step, StepMaker
from lakehouse.ops import unsent_rows
from lakehouse.progress import sent
from lakehouse.progress.parts import Part
from lakehouse.progress.reading import InMemory
from lakehouse.settings import Settings
from lakehouse.sinks import (
    Change,
    KafkaSink,
    Put,
    RedisSink,
    RedisTroubleError,
    Sent,
    Span,
    TooLarge,
)
from lakehouse.sinks.kafka import TRANSACTION_TIMEOUT_S
from lakehouse.sinks.slices import (
    SLICE_ROWS,
    SLICED_FROM_BYTES,
    SLICED_FROM_ROWS,
    SlicedSink,
    Stopwatch,
    last_sliced,
    send_in_slices,
)
from lakehouse.spark.execution import are_few, execute_for, gathered, size_of
from lakehouse.spark.query_errors import are_files_gone
from lakehouse.stream import GoldTable, MergedTable, Stream
from lakehouse.tables import Lake, Position, Progress

_LOOK_EVERY_S = 5.0
_EVICTED_EVERY_S = 600.0  # a Redis that is too small loses rows as fast as it gets them


def steps(lake: Lake, stream: Stream, settings: Settings, permitted: Permitted) -> list[StepMaker]:
    """Return what makes the steps that fill the topics out and Redis."""
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
    """Sends the changes of one gold table, and fills Redis again, by the clock, if it lacks rows."""

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
        self._source = f"gold.{made_by.name}"  # whose micro-batches fill this table, too
        self._path = lake.ensure_source(gold.spec(table))
        self._access = settings.kafka
        self._notice = permitted.notice
        self._max_bytes = settings.bytes_per_batch
        self._kafka = _kafka_sink(table, settings)
        self._allow = permitted.allow
        self._part: Part | None = None
        self._lost: int | None = None  # the last version of which changes were removed before they were sent
        self._reading = ChangeReading(lake.spark, self.name, self._path)
        begun = self._noted().begun(permitted)
        self._is_redis_behind = begun.is_redis_behind
        self._reading.begin(begun.progress, begun.ahead)
        self._redis = RedisSink(
            settings.redis_url.get_secret_value(),
            table.name,
            settings.redis_ttl_s,
            generation=tables.generation_ms(lake.spark, self._path),
            rows_move=table.export.redis.rows_move,
        )
        self._kept = timedelta(seconds=settings.redis_ttl_s)
        self._looked: float | None = None  # by a monotonic clock, as is the next
        self._filled_at: float | None = None
        self._span: Span | None = None

    def plan(self, handed: Mapping[str, InMemory]) -> Batch | None:  # noqa: ARG002 - it reads a change feed
        """Choose the next changes; null if none waits."""
        part, self._lost = self._reading.next(max_bytes=self.limit or self._max_bytes), None
        if part is None:
            return None
        self._part = part
        try:
            feed = self._reading.feed(part)
        except (PySparkException, Py4JError) as error:
            feed, part = self._rest_of(part, error)
        self._span = Span(self._reading.sent_as, part.first, part.end)
        return Batch(
            feed,
            number=self._reading.number_of(part),
            reads=f"gold.{self._table.name} {part}",
            size=0 if self._reading.is_resuming else part.divisible_bytes,
        )

    @contextmanager
    def write(self, batch: Batch, now: datetime) -> Iterator[Passed]:
        """Send the changes that were chosen last; those that Kafka has go to Redis alone."""
        if self._span is None or self._part is None:
            raise TypeError(f"{self.name} has chosen no changes")
        try:
            result = self._write(batch.rows, self._span, now)
        except (PySparkException, Py4JError) as error:
            feed, part = self._rest_of(self._part, error)
            self._span = Span(self._reading.sent_as, part.first, part.end)
            result = self._write(feed, self._span, now)
        yield Passed(result)

    def _rest_of(self, part: Part, error: Exception) -> tuple[DataFrame, Part]:
        """Return what is left of changes that VACUUM has removed, and which part it stands for.

        Raises TableError unless sending rows again is allowed, and any other error as it is.
        """
        rest = self._reading.rest(part) if are_files_gone(error) and self._lost is None else None
        if rest is None:
            raise error
        if Allow.RESEND not in self._allow:
            raise TableError(
                f"{self.name} has not sent changes of gold.{self._table.name} up to version {rest.lost}, and "
                f"VACUUM has removed them. Pass --allow {Allow.RESEND} once: then the newest state of every "
                "row is sent that may have changed since; rows deleted by then are not told of"
            ) from error
        self._lost = rest.lost
        return rest.feed, rest.part

    def _write(self, feed: DataFrame, span: Span, now: datetime) -> BatchResult:
        spark = feed.sparkSession
        few = are_few(size_bytes=size_of(feed))
        execute_for(spark, few=few)
        leaving = filter_leaving(filter_newest(gathered(feed, few=few), self._table), self._table)
        if self._lost is not None and self._kafka is not None:
            unsent_rows.note_removed(self._lake, self._table.name, self._kafka.topic, self._lost, now=now)
        done = self._send(leaving, span, now, few=few)
        again = self._put_next(spark, done.put.open, now)
        self._note_progress(span.after)
        self._reading.advance(span.after)
        written = {} if self._kafka is None else {self._kafka.topic: done.sent}
        unsent = {"unsent": len(done.refused)} if done.refused else {}
        seconds = {"redis": done.redis_s} | ({} if self._kafka is None else {"kafka": done.kafka_s})
        return BatchResult(done.rows, {**written, "redis": done.put.rows + again, **unsent}, seconds)

    def end_here(self, filled: Collection[str]) -> None:
        """Send no change that is not there now, unless the table is being filled."""
        if self._source not in filled:
            self._reading.end_here()

    def is_due(self, now: datetime) -> bool:  # noqa: ARG002 - a look may follow another one by any clock
        """Tell whether Redis lacks rows, asking at most every five seconds; false while it is away."""
        if self._is_redis_behind:
            return True
        if self._looked is not None and time.monotonic() - self._looked < _LOOK_EVERY_S:
            return False
        self._looked = time.monotonic()
        return not self._redis.seems_filled() and not self._waits_after_evictions()

    def tick(self, now: datetime) -> BatchResult:
        """Send every row again whose last change is younger than the time to live.

        Raises RedisTroubleError if Redis does not take them.
        """
        self._redis.require()
        was_behind, rows = self._is_redis_behind, self._fill(self._lake.spark, now)
        if was_behind and self._reading.position is not None:
            self._note_progress(self._reading.position)
        return BatchResult(rows, {"redis": rows})

    def close(self) -> None:
        """Close the connections."""
        if self._kafka is not None:
            self._kafka.close()
        self._redis.close()

    def _noted(self) -> Noted:
        """Ask Kafka how far the table has been sent."""
        spark, path, table, kafka = self._lake.spark, self._path, self._table.name, self._kafka
        if kafka is None:
            return Noted(spark, path, table, None, None, None)
        sliced = last_sliced(self._access, table, kafka.topic)
        return Noted(spark, path, table, kafka.topic, kafka.sent(), sliced)

    def _send(self, leaving: DataFrame, span: Span, now: datetime, *, few: bool) -> Sent:
        most = {"rows": SLICED_FROM_ROWS - 1, "size_bytes": SLICED_FROM_BYTES}
        changes = within(leaving, self._table, **most) if few else None
        if changes is None:
            with outgoing(leaving, self._table) as rows:
                if rows.count > most["rows"] or rows.size_bytes > most["size_bytes"]:
                    return self._send_slices(rows.in_parts(), span, now)
                changes = rows.all_at_once()
        sending, putting = Stopwatch(), Stopwatch()
        count, refused = 0, tuple[TooLarge, ...]()
        if self._kafka is not None:
            weighed = self._kafka.weigh(changes)
            # First, so that a row is noted even if the topic takes it when the micro-batch is retried.
            self._note(weighed.refused, self._kafka.topic, now)
            with sending.running():
                count = self._kafka.write(weighed.fitting, span)
            refused = weighed.refused
        with putting.running():
            put = self._put(changes, span)
        return Sent(len(changes), count, put, refused, sending.seconds, putting.seconds)

    def _send_slices(self, rows: Iterator[Change], span: Span, now: datetime) -> Sent:
        put = partial(self._put, span=span)
        if self._kafka is None:
            return send_in_slices(rows, None, put, span, slice_rows=SLICE_ROWS)
        sliced = SlicedSink(
            self._access,
            self._kafka.topic,
            self._table.name,
            self._kafka.take_over(),
            slice_rows=SLICE_ROWS,
            transaction_timeout_s=TRANSACTION_TIMEOUT_S,
            begins_anew=self._lost is not None,
        )
        with closing(sliced):
            done = send_in_slices(rows, sliced, put, span, slice_rows=SLICE_ROWS)
        self._note(done.refused, self._kafka.topic, now)
        self._kafka.write([], span)
        return done

    def _put(self, changes: Iterable[Change], span: Span) -> Put:
        """Put rows in Redis; if it does not take them, nobody waits: it is filled once it does."""
        if self._is_redis_behind:
            return Put()
        try:
            is_filled = self._redis.is_filled()
            # The first micro-batch has all rows of the table, unless they are too many: that fills Redis.
            begins = not is_filled and self._reading.position is None and not span.after.is_beginning
            with self._redis.filling() if begins else nullcontext():
                put = self._redis.write(changes)
        except RedisTroubleError:
            self._is_redis_behind = True
            return Put()
        self._looked = time.monotonic() if is_filled or begins else None
        return put

    def _note_progress(self, position: Position) -> None:
        topic = None if self._kafka is None else self._kafka.topic
        progress = Progress(self._reading.sent_as, position)
        sent.note(self._lake.spark, self._path, topic, progress, is_redis_behind=self._is_redis_behind)

    def _note(self, refused: Sequence[TooLarge], topic: str, now: datetime) -> None:
        if refused:
            unsent_rows.note(self._lake, self._table.name, topic, refused, now=now)

    def _waits_after_evictions(self) -> bool:
        """Tell whether Redis has evicted rows, and was filled so lately that it would do so again."""
        if self._filled_at is None or time.monotonic() - self._filled_at >= _EVICTED_EVERY_S:
            return False
        try:
            return self._redis.evictions() is not None
        except RedisTroubleError:
            return True

    def _fill(self, spark: SparkSession, now: datetime) -> int:
        """Send every row again that Redis should have, and return how many were missing."""
        evicted = self._redis.evictions()
        if evicted is not None:
            self._notice(
                f"{self.name}: {evicted}; rows of the last {self._kept} are put again, at most every "
                f"{_EVICTED_EVERY_S / 60:g} minutes. Give Redis more memory, or shorten LAKEHOUSE_REDIS_TTL_S"
            )
        with self._redis.filling():
            rows = self._put_again(spark, now)
        self._is_redis_behind, self._filled_at = False, time.monotonic()
        return rows

    def _put_next(self, spark: SparkSession, open_: Collection[tuple[str, str]], now: datetime) -> int:
        """Send rows again for members whose latest row was deleted: one that stands becomes the latest."""
        if not open_:
            return 0
        places = {"group": group_of(self._table), "member": self._table.export.redis.member()}
        members = spark.createDataFrame(sorted(open_), "_group string, _member string")
        theirs = [place == F.col(f"_{name}") for name, place in places.items()]

        def standing(leaving: DataFrame) -> DataFrame:
            kept = leaving.where(F.col("_change_type") != "delete")
            return kept.join(F.broadcast(members), theirs, "left_semi")

        try:
            return self._put_again(spark, now, standing)
        except RedisTroubleError:
            self._is_redis_behind = True
            return 0

    def _put_again(
        self, spark: SparkSession, now: datetime, chosen: Callable[[DataFrame], DataFrame] = lambda rows: rows
    ) -> int:
        """Put the rows again that Redis should have, those last changed within the time to live.

        If VACUUM has removed older changes, the rest is put, and what is left out is told.
        """
        since = now - self._kept
        try:
            return self._put_since(spark, since, chosen)
        except (PySparkException, Py4JError) as error:
            if not are_files_gone(error):
                raise
        since = tables.readable_since(spark, self._path, since)
        self._notice(
            f"{self.name}: Redis lacks rows of gold.{self._table.name}; those last changed before "
            f"{since:%F %T} UTC come back when they change, because VACUUM has removed their changes. Set "
            "LAKEHOUSE_REDIS_TTL_S to less than what VACUUM keeps"
        )
        return self._put_since(spark, since, chosen)

    def _put_since(
        self, spark: SparkSession, since: datetime, chosen: Callable[[DataFrame], DataFrame]
    ) -> int:
        newest = newest_since(spark, self._path, self._table, since)
        with outgoing(chosen(filter_leaving(newest, self._table)), self._table) as rows:
            # A member's latest row first: under a new generation, an older one would stand for it meanwhile.
            return self._redis.write(rows.latest_first(), are_all=True).rows


def _kafka_sink(table: MergedTable, settings: Settings) -> KafkaSink | None:
    """Return the sink of a table's topic, which is created if it is missing; null for a table without one."""
    if table.export.topic is None:
        return None
    topic = settings.topic(table.export.topic)
    create_topics(settings.kafka, {topic: settings.topic_partitions})
    return KafkaSink(settings.kafka, topic, table.name, transaction_timeout_s=TRANSACTION_TIMEOUT_S)
