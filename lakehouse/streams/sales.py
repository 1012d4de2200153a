"""sales: running totals per product, and notifications when they reach a threshold.

    sales-events-v1 ── silver.sales_events ─┬─ gold.product_sales ─────── Redis
                                            └─ gold.sales_notifications ─ notifications-events-v1, Redis

A record is {"product", "value", "timestamp"?}. A null value under the key of a product is a tombstone: the
product starts again from zero. Values are exact decimals and may be negative (a return).

A product's records are ordered by offset. They belong into one partition, which their key ensures. If they
are in several, each partition has a running total of its own, with its own tombstones and crossings;
product_sales adds the totals up.
"""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import Literal

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, MapType, StructType

from lakehouse.messages.layout import Constant, Exact, Message, Millis, Plain, joined_key, key
from lakehouse.stream import (
    Comparison,
    Contract,
    EventTimeProgress,
    Export,
    Field,
    FieldType,
    GoldTable,
    RedisView,
    SideTable,
    Source,
    Stream,
)
from lakehouse.transforms import decimals

CONTRACT = Contract(
    fields=(
        Field("product", "product", FieldType.STRING),
        Field("value", "value", FieldType.DECIMAL),
    ),
    tombstone="product",
)
SOURCE = Source("sales-events-v1", "sales_events", CONTRACT)

Notify = Literal["crossing", "every_update"]
KEYS = ("product",)
NOTIFICATION_KEYS = ("product", "partition", "offset")

_STATE = (
    StructType()
    .add("total", decimals.TYPE)
    .add("count", "long")
    .add("last_event_time", "timestamp")
    .add("crossings", "long")
    .add("last_offset", "long")
)

SALES_SCHEMA = (
    StructType()
    .add("product", "string")
    .add("total", decimals.TYPE)
    .add("count", "long")
    .add("last_event_time", "timestamp")
    .add("partitions", MapType(IntegerType(), _STATE))
    .add("made_anew", "boolean")
)
"""One row per product. total, count: of the sales since its last tombstone; total is null if decimal(38,9)
does not hold it. last_event_time, UTC: of these sales, null for none. partitions: the same by Kafka
partition, with the crossings so far and the last offset merged. made_anew: the row was recomputed from
silver, because records came out of order or the total came back into range."""

NOTIFICATIONS_SCHEMA = (
    StructType()
    .add("product", "string")
    .add("value", decimals.TYPE)
    .add("crossing", "long")
    .add("event_time", "timestamp")
    .add("partition", "integer")
    .add("offset", "long")
)
"""One row per sale that causes a notification; key: product, partition, offset, those of the record.
value: the total after it; crossing: how many times the total had reached the threshold by then, from 1."""


def make(threshold: Decimal, notify: Notify) -> Stream:
    """Return the stream: each time a total reaches the threshold there is a notification.

    Or with every sale at or above it, if `notify` is "every_update".
    """
    pinned = {"sales_threshold": f"{threshold.normalize():f}", "sales_notify": notify}
    notified = SideTable(
        name="sales_notifications",
        keys=NOTIFICATION_KEYS,
        schema=NOTIFICATIONS_SCHEMA,
        time_columns=("event_time", "event_time"),
        rows=notifications,
        pinned_settings=pinned,
        export=Export(
            topic="notifications-events-v1",
            key=key(Plain("product")),
            identity=None,
            value=Message({"product": Plain("product"), "value": Exact("value")}),
            redis=RedisView(
                row_key=joined_key("product", Plain("partition"), Plain("offset")),
                group=key("products"),
                member=key(Plain("product")),
                order=Plain("offset"),
            ),
        ),
    )
    sold = GoldTable(
        name="product_sales",
        reads=(SOURCE.table,),
        keys=KEYS,
        schema=SALES_SCHEMA,
        preaggregate=events,
        counted=lambda: F.count(F.lit(1)),
        fold=partial(fold_sales, threshold=threshold, notify=notify),
        needs_recompute=not_to_be_added_to,
        total="total",
        sides=(notified,),
        comparison=Comparison(ignored=("made_anew",)),
        pinned_settings=pinned,
        export=Export(
            topic=None,
            key=key(Plain("product")),
            value=Message(
                {
                    "product": Plain("product"),
                    "total": Exact("total"),
                    "count": Plain("count"),
                    "lastEventTime": Millis("last_event_time"),
                }
            ),
            redis=RedisView(
                row_key=key(Plain("product")),
                group=key("products"),
                member=key(Plain("product")),
                order=Constant(0),
            ),
        ),
    )
    return Stream("sales", (SOURCE,), (sold,))


def events(clean: DataFrame) -> DataFrame:
    """Return the rows unchanged: crossings only show in the order of single records."""
    columns = "product", "value", "event_time", "partition", "offset"
    return clean.select(*columns, F.lit(False).alias("recomputed"))


def not_to_be_added_to(partials: DataFrame, current: DataFrame) -> DataFrame:
    """Return the products whose new records cannot be added to their rows.

    A record follows one with a greater offset, or a total is unknown because it does not fit.
    """
    first = partials.groupBy("product", "partition").agg(F.min("offset").alias("first"))
    known = current.select("product", "partitions").join(first, "product")
    last = F.try_element_at("partitions", F.col("partition")).getField("last_offset")
    is_beyond = F.exists(F.map_values("partitions"), lambda state: state.getField("total").isNull())
    return known.where((F.col("first") <= last) | is_beyond).select("product")


