"""running_totals: an exact total per key, and a notification when it reaches a threshold.

    topic ── silver.<stream> ─┬─ gold.<stream>_totals ──────── Redis
                              └─ gold.<stream>_notifications ─ topic, Redis

A record adds its amount, positive or negative, to its key's total. A Kafka record with that key and no value
is a tombstone: it resets the total to zero.

If records have a Kafka key, all records with the same key are in one partition, ordered by offset. If
partitions were added to the topic, or if records have no Kafka key, a key's records can be in several
partitions. Each partition's records then stay in offset order, and the partitions are merged by each one's
greatest event time so far:

    partition 0    10:00  10:20   9:50  tombstone 10:40
    partition 1    10:30  11:00
    order          10:00  10:20   9:50  10:30  tombstone  11:00
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import cache, cached_property
from typing import Literal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, MapType, StructType

from lakehouse.storage.spark.columns import Columns, Grouped
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
    keys_of,
    message_name_of,
    pinned_name,
    source_of,
    topic_of,
    value_of,
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

# A record's position among the records with the same key. The key's current row has nulls in these columns,
# so it sorts first.
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
    """Return a stream that adds up `value`, a positive or negative exact decimal, per key in the field `by`.

    name           the stream's name, and by default the name of its bronze and silver tables
    records        the topic, or Records
    threshold      a notification is created each time a total reaches it
    notify         "crossing", or "every_update" for a notification at every record that leaves the total at
                   or above the threshold
    gold_table     the table of totals; by default `<stream>_totals`
    notifications  the table of notifications; by default `<stream>_notifications`
    to             the topic for notifications; by default that table's name with hyphens; None: Redis only
    group          the name under which Redis stores all keys

    Gold has one row per key: total (null if it does not fit in decimal(38,9)), count and last_event_time
    (UTC) of the records since the last tombstone. A notification contains the key, the total after its record
    as `value`, and the record's partition and offset.
    """
    (keyed,), amount = keys_of(by, _ON_THE_WAY), value_of(value, FieldType.DECIMAL)
    source = source_of(name, records, (keyed, amount), tombstone=keyed.name)
    totals = Totals(keyed.column, amount.column, threshold, notify)
    threshold_text = f"{threshold.normalize():f}"
    pinned = {pinned_name(name, "threshold"): threshold_text, pinned_name(name, "notify"): notify}
    member = key(Plain(keyed.column))
    sums, told = gold_table or f"{source.table}_totals", notifications or f"{source.table}_notifications"
    notified = SideTable(
        name=told,
        comment=f"One row per record at which the total for its {keyed.column} reached the threshold.",
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
        comment=f"One row per {keyed.column}, with its total since its last tombstone.",
        reads=(source.table,),
        keys=(keyed.column,),
        schema=totals.schema,
        preaggregate=totals.events,
        counted=lambda: F.count(F.lit(1)),
        fold=totals.fold,
        needs_recompute=totals.not_to_be_added_to,
        totals={"total": "count"},
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
    """The transformations for both tables. `by` is the key column, and `value` is the amount column."""

    by: str
    value: str
    threshold: Decimal
    notify: Notify

    @property
    def notification_keys(self) -> tuple[str, ...]:
        """The key columns of a notification: the key of the total, and the record's coordinates."""
        return (self.by, "partition", "offset")

    @cached_property
    def schema(self) -> StructType:
        """The schema of the totals: one row per key. The last columns are state for the next fold."""
        return described(
            (self.by, "string", "The key to which the total belongs."),
            (
                "total",
                decimals.TYPE,
                "Sum of the amounts since the last tombstone; null if it does not fit in decimal(38,9).",
            ),
            ("count", "long", "Number of amounts since the last tombstone."),
            (
                "last_event_time",
                "timestamp",
                "Latest event time since the last tombstone, UTC; null if there are no amounts.",
            ),
            (
                "partitions",
                MapType(IntegerType(), _STATE),
                "State as of the last record in each Kafka partition, including the crossings.",
            ),
            (
                "reached",
                "timestamp",
                "Greatest event time of all records, UTC; null if all are in one partition.",
            ),
            (
                "made_anew",
                "boolean",
                "True if the row was ever recomputed, after out-of-order records or an overflow.",
            ),
        )

    @cached_property
    def notifications_schema(self) -> StructType:
        """The schema of the notifications, with one row each."""
        return described(
            (self.by, "string", "The key to which the total belongs."),
            ("value", decimals.TYPE, "The total after this record."),
            ("crossing", "long", "Number of times that the total has reached the threshold so far."),
            ("event_time", "timestamp", "Event time of the record, UTC."),
            ("partition", "integer", "Kafka partition of the record."),
            ("offset", "long", "Kafka offset of the record."),
        )

    def events(self, clean: DataFrame) -> DataFrame:
        """Return the rows unaggregated, because crossings depend on the order of individual records."""
        return self._events.of(clean)

    def not_to_be_added_to(self, partials: DataFrame, current: DataFrame) -> DataFrame:
        """Return the keys whose new records cannot be added to their current rows.

        Either a new record precedes a record that was already added (by offset or, for a key in several
        partitions, by time), or the current total is null because it does not fit.
        """
        first = self._first_by_partition.of(partials)
        known = current.select(self.by, "total", "partitions", "reached").join(first, self.by)
        return known.where(_comes_before()).select(self.by)

    def fold(self, partials: DataFrame, current: DataFrame, _progress: EventTimeProgress) -> DataFrame:
        """Return the keys with new records, each with the list of notifications that the records cause.

        A key's current row is treated as the first record in the sequence, before the new records.
        """
        touched = current.join(partials.select(self.by).distinct(), self.by, "left_semi")
        coming = self._coming.of(self._ordered.added_to(partials))
        sequence = coming.unionByName(self._standing.of(touched), allowMissingColumns=True)
        for step in self._counting:
            sequence = step.added_to(sequence)
        rows = self._all_partitions.added_to(self._by_key.of(self._by_partition.of(sequence)))
        return self._row.of(rows)

    def notifications(self, folded: DataFrame) -> DataFrame:
        """Return one row per notification in the folded rows."""
        return folded.select(self.by, F.inline("notifications")).select(*self.notifications_schema.names)

    @cached_property
    def _events(self) -> Columns:
        names = ("event_time", "partition", "offset")
        return Columns(
            {
                self.by: F.col(self.by),
                "value": F.col(self.value),
                **{name: F.col(name) for name in names},
                "recomputed": F.lit(False),
            }
        )

    @cached_property
    def _first_by_partition(self) -> Grouped:
        """The first new record of each key and partition."""
        first = {"first": F.min("offset"), "earliest": F.min("event_time")}
        return Grouped((F.col(self.by), F.col("partition")), first)

    @cached_property
    def _standing(self) -> Columns:
        """The columns of a key's current row, as the first record in the sequence of the key's records."""
        crossings = F.transform(F.map_values("partitions"), lambda state: state["crossings"])
        return Columns(
            {
                self.by: F.col(self.by),
                "value": F.col("total"),
                "event_time": F.col("last_event_time"),
                "sales": F.col("count"),
                "crossings": F.array_max(crossings),
                "is_new": F.lit(False),
                "made_anew": F.col("made_anew"),
                "standing": F.col("partitions"),
            }
        )

    @cached_property
    def _ordered(self) -> Columns:
        """The greatest event time in a record's key and partition, up to this record."""
        by_partition = Window.partitionBy(self.by).orderBy("partition", "offset")
        # The greatest pair so far is from this partition, because the partitions before it have smaller
        # numbers.
        greatest = F.max(F.struct("partition", "event_time")).over(by_partition)
        return Columns({"ordered_at": greatest.getField("event_time")})

    @cached_property
    def _coming(self) -> Columns:
        """The columns of a new record in the sequence of a key's records."""
        is_sale = F.col("value").isNotNull()
        return Columns(
            {
                **{name: F.col(name) for name in (self.by, *_PLACE)},
                "value": F.coalesce("value", F.lit(0).cast(decimals.TYPE)),
                "event_time": F.when(is_sale, F.col("event_time")),
                "sales": is_sale.cast("long"),
                "crossings": F.lit(0).cast("long"),
                "is_new": F.lit(True),
                "made_anew": F.col("recomputed"),
            }
        )

    @cached_property
    def _counting(self) -> tuple[Columns, ...]:
        """Columns to add to the sequence of a key's records, in successive steps.

        `total`, `count` and `last_event_time` are the values since the last tombstone, as of each record.
        `crossing` is the number of crossings so far, and `notified` is true if the record causes a
        notification. A total that does not fit is null, and is neither at or above the threshold nor below
        it.
        """
        in_order = Window.partitionBy(self.by).orderBy(*_PLACE)
        since = Window.partitionBy(self.by, "epoch").orderBy(*_PLACE)
        is_tombstone = (F.col("sales") == 0) & F.col("is_new")
        totals = {
            "total": decimals.total("value", since),
            "count": F.sum("sales").over(since),
            "last_event_time": F.max("event_time").over(since),
        }
        limit = F.lit(self.threshold)
        is_sale = F.col("is_new") & (F.col("sales") == 1)
        # Before the first record, the total is zero.
        known = F.coalesce(F.lag("total").over(in_order) < limit, F.lit(False))
        before = F.when(F.row_number().over(in_order) == 1, F.lit(0) < limit).otherwise(known)
        above = is_sale & F.coalesce(F.col("total") >= limit, F.lit(False))
        crosses = above & before
        number = F.sum(F.col("crossings") + F.col("crosses").cast("long")).over(in_order)
        return (
            Columns({"epoch": F.sum(is_tombstone.cast("long")).over(in_order)}),
            Columns(totals),
            Columns({"crosses": crosses}),
            Columns({"crossing": number}),
            Columns({"notified": crosses if self.notify == "crossing" else above}),
        )

    @cached_property
    def _by_partition(self) -> Grouped:
        """The last state of each key and partition, its position, and its notifications."""
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
        return Grouped(
            (F.col(self.by), F.col("partition")),
            {
                "state": F.max_by(state, "offset"),
                "place": F.max(F.struct(*_PLACE)),
                "standing": F.first("standing", ignorenulls=True),
                "notifications": F.collect_list(F.when(F.col("notified"), notification)),
                "made_anew": F.bool_or("made_anew"),
            },
        )

    @cached_property
    def _by_key(self) -> Grouped:
        """The state of each key's last record, and the new states of its partitions."""
        entry = F.when(F.col("partition").isNotNull(), F.struct("partition", "state"))
        return Grouped(
            (F.col(self.by),),
            {
                "last": F.max_by("state", "place"),
                "place": F.max("place"),
                "standing": F.first("standing", ignorenulls=True),
                "new": F.map_from_entries(F.collect_list(entry)),
                "made_anew": F.bool_or("made_anew"),
                "notifications": F.flatten(F.collect_list("notifications")),
            },
        )

    @cached_property
    def _all_partitions(self) -> Columns:
        """The states of all partitions that contain the key."""
        others = F.map_filter("standing", lambda partition, _state: ~F.map_contains_key("new", partition))
        every = F.when(F.col("standing").isNull(), F.col("new")).otherwise(F.map_concat(others, "new"))
        return Columns({"partitions": every})

    @cached_property
    def _row(self) -> Columns:
        """The columns of a key's new row, and of its notifications."""
        last = ("total", "count", "last_event_time")
        values = {name: F.col("last").getField(name) for name in last}
        values["reached"] = F.when(F.size("partitions") > 1, F.col("place").getField("ordered_at"))
        return Columns(
            {name: values.get(name, F.col(name)) for name in (*self.schema.names, "notifications")}
        )


@cache
def _comes_before() -> Column:
    """Return the condition under which new records cannot be added to their key's current row."""
    last = F.try_element_at("partitions", F.col("partition")).getField("last_offset")
    is_in_one = (F.size("partitions") == 1) & last.isNotNull()
    is_after_all = is_in_one | F.coalesce(F.col("earliest") > F.col("reached"), F.lit(False))
    return (F.col("first") <= last) | ~is_after_all | F.col("total").isNull()
