"""sales: running totals per product, and notifications when they reach a threshold.

    sales-events-v1 ── silver.sales_events ─┬─ gold.product_sales ─────── Redis
                                            └─ gold.sales_notifications ─ notifications-events-v1, Redis

A record is {"product", "value", "timestamp"?}. A null value under the key of a product is a tombstone: the
product starts again from zero. Values are exact decimals and may be negative (a return).

A product's records lie in one partition, which their key ensures, and are ordered by offset. If partitions
were added to the topic, or records are sent without their key, they lie in several. Each partition keeps the
order of its offsets, and partitions are merged by the greatest event time so far in each:

    partition 0    10:00  10:20   9:50  tombstone 10:40
    partition 1    10:30  11:00
    order          10:00  10:20   9:50  10:30  tombstone  11:00
"""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import Literal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, MapType, StructType

from lakehouse.messages.layout import Constant, Exact, Message, Millis, MillisThen, Plain, joined_key, key
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
from lakehouse.tables import described
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

SALES_SCHEMA = described(
    ("product", "string", "The product."),
    (
        "total",
        decimals.TYPE,
        "Sum of its sales since its last tombstone; null where decimal(38,9) does not hold it.",
    ),
    ("count", "long", "Number of these sales."),
    ("last_event_time", "timestamp", "Latest event time of these sales, UTC; null for none."),
    (
        "partitions",
        MapType(IntegerType(), _STATE),
        "By Kafka partition, the same as of its last record, with the crossings so far and its offset.",
    ),
    (
        "reached",
        "timestamp",
        "Greatest event time of all records, UTC; null where they lie in one partition.",
    ),
    (
        "made_anew",
        "boolean",
        "The row was recomputed from silver: records came out of order, or the total came back into range.",
    ),
)

NOTIFICATIONS_SCHEMA = described(
    ("product", "string", "The product that was sold."),
    ("value", decimals.TYPE, "Its total after this sale."),
    ("crossing", "long", "How many times the total had reached the threshold by then, from 1."),
    ("event_time", "timestamp", "Event time of the sale, UTC."),
    ("partition", "integer", "Kafka partition of the record."),
    ("offset", "long", "Kafka offset of the record."),
)


