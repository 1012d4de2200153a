"""Export: gold's change feed to Kafka and Redis.

Of each micro-batch of the change feed the newest state of every row leaves: to the table's topic, exactly
once for a read-committed consumer, and to Redis, guarded by the row's version, which is the version of the
Delta commit that wrote it. Rows of one Kafka key leave in the order of their versions, then of their keys.
A deleted row leaves as a null value.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from lakehouse import gold, tables
from lakehouse.layer import BatchResult, LayerQuery
from lakehouse.settings import Settings
from lakehouse.sinks import Change, KafkaSink, RedisSink
from lakehouse.stream import GoldTable, KeptTable, Stream
from lakehouse.tables import Transaction
from lakehouse.topics import create_topics


def queries(spark: SparkSession, stream: Stream, settings: Settings) -> list[LayerQuery]:
    """Make the topics out where they are missing and return the queries that fill them and Redis."""
    return [
        _query(spark, kept, filled_by, settings)
        for filled_by in stream.gold
        for kept in (filled_by, *filled_by.sides)
    ]


def filter_newest(feed: DataFrame, table: KeptTable) -> DataFrame:
    """Keep the last change of every row in the feed: its state after it, or the delete.

    That maintenance has cleared what only a fold needs is no change; a cleared row has no other ones.
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


def filter_leaving(newest: DataFrame, table: KeptTable) -> DataFrame:
    """Keep the changes that the table lets leave."""
    deleted = F.col("_change_type") == "delete"
    return newest.where(F.when(deleted, table.export.withdraws()).otherwise(table.export.leaves()))


def to_changes(newest: DataFrame, table: KeptTable) -> DataFrame:
    """Return rows of the feed as the fields of a Change, in the order in which they leave.

    Of one commit the deletes leave first, so that the last word under a key is a row that stands.
    """
    export, view = table.export, table.export.redis
    deleted = F.col("_change_type") == "delete"
    return newest.orderBy("_commit_version", ~deleted, *table.keys).select(
        export.key().alias("key"),
        (export.partition_by or export.key)().alias("partition_by"),
        F.when(~deleted, F.to_json(export.value(), {"ignoreNullFields": "false"})).alias("value"),
        F.col("_commit_version").alias("version"),
        view.row_key().alias("row_key"),
        view.group().alias("group"),
        view.member().alias("member"),
        view.order().alias("order"),
    )


def _query(spark: SparkSession, table: KeptTable, filled_by: GoldTable, settings: Settings) -> LayerQuery:
    path = tables.ensure(spark, settings.lake, gold.spec(table, settings))
    topic = None if table.export.topic is None else settings.topic(table.export.topic)
    kafka = None
    if topic is not None:
        create_topics(settings.kafka_bootstrap_servers, {topic: settings.topic_partitions})
        kafka = KafkaSink(settings.kafka_bootstrap_servers, topic, table.name)
    redis = RedisSink(settings.redis_url.get_secret_value(), table.name, settings.redis_ttl_s)

    def process(feed: DataFrame, transaction: Transaction, _now: datetime) -> BatchResult:
        leaving = filter_leaving(filter_newest(feed, table), table)
        changes = [Change(**row.asDict()) for row in to_changes(leaving, table).collect()]
        sent = {} if kafka is None or topic is None else {topic: kafka.write(changes, transaction)}
        return BatchResult(len(changes), {**sent, "redis": redis.write(changes)})

    def close() -> None:
        if kafka is not None:
            kafka.close()
        redis.close()

    return LayerQuery(
        "export",
        f"export.{table.name}",
        tables.read_change_stream(spark, path, max_bytes=settings.max_bytes_per_batch),
        process,
        fills=None,
        reads=(f"gold.{filled_by.name}",),
        close=close,
    )
