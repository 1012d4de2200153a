"""Export: gold's change feed to Kafka and Redis.

Each micro-batch of the change feed sends the newest state of every row. It goes to the table's topic, exactly
once for a read-committed consumer, and to Redis, guarded by the row's version: the Delta commit that wrote
it. Rows of one Kafka key are sent in the order of their versions, then of their keys. A deleted row is sent
as a null value. A row that is too large for the topic goes to Redis alone and is noted in ops.unsent_rows. If
Redis has lost its rows, it gets those of the time to live again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from datetime import datetime, timedelta
from functools import partial

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from lakehouse import tables
from lakehouse.errors import TableError
from lakehouse.layers import gold
from lakehouse.layers.query import Allow, BatchResult, LayerQuery, QueryMaker
from lakehouse.messages.key_names import escaped
from lakehouse.messages.layout import GROUP_SEPARATORS
from lakehouse.ops import unsent_rows
from lakehouse.progress import checkpoints, departures, snapshots
from lakehouse.settings import Settings
from lakehouse.sinks import Change, KafkaSink, RedisSink, Sent, TooLarge
from lakehouse.sinks.kafka import TRANSACTION_TIMEOUT_S
from lakehouse.sinks.slices import SLICE_ROWS, SLICED_FROM_ROWS, SlicedSink, send_in_slices
from lakehouse.sinks.stopwatch import Stopwatch
from lakehouse.spark.execution import are_few, execute_for, gathered, size_of
from lakehouse.spark.query_errors import are_files_gone
from lakehouse.stream import GoldTable, MergedTable, Stream
from lakehouse.tables import Lake, Transaction
from lakehouse.topics import create_topics

_LOOK_EVERY = timedelta(seconds=5)
_PARTS = 16  # of a large micro-batch


def queries(lake: Lake, stream: Stream, settings: Settings) -> list[QueryMaker]:
    """Return what makes the queries that fill the topics out and Redis."""
    return [
        QueryMaker(stream.name, f"export.{kept.name}", partial(_query, lake, kept, filled_by, settings))
        for filled_by in stream.gold
        for kept in (filled_by, *filled_by.sides)
    ]


def filter_newest(feed: DataFrame, table: MergedTable) -> DataFrame:
    """Keep the last change of every row in the feed: its state after it, or the delete.

    A change that only clears fold state, as maintenance does, does not count: a cleared row has no other
    changes.
    """
    if isinstance(table, GoldTable) and table.state is not None:
        cleared = (F.col("_change_type") == "update_postimage") & F.col(table.state.columns[0]).isNull()
        feed = feed.where(~cleared)
    newest = Window.partitionBy(*table.keys).orderBy(
        F.desc("_commit_version"), F.col("_change_type") == "delete"
    )
    return (
        feed.where(F.col("_change_type") != "update_preimage")
        .withColumn("_position", F.row_number().over(newest))
        .where(F.col("_position") == 1)
    )


def newest_since(spark: SparkSession, path: str, table: MergedTable, since: datetime) -> DataFrame:
    """Return the last change of every row that was changed at `since` (UTC) or later, as of now.

    Its rows have _change_type, _commit_version and _commit_timestamp.
    """
    return filter_newest(tables.read_changes_since(spark, path, since), table)


def filter_leaving(newest: DataFrame, table: MergedTable) -> DataFrame:
    """Keep the changes that the table exports."""
    deleted = F.col("_change_type") == "delete"
    return newest.where(F.when(deleted, table.export.tombstone_when()).otherwise(table.export.export_when()))


def to_changes(newest: DataFrame, table: MergedTable) -> DataFrame:
    """Return rows of the feed as the fields of a Change, in the order in which they are sent.

    Within one commit, deletes come first, so that the last message under a key is a row that stands.
    """
    return _fields(newest.orderBy(*_order(table)), table)


def _in_parts(newest: DataFrame, table: MergedTable) -> DataFrame:
    """Return the same in parts, of which the driver holds one at a time."""
    order = _order(table)
    return _fields(newest.repartitionByRange(_PARTS, *order).sortWithinPartitions(*order), table)


def _order(table: MergedTable) -> list[Column]:
    kept = F.col("_change_type") != "delete"
    return [F.col("_commit_version"), kept, *map(F.col, table.keys)]


def message_of(table: MergedTable) -> Column:
    """Return the message of a row of the table."""
    return F.to_json(table.export.value(), {"ignoreNullFields": "false"})


def group_of(table: MergedTable) -> Column:
    """Return the name of a row's group in Redis, for tables whose writer keeps keys of its own per group."""
    return escaped(table.export.redis.group(), GROUP_SEPARATORS)