def make(threshold: Decimal, notify: Notify) -> Stream:
    """Return the stream: each time a total reaches the threshold there is a notification.

    Or with every sale at or above it, if `notify` is "every_update".
    """
    pinned = {"sales_threshold": f"{threshold.normalize():f}", "sales_notify": notify}
    notified = SideTable(
        name="sales_notifications",
        comment="One row per sale that made a product's total reach the threshold.",
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
                order=MillisThen("event_time", "offset"),  # offsets of two partitions say nothing
            ),
        ),
    )
    sold = GoldTable(
        name="product_sales",
        comment="One row per product: its total since its last tombstone.",
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

    A record may come before one that has been added: by its offset or, if the product is in several
    partitions, by its time. Or the total is unknown because it does not fit.
    """
    first = partials.groupBy("product", "partition").agg(
        F.min("offset").alias("first"), F.min("event_time").alias("earliest")
    )
    known = current.select("product", "total", "partitions", "reached").join(first, "product")
    last = F.try_element_at("partitions", F.col("partition")).getField("last_offset")
    is_in_one = (F.size("partitions") == 1) & last.isNotNull()
    is_after_all = is_in_one | F.coalesce(F.col("earliest") > F.col("reached"), F.lit(False))
    return known.where((F.col("first") <= last) | ~is_after_all | F.col("total").isNull()).select("product")


def fold_sales(
    partials: DataFrame,
    current: DataFrame,
    _progress: EventTimeProgress,
    *,
    threshold: Decimal,
    notify: Notify,
) -> DataFrame:
    """Return the products that have new records, each with the list of notifications that these cause.

    A product's row enters the sequence as one more record before the new ones.
    """
    touched = current.join(partials.select("product").distinct(), "product", "left_semi")
    standing = touched.select(
        "product",
        F.col("total").alias("value"),
        F.col("last_event_time").alias("event_time"),
        F.col("count").alias("sales"),
        F.array_max(F.transform(F.map_values("partitions"), lambda state: state["crossings"])).alias(
            "crossings"
        ),
        F.lit(False).alias("is_new"),
        "made_anew",
        F.col("partitions").alias("standing"),
    )
    is_sale = F.col("value").isNotNull()
    coming = partials.withColumn("ordered_at", _ordered_at()).select(
        "product",
        *_PLACE,
        F.coalesce("value", F.lit(0).cast(decimals.TYPE)).alias("value"),
        F.when(is_sale, F.col("event_time")).alias("event_time"),
        is_sale.cast("long").alias("sales"),
        F.lit(0).cast("long").alias("crossings"),
        F.lit(True).alias("is_new"),
        F.col("recomputed").alias("made_anew"),
    )
    sequence = coming.unionByName(standing, allowMissingColumns=True)
    counted = _with_crossings(_with_totals(sequence), threshold, notify)
    return _products(_partitions(counted)).select(*SALES_SCHEMA.names, "notifications")


def notifications(folded: DataFrame) -> DataFrame:
    """Return the notifications from the lists of folded products."""
    return folded.select("product", F.inline("notifications")).select(*NOTIFICATIONS_SCHEMA.names)


# Where a record stands among its product's; null, and so before all others, for the product's row.
_PLACE = ("ordered_at", "partition", "offset")


def _ordered_at() -> Column:
    """Return the greatest event time up to a record, among those of its product and partition."""
    by_partition = Window.partitionBy("product").orderBy("partition", "offset")
    # The greatest pair so far is of this partition, because those before it are smaller.
    return F.max(F.struct("partition", "event_time")).over(by_partition).getField("event_time")


def _with_totals(sequence: DataFrame) -> DataFrame:
    """Add `total`, `count` and `last_event_time` since the last tombstone, as of each record."""
    in_order = Window.partitionBy("product").orderBy(*_PLACE)
    is_tombstone = (F.col("sales") == 0) & F.col("is_new")
    since = Window.partitionBy("product", "epoch").orderBy(*_PLACE)
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
    in_order = Window.partitionBy("product").orderBy(*_PLACE)
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


def _partitions(counted: DataFrame) -> DataFrame:
    """Return the last state of each (product, partition), its place, and the notifications."""
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
    return counted.groupBy("product", "partition").agg(
        F.max_by(state, "offset").alias("state"),
        F.max(F.struct(*_PLACE)).alias("place"),
        F.first("standing", ignorenulls=True).alias("standing"),
        F.collect_list(F.when(F.col("notified"), notification)).alias("notifications"),
        F.bool_or("made_anew").alias("made_anew"),
    )


def _products(partitions: DataFrame) -> DataFrame:
    """Return one row per product: as its last record has left it, with the states of all its partitions."""
    entry = F.when(F.col("partition").isNotNull(), F.struct("partition", "state"))
    rows = partitions.groupBy("product").agg(
        F.max_by("state", "place").alias("last"),
        F.max("place").alias("place"),
        F.first("standing", ignorenulls=True).alias("standing"),
        F.map_from_entries(F.collect_list(entry)).alias("new"),
        F.bool_or("made_anew").alias("made_anew"),
        F.flatten(F.collect_list("notifications")).alias("notifications"),
    )
    others = F.map_filter("standing", lambda partition, _state: ~F.map_contains_key("new", partition))
    every = F.when(F.col("standing").isNull(), F.col("new")).otherwise(F.map_concat(others, "new"))
    with_all = rows.withColumn("partitions", every)
    return with_all.select(
        "product",
        *(F.col("last").getField(name).alias(name) for name in ("total", "count", "last_event_time")),
        "partitions",
        F.when(F.size("partitions") > 1, F.col("place").getField("ordered_at")).alias("reached"),
        "made_anew",
        "notifications",
    )