def fold_sales(
    partials: DataFrame,
    current: DataFrame,
    _progress: EventTimeProgress,
    *,
    threshold: Decimal,
    notify: Notify,
) -> DataFrame:
    """Return the products that have new records, each with the list of notifications that these cause.

    A partition's state enters the sequence as one more record before the new ones.
    """
    touched = current.join(partials.select("product").distinct(), "product", "left_semi")
    states = touched.select("product", "made_anew", F.explode("partitions").alias("partition", "state"))
    standing = states.select(
        "product",
        "partition",
        F.col("state.last_offset").alias("offset"),
        F.col("state.total").alias("value"),
        F.col("state.last_event_time").alias("event_time"),
        F.col("state.count").alias("sales"),
        F.col("state.crossings").alias("crossings"),
        F.lit(False).alias("is_new"),
        "made_anew",
    )
    is_sale = F.col("value").isNotNull()
    coming = partials.select(
        "product",
        "partition",
        "offset",
        F.coalesce("value", F.lit(0).cast(decimals.TYPE)).alias("value"),
        F.when(is_sale, F.col("event_time")).alias("event_time"),
        is_sale.cast("long").alias("sales"),
        F.lit(0).cast("long").alias("crossings"),
        F.lit(True).alias("is_new"),
        F.col("recomputed").alias("made_anew"),
    )
    sequence = _with_crossings(_with_totals(standing.unionByName(coming)), threshold, notify)
    return _products(_partitions(sequence)).select(*SALES_SCHEMA.names, "notifications")


def notifications(folded: DataFrame) -> DataFrame:
    """Return the notifications from the lists of folded products."""
    return folded.select("product", F.inline("notifications")).select(*NOTIFICATIONS_SCHEMA.names)


def _with_totals(sequence: DataFrame) -> DataFrame:
    """Add `total`, `count` and `last_event_time` since the last tombstone, as of each record."""
    in_order = Window.partitionBy("product", "partition").orderBy("offset")
    is_tombstone = (F.col("sales") == 0) & F.col("is_new")
    since = Window.partitionBy("product", "partition", "epoch").orderBy("offset")
    return sequence.withColumn("epoch", F.sum(is_tombstone.cast("long")).over(in_order)).withColumns(
        {
            "total": decimals.total("value", since),
            "count": F.sum("sales").over(since),
            "last_event_time": F.max("event_time").over(since),
        }
    )


def _with_crossings(sequence: DataFrame, threshold: Decimal, notify: Notify) -> DataFrame:
    """Add `crossing`, the number of crossings so far, and `notified`: the record causes a notification.

    An unknown total, one that does not fit, neither reaches the threshold nor is below it.
    """
    in_order = Window.partitionBy("product", "partition").orderBy("offset")
    limit = F.lit(threshold)
    is_sale = F.col("is_new") & (F.col("sales") == 1)
    # Before the first record the total is zero.
    known = F.coalesce(F.lag("total").over(in_order) < limit, F.lit(False))
    before = F.when(F.row_number().over(in_order) == 1, F.lit(0) < limit).otherwise(known)
    above = is_sale & F.coalesce(F.col("total") >= limit, F.lit(False))
    crosses = above & before
    number = F.sum(F.col("crossings") + F.col("crosses").cast("long")).over(in_order)
    numbered = sequence.withColumn("crosses", crosses).withColumn("crossing", number)
    return numbered.withColumn("notified", crosses if notify == "crossing" else above)


def _partitions(sequence: DataFrame) -> DataFrame:
    """Return the last state of each (product, partition) and its notifications."""
    state = F.struct(
        F.col("total"),
        F.col("count"),
        F.col("last_event_time"),
        F.col("crossing").alias("crossings"),
        F.col("offset").alias("last_offset"),
    )
    notification = F.struct(
        F.col("total").alias("value"),
        F.col("crossing"),
        F.col("event_time"),
        F.col("partition"),
        F.col("offset"),
    )
    return sequence.groupBy("product", "partition").agg(
        F.max_by(state, "offset").alias("state"),
        F.collect_list(F.when(F.col("notified"), notification)).alias("notifications"),
        F.bool_or("made_anew").alias("made_anew"),
    )


def _products(partitions: DataFrame) -> DataFrame:
    """Return one row per product, its partitions added up."""
    totals = partitions.withColumn("partition_total", F.col("state.total"))
    return totals.groupBy("product").agg(
        F.when(F.count_if(F.col("partition_total").isNull()) == 0, decimals.total("partition_total")).alias(
            "total"
        ),
        F.sum("state.count").alias("count"),
        F.max("state.last_event_time").alias("last_event_time"),
        F.map_from_entries(F.collect_list(F.struct("partition", "state"))).alias("partitions"),
        F.bool_or("made_anew").alias("made_anew"),
        F.flatten(F.collect_list("notifications")).alias("notifications"),
    )
