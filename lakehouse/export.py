"""Export: gold's change feed to Kafka and Redis.

Of each micro-batch of the change feed the newest state of every row leaves: to the table's topic, exactly
once for a read-committed consumer, and to Redis, guarded by the row's version, which is the version of the
Delta commit that wrote it. Rows of one Kafka key leave in the order of their versions, then of their keys.
A deleted row leaves as a null value.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from lakehouse import gold, tables
from lakehouse.layer import BatchResult, LayerQuery
from lakehouse.settings import Settings
from lakehouse.sinks import Change, KafkaSink, RedisSink
from lakehouse.stream import GoldTable, Stream
from lakehouse.tables import Transaction
from lakehouse.topics import create_topics


def queries(spark: SparkSession, stream: Stream, settings: Settings) -> list[LayerQuery]:
    """Make the topics out where they are missing and return the queries that fill them and Redis."""
    return [_query(spark, table, settings) for table in stream.gold]


def filter_newest(feed: DataFrame, table: GoldTable) -> DataFrame:
    """Keep the last change of every row in the feed: its state after it, or the delete."""
    newest = Window.partitionBy(*table.keys).orderBy(
        F.desc("_commit_version"), F.col("_change_type") == "delete"
    )
    return (
        feed.where(F.col("_change_type") != "update_preimage")
        .withColumn("_position", F.row_number().over(newest))
        .where(F.col("_position") == 1)
    )


def to_changes(newest: DataFrame, table: GoldTable) -> DataFrame:
    """Return rows of the feed as the fields of a Change, in the order in which they leave."""
    view = table.export.redis
    deleted = F.col("_change_type") == "delete"
    return newest.orderBy("_commit_version", *table.keys).select(
        table.export.key().alias("key"),
        F.when(~deleted, F.to_json(table.export.value(), {"ignoreNullFields": "false"})).alias("value"),
        F.col("_commit_version").alias("version"),
        view.row_key().alias("row_key"),
        view.group().alias("group"),
        view.member().alias("member"),
        view.order().alias("order"),
    )


def _query(spark: SparkSession, table: GoldTable, settings: Settings) -> LayerQuery:
    path = tables.ensure(spark, settings.lake, gold.spec(table, settings))
    topic = settings.topic(table.export.topic)
    create_topics(settings.kafka_bootstrap_servers, {topic: settings.topic_partitions})
    kafka = KafkaSink(settings.kafka_bootstrap_servers, topic, table.name)
    redis = RedisSink(settings.redis_url.get_secret_value(), table.name, settings.redis_ttl_s)

    def process(feed: DataFrame, transaction: Transaction) -> BatchResult:
        changes = [Change(**row.asDict()) for row in to_changes(filter_newest(feed, table), table).collect()]
        sent = kafka.write(changes, transaction)
        put = redis.write(changes)
        return BatchResult(len(changes), {topic: sent, "redis": put})

    def close() -> None:
        kafka.close()
        redis.close()

    feed = tables.read_change_stream(spark, path, max_bytes=settings.max_bytes_per_batch)
    return LayerQuery(
        "export", f"export.{table.name}", feed, process, fills=None, reads=f"gold.{table.name}", close=close
    )