def _fields(newest: DataFrame, table: MergedTable) -> DataFrame:
    export, view = table.export, table.export.redis
    deleted = F.col("_change_type") == "delete"
    return newest.select(
        export.key().alias("key"),
        (export.partition_by or export.key)().alias("partition_by"),
        F.when(~deleted, message_of(table)).alias("value"),
        F.col("_commit_version").alias("version"),
        view.row_key().alias("row_key"),
        group_of(table).alias("group"),
        view.member().alias("member"),
        view.order().alias("order"),
    )


class _Export:
    """Sends the changes of one gold table, and fills Redis again if it has lost rows.

    Lost rows are detected at the start of a micro-batch, and by the Ticker while no changes come.
    """

    def __init__(
        self, lake: Lake, table: MergedTable, path: str, kafka: KafkaSink | None, settings: Settings
    ) -> None:
        self._lake = lake
        self._table = table
        self._path = path
        self._kafka = kafka
        self._redis = RedisSink(
            settings.redis_url.get_secret_value(),
            table.name,
            settings.redis_ttl_s,
            generation=tables.created_ms(lake.spark, path),
            rows_move=table.export.redis.rows_move,
        )
        self._servers = settings.kafka_bootstrap_servers
        self._kept = timedelta(seconds=settings.redis_ttl_s)
        self._looked: datetime | None = None

    def process_batch(
        self, feed: DataFrame, transaction: Transaction, now: datetime, _count: int | None = None
    ) -> BatchResult:
        """Send a micro-batch of the change feed; a second call with the same transaction sends nothing."""
        is_filled, self._looked = self._redis.is_filled(), now
        few = are_few(size_bytes=size_of(feed))
        execute_for(feed.sparkSession, few=few)
        leaving = filter_leaving(filter_newest(gathered(feed, few=few), self._table), self._table)
        # A stream begins with all rows of the table, so its first micro-batch fills Redis itself.
        begins = not is_filled and transaction.version == 0
        with self._redis.filling() if begins else nullcontext():
            done = self._send(leaving, transaction, now)
        if self._kafka is not None:
            departures.note(feed.sparkSession, self._path, self._kafka.topic, transaction)
        if not is_filled and not begins:
            again = self._fill(feed.sparkSession, now)
        else:
            again = self._put_next(feed.sparkSession, done.put.open, now)
        sent = {} if self._kafka is None else {self._kafka.topic: done.sent}
        unsent = {"unsent": len(done.refused)} if done.refused else {}
        seconds = {"redis": done.redis_s} | ({} if self._kafka is None else {"kafka": done.kafka_s})
        return BatchResult(done.rows, {**sent, "redis": done.put.rows + again, **unsent}, seconds)

    def is_due(self, now: datetime) -> bool:
        """Tell whether Redis has lost rows, asking at most every five seconds; false while it is away."""
        if self._looked is not None and now - self._looked < _LOOK_EVERY:
            return False
        self._looked = now
        return not self._redis.seems_filled()

    def tick(self, now: datetime) -> BatchResult:
        """Send every row again whose last change is younger than the time to live."""
        rows = self._fill(self._lake.spark, now)
        return BatchResult(rows, {"redis": rows})

    def close(self) -> None:
        """Close the connections."""
        if self._kafka is not None:
            self._kafka.close()
        self._redis.close()

    def _send(self, leaving: DataFrame, transaction: Transaction, now: datetime) -> Sent:
        some = to_changes(leaving, self._table).limit(SLICED_FROM_ROWS).collect()
        if len(some) == SLICED_FROM_ROWS:
            del some
            return self._send_slices(leaving, transaction, now)
        changes, sending, putting = list(_changes(some)), Stopwatch(), Stopwatch()
        sent, refused = 0, tuple[TooLarge, ...]()
        if self._kafka is not None:
            weighed = self._kafka.weigh(changes)
            # First, so that a row is noted even if the topic takes it when the micro-batch is retried.
            self._note(weighed.refused, self._kafka.topic, now)
            with sending.running():
                sent = self._kafka.write(weighed.fitting, transaction)
            refused = weighed.refused
        with putting.running():
            put = self._redis.write(changes)
        return Sent(len(changes), sent, put, refused, sending.seconds, putting.seconds)

    def _send_slices(self, leaving: DataFrame, transaction: Transaction, now: datetime) -> Sent:
        rows = _changes(_in_parts(leaving, self._table).toLocalIterator())
        if self._kafka is None:
            return send_in_slices(rows, None, self._redis, transaction, slice_rows=SLICE_ROWS)
        sliced = SlicedSink(
            self._servers,
            self._kafka.topic,
            self._table.name,
            self._kafka.take_over(),
            slice_rows=SLICE_ROWS,
            transaction_timeout_s=TRANSACTION_TIMEOUT_S,
        )
        with closing(sliced):
            done = send_in_slices(rows, sliced, self._redis, transaction, slice_rows=SLICE_ROWS)
        self._note(done.refused, self._kafka.topic, now)
        self._kafka.write([], transaction)
        return done

    def _note(self, refused: Sequence[TooLarge], topic: str, now: datetime) -> None:
        if refused:
            unsent_rows.note(self._lake, self._table.name, topic, refused, now=now)

    def _fill(self, spark: SparkSession, now: datetime) -> int:
        """Send every row again that Redis should have, and return how many were missing."""
        with self._redis.filling():
            return self._put_again(to_changes(self._leaving_since(spark, now), self._table))

    def _put_next(self, spark: SparkSession, open_: Collection[tuple[str, str]], now: datetime) -> int:
        """Send rows again for members whose latest row was deleted: one that stands becomes the latest."""
        if not open_:
            return 0
        changes = to_changes(self._leaving_since(spark, now), self._table).where(F.col("value").isNotNull())
        members = spark.createDataFrame(sorted(open_), "`group` string, member string")
        theirs = changes.join(F.broadcast(members), ["group", "member"], "left_semi")
        return self._put_again(theirs.orderBy("version"))

    def _leaving_since(self, spark: SparkSession, now: datetime) -> DataFrame:
        """Return the rows that Redis should have: the last changes within the time to live."""
        newest = newest_since(spark, self._path, self._table, now - self._kept)
        return filter_leaving(newest, self._table)

    def _put_again(self, changes: DataFrame) -> int:
        try:
            return self._redis.write(_changes(changes.toLocalIterator()), are_all=True).rows
        except (PySparkException, Py4JError) as error:
            if not are_files_gone(error):
                raise
            raise TableError(
                f"Redis has lost rows of gold.{self._table.name}; they are sent again from changes of the "
                f"last {self._kept}, but VACUUM has removed files of that time. Set "
                "LAKEHOUSE_REDIS_TTL_S to less than what VACUUM keeps"
            ) from error


