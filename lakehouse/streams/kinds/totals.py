"""running_totals: an exact total per key, and a notification when it reaches a threshold.

    topic ── silver.<stream> ─┬─ gold.<stream>_totals ──────── Redis
                              └─ gold.<stream>_notifications ─ topic, Redis

A record adds its amount, positive or negative, to the total of its key. A Kafka record with that key and no
value is a tombstone: it resets the total to zero.

If records have a Kafka key, all records with the same key are in one partition, ordered by offset. They are
in several partitions if partitions were added to the topic, or if records have no Kafka key. Each partition
then keeps its offset order, and partitions are merged by the greatest event time so far in each:

    partition 0    10:00  10:20   9:50  tombstone 10:40
    partition 1    10:30  11:00
    order          10:00  10:20   9:50  10:30  tombstone  11:00
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Literal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, MapType, StructType

from lakehouse.storage.tables import described
from lakehouse.streams.definition import (
    Comparison,
    EventTimeProgress,
    Export,
    FieldType,
    GoldTable,
    RedisView,
    SideTable,
    Stream,
)
from lakehouse.streams.kinds.records import (
    Named,
    Records,
    field_of,
    message_name_of,
    pinned_name,
    refuse_columns,
    require_keys,
    source_of,
    topic_of,
)
from lakehouse.streams.messages.layout import (
    Constant,
    Exact,
    Message,
    Millis,
    MillisThen,
    Plain,
    joined_key,
    key,
)
from lakehouse.streams.transforms import decimals

_ON_THE_WAY = (
    *("sales", "crossings", "is_new", "standing", "ordered_at", "recomputed", "epoch", "crosses", "notified"),
    *("place", "last", "new", "notifications", "state", "first", "earliest"),
)
Notify = Literal["crossing", "every_update"]

_STATE = (
    StructType()
    .add("total", decimals.TYPE)
    .add("count", "long")
    .add("last_event_time", "timestamp")
    .add("crossings", "long")
    .add("last_offset", "long")
)

# The position of a record among those of its key; null, and so before all others, for the key's row.
_PLACE = ("ordered_at", "partition", "offset")


def running_totals(
    name: str,
    records: str | Records,
    *,
    by: Named,
    value: Named,
    threshold: Decimal,
    notify: Notify = "crossing",
    gold_table: str | None = None,
    notifications: str | None = None,
    to: str | None = "",
    group: str = "all",
) -> Stream:
    """Return a stream that adds up `value`, an exact decimal of either sign, per key in the field `by`.

    name           the stream's name, and by default that of its tables
    records        the topic, or Records
    threshold      a notification is made each time a total reaches it
    notify         "crossing", or "every_update" for a notification at every record whose total is at or above
                   the threshold
    gold_table     the table of totals; by default `<stream>_totals`
    notifications  the table of notifications; by default `<stream>_notifications`
    to             the topic for notifications; by default that name with hyphens; None: Redis only
    group          the name under which Redis has all keys

    Gold has one row per key: total (null if decimal(38,9) cannot hold it), count and last_event_time (UTC) of
    the records since the last tombstone. A notification has the key, the total after its record as `value`,
    and the record's partition and offset.
    """
    keyed, amount = field_of(by, FieldType.STRING), field_of(value, FieldType.DECIMAL)
    require_keys((keyed,), "make it required")
    refuse_columns((keyed,), _ON_THE_WAY)
    source = source_of(name, records, (keyed, amount), tombstone=keyed.name)
    totals = Totals(keyed.column, amount.column, threshold, notify)
    threshold_text = f"{threshold.normalize():f}"
    pinned = {pinned_name(name, "threshold"): threshold_text, pinned_name(name, "notify"): notify}
    member = key(Plain(keyed.column))
    sums, told = gold_table or f"{source.table}_totals", notifications or f"{source.table}_notifications"
    notified = SideTable(
        name=told,
        comment=f"One row per record that made the total of its {keyed.column} reach the threshold.",
        keys=totals.notification_keys,
        schema=totals.notifications_schema,
        time_columns=("event_time", "event_time"),
        rows=totals.notifications,
        pinned_settings=pinned,
        export=Export(
            topic=topic_of(to, told),
            key=member,
            identity=None,
            value=Message({message_name_of(keyed): Plain(keyed.column), "value": Exact("value")}),
            redis=RedisView(
                row_key=joined_key(keyed.column, Plain("partition"), Plain("offset")),
                group=key(group),
                member=member,
                order=MillisThen("event_time", "offset"),  # offsets of two partitions are not comparable
            ),
        ),
    )
    kept = GoldTable(
        name=sums,
        comment=f"One row per {keyed.column}: its total since its last tombstone.",
        reads=(source.table,),
        keys=(keyed.column,),
        schema=totals.schema,
        preaggregate=totals.events,
        counted=lambda: F.count(F.lit(1)),
        fold=totals.fold,
        needs_recompute=totals.not_to_be_added_to,
        total="total",
        sides=(notified,),
        comparison=Comparison(ignored=("made_anew",)),
        pinned_settings=pinned,
        export=Export(
            topic=None,
            key=member,
            value=Message(
                {
                    message_name_of(keyed): Plain(keyed.column),
                    "total": Exact("total"),
                    "count": Plain("count"),
                    "lastEventTime": Millis("last_event_time"),
                }
            ),
            redis=RedisView(row_key=member, group=key(group), member=member, order=Constant(0)),
        ),
    )
    return Stream(name, (source,), (kept,))


@dataclass(frozen=True)
class Totals:
    """The transformations of both tables; `by` is the key column, `value` the amount column."""

    by: str
    value: str
    threshold: Decimal
    notify: Notify

    @property
    def notification_keys(self) -> tuple[str, ...]:
        """The key of a notification: the total's key and the coordinates of the record."""
        return (self.by, "partition", "offset")

    @cached_property
    def schema(self) -> StructType:
        """One row per key; the last columns are state for the next fold."""
        return described(
            (self.by, "string", "The key: what the total is of."),
            (
                "total",
                decimals.TYPE,
                "Sum of its amounts since its last tombstone; null where decimal(38,9) does not hold it.",
            ),
            ("count", "long", "Number of these amounts."),
            ("last_event_time", "timestamp", "Latest event time of these records, UTC; null for none."),
            (
                "partitions",
                MapType(IntegerType(), _STATE),
                "By Kafka partition, the same as of its last record, with the crossings so far.",
            ),
            (
                "reached",
                "timestamp",
                "Greatest event time of all records, UTC; null where they lie in one partition.",
            ),
            (
                "made_anew",
                "boolean",
                "Recomputed from silver: records came out of order, or the total came back into range.",
            ),
        )

    @cached_property
    def notifications_schema(self) -> StructType:
        """One row per notification."""
        return described(
            (self.by, "string", "What the total is of."),
            ("value", decimals.TYPE, "Its total after this record."),
            ("crossing", "long", "How many times the total had reached the threshold by then, from 1."),
            ("event_time", "timestamp", "Event time of the record, UTC."),
            ("partition", "integer", "Kafka partition of the record."),
            ("offset", "long", "Kafka offset of the record."),
        )

    def events(self, clean: DataFrame) -> DataFrame:
        """Return the rows unaggregated: crossings depend on the order of individual records."""
        value = F.col(self.value).alias("value")
        return clean.select(
            self.by, value, "event_time", "partition", "offset", F.lit(False).alias("recomputed")
        )

    def not_to_be_added_to(self, partials: DataFrame, current: DataFrame) -> DataFrame:
        """Return the keys whose new records cannot simply be added to their rows.

        A new record may precede one that is already added: by offset or, if the key is in several partitions,
        by time. Or the current total is null because it does not fit.
        """
        first = partials.groupBy(self.by, "partition").agg(
            F.min("offset").alias("first"), F.min("event_time").alias("earliest")
        )
        known = current.select(self.by, "total", "partitions", "reached").join(first, self.by)
        last = F.try_element_at("partitions", F.col("partition")).getField("last_offset")
        is_in_one = (F.size("partitions") == 1) & last.isNotNull()
        is_after_all = is_in_one | F.coalesce(F.col("earliest") > F.col("reached"), F.lit(False))
        return known.where((F.col("first") <= last) | ~is_after_all | F.col("total").isNull()).select(self.by)

    def fold(self, partials: DataFrame, current: DataFrame, _progress: EventTimeProgress) -> DataFrame:
        """Return the keys with new records, each with the list of notifications that the records cause.

        The key's current row enters the sequence as one more record, before the new ones.
        """
        touched = current.join(partials.select(self.by).distinct(), self.by, "left_semi")
        standing = touched.select(
            self.by,
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
        coming = partials.withColumn("ordered_at", self._ordered_at()).select(
            self.by,
            *_PLACE,
            F.coalesce("value", F.lit(0).cast(decimals.TYPE)).alias("value"),
            F.when(is_sale, F.col("event_time")).alias("event_time"),
            is_sale.cast("long").alias("sales"),
            F.lit(0).cast("long").alias("crossings"),
            F.lit(True).alias("is_new"),
            F.col("recomputed").alias("made_anew"),
        )
        sequence = coming.unionByName(standing, allowMissingColumns=True)
        counted = self._with_crossings(self._with_totals(sequence))
        return self._rows(self._partitions(counted)).select(*self.schema.names, "notifications")

    def notifications(self, folded: DataFrame) -> DataFrame:
        """Return the notifications in the lists of the folded keys."""
        return folded.select(self.by, F.inline("notifications")).select(*self.notifications_schema.names)

    def _ordered_at(self) -> Column:
        """Return the greatest event time up to a record, within its key and partition."""
        by_partition = Window.partitionBy(self.by).orderBy("partition", "offset")
        # The greatest pair so far belongs to this partition, because earlier partitions have smaller numbers.
        return F.max(F.struct("partition", "event_time")).over(by_partition).getField("event_time")

    def _with_totals(self, sequence: DataFrame) -> DataFrame:
        """Add `total`, `count` and `last_event_time` since the last tombstone, as of each record."""
        in_order = Window.partitionBy(self.by).orderBy(*_PLACE)
        is_tombstone = (F.col("sales") == 0) & F.col("is_new")
        since = Window.partitionBy(self.by, "epoch").orderBy(*_PLACE)
        return sequence.withColumn("epoch", F.sum(is_tombstone.cast("long")).over(in_order)).withColumns(
            {
                "total": decimals.total("value", since),
                "count": F.sum("sales").over(since),
                "last_event_time": F.max("event_time").over(since),
            }
        )

    def _with_crossings(self, sequence: DataFrame) -> DataFrame:
        """Add `crossing`, the crossings so far, and `notified`, whether the record causes a notification.

        A null total, one that does not fit, counts neither as at the threshold nor as below it.
        """
        in_order = Window.partitionBy(self.by).orderBy(*_PLACE)
        limit = F.lit(self.threshold)
        is_sale = F.col("is_new") & (F.col("sales") == 1)
        # Before the first record the total is zero.
        known = F.coalesce(F.lag("total").over(in_order) < limit, F.lit(False))
        before = F.when(F.row_number().over(in_order) == 1, F.lit(0) < limit).otherwise(known)
        above = is_sale & F.coalesce(F.col("total") >= limit, F.lit(False))
        crosses = above & before
        number = F.sum(F.col("crossings") + F.col("crosses").cast("long")).over(in_order)
        numbered = sequence.withColumn("crosses", crosses).withColumn("crossing", number)
        return numbered.withColumn("notified", crosses if self.notify == "crossing" else above)

    def _partitions(self, counted: DataFrame) -> DataFrame:
        """Return the last state of each (key, partition), its position, and its notifications."""
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
        return counted.groupBy(self.by, "partition").agg(
            F.max_by(state, "offset").alias("state"),
            F.max(F.struct(*_PLACE)).alias("place"),
            F.first("standing", ignorenulls=True).alias("standing"),
            F.collect_list(F.when(F.col("notified"), notification)).alias("notifications"),
            F.bool_or("made_anew").alias("made_anew"),
        )

    def _rows(self, partitions: DataFrame) -> DataFrame:
        """Return one row per key: its totals as of its last record, and the states of all its partitions."""
        entry = F.when(F.col("partition").isNotNull(), F.struct("partition", "state"))
        rows = partitions.groupBy(self.by).agg(
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
            self.by,
            *(F.col("last").getField(name).alias(name) for name in ("total", "count", "last_event_time")),
            "partitions",
            F.when(F.size("partitions") > 1, F.col("place").getField("ordered_at")).alias("reached"),
            "made_anew",
            "notifications",
        )