def _changes(rows: Iterable[Row]) -> Iterator[Change]:
    return (Change(**row.asDict()) for row in rows)


def _query(lake: Lake, table: MergedTable, filled_by: GoldTable, settings: Settings) -> LayerQuery:
    path = lake.ensure_source(gold.spec(table, settings))
    name = f"export.{table.name}"
    kafka = None
    if table.export.topic is not None:
        topic = settings.topic(table.export.topic)
        create_topics(settings.kafka_bootstrap_servers, {topic: settings.topic_partitions})
        noted = departures.noted(lake.spark, path, topic)
        kafka = KafkaSink(
            settings.kafka_bootstrap_servers,
            topic,
            table.name,
            noted=noted,
            transaction_timeout_s=TRANSACTION_TIMEOUT_S,
        )

    def preflight(allow: Collection[Allow]) -> None:
        if kafka is not None:
            kafka.refuse_other_progress(
                snapshots.application(lake, name),
                checkpoints.last_planned(lake.spark, lake.checkpoint(name)),
                allow_resend=Allow.RESEND in allow,
            )

    export = _Export(lake, table, path, kafka, settings)
    return LayerQuery(
        "export",
        name,
        lambda: tables.read_change_stream(lake.spark, path, max_bytes=settings.max_bytes_per_batch),
        export.process_batch,
        target=None,
        reads=(f"gold.{filled_by.name}",),
        tables={f"gold.{table.name}": path},
        preflight=preflight,
        close=export.close,
        ticker=export,
    )
