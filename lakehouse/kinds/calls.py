"""calls: call records joined from two topics.

    analyticsTopic ── silver.call_analytics ─┬─ gold.call_records ── outputTopic, Redis
    metricsTopic ──── silver.call_metrics ───┘

Records are {"user1", "user2", "timestamp"?, "analytics"?} and the same with "metrics"; a payload is any JSON
value or null. A call of a pair (user1, user2, in that order) is a maximal set of its events, of either topic,
in which neighbours in event time are at most T apart:

    T = 60 s      a     m  a                      m
                  |--30-|20|--------90 s----------|
                  (a call with both sides )       (a call with metrics only)

The join keeps a call's first and last time, counts and earliest payloads. These merge with those of another
piece of the same call in any order. A call closes when the wall clock is T, the grace and one second past its
last event. A later event corrects it, and can join two calls into one: then the key that is gone is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.messages.layout import Equals, Message, Millis, Payload, Plain, joined_key, key
from lakehouse.spark.execution import by_reference
from lakehouse.stream import (
    Comparison,
    Contract,
    EventTimeProgress,
    Export,
    Field,
    FieldType,
    GoldTable,
    RedisView,
    Source,
    Stream,
    WallClock,
)
from lakehouse.tables import DELETED, described, shifted

PAIR = ("user1", "user2")
KEYS = (*PAIR, "ts")
SIDES = {"call_analytics": "analytics", "call_metrics": "metrics"}

_PLACE = StructType().add("event_time", "timestamp").add("partition", "integer").add("offset", "long")

SCHEMA = described(
    ("user1", "string", "The first of the two users, in the order of the records."),
    ("user2", "string", "The second of the two users."),
    ("ts", "timestamp", "Earliest event time of the call, UTC; part of the key."),
    (
        "analytics",
        "string",
        "Earliest analytics payload that is not null, as text: a JSON string as it is, else JSON.",
    ),
    (
        "metrics",
        "string",
        "Earliest metrics payload that is not null, as text: a JSON string as it is, else JSON.",
    ),
    ("analytics_events", "long", "Number of analytics events."),
    ("metrics_events", "long", "Number of metrics events."),
    ("last_event_time", "timestamp", "Latest event time of the call, UTC."),
    ("status", "string", "closed once the wall clock is past last_event_time by gap and grace, else open."),
    ("closed_at", "timestamp", "When the call was due to close, UTC; null while it is open."),
    ("was_closed", "boolean", "A row under this key has been closed before, and so has been sent."),
    ("analytics_place", _PLACE, "Where the analytics payload comes from."),
    ("metrics_place", _PLACE, "Where the metrics payload comes from."),
)
"""Of two payloads at one event time, the one with the least partition and offset is kept."""

_PAIR_KEY = joined_key(*PAIR, separator="-")
_CALL_KEY = _PAIR_KEY + key(":", Millis("ts"))
_CLOSED = Equals("status", "closed")


def contract(payload: str) -> Contract:
    """Return the contract of a topic whose records carry this payload."""
    return Contract(
        fields=(
            Field("user1", "user1", FieldType.STRING),
            Field("user2", "user2", FieldType.STRING),
            Field(payload, payload, FieldType.JSON, required=False),
        )
    )


SOURCES = (
    Source("analyticsTopic", "call_analytics", contract("analytics")),
    Source("metricsTopic", "call_metrics", contract("metrics")),
)


def make(gap_s: int, grace_s: int) -> Stream:
    """Return the stream: events at most `gap_s` apart are one call, which closes `grace_s` after that."""
    joining = Joining(gap_s, grace_s)
    records = GoldTable(
        name="call_records",
        comment="One row per call: a maximal set of neighbouring events of one pair of users.",
        reads=tuple(SIDES),
        keys=KEYS,
        schema=SCHEMA,
        time_columns=("ts", "last_event_time"),
        stats=("status",),
        combine=events,
        preaggregate=joining.pieces,
        counted=lambda: F.sum(F.col("analytics_events") + F.col("metrics_events")),
        fold=joining.fold,
        merge_radius=timedelta(seconds=gap_s),
        clock=WallClock(
            waits=Equals("status", "open"),
            column="last_event_time",
            after=joining.closes_after,
            set_columns=joining.closed_by_now,
        ),
        pinned_settings={"call_gap_s": str(gap_s), "call_grace_s": str(grace_s)},
        comparison=Comparison(ignored=("was_closed",)),
        final=_CLOSED,
        export=Export(
            topic="outputTopic",
            key=_CALL_KEY,
            value=Message(
                {
                    **{name: Plain(name) for name in PAIR},
                    "ts": Millis("ts"),
                    **{side: Payload(side) for side in SIDES.values()},
                }
            ),
            partition_by=_PAIR_KEY,
            export_when=_CLOSED,
            tombstone_when=lambda: F.col("was_closed"),
            redis=RedisView(
                row_key=_CALL_KEY,
                group=key(Plain("user1")),
                member=key(Plain("user2")),
                order=Millis("ts"),
                rows_move=True,
            ),
        ),
    )
    return Stream("calls", SOURCES, (records,))


def events(frames: Mapping[str, DataFrame]) -> DataFrame:
    """Return the rows of both silver tables as calls of one event each."""
    one, none = F.lit(1).cast("long"), F.lit(0).cast("long")
    analytics, metrics = (
        frame.select(
            *PAIR,
            F.col("event_time").alias("ts"),
            F.col("event_time").alias("last_event_time"),
            *(
                _found(side) if side == own else F.lit(None).cast(_FOUND).alias(side)
                for side in SIDES.values()
            ),
            *((one if side == own else none).alias(f"{side}_events") for side in SIDES.values()),
        )
        for own, frame in ((SIDES[table], frames[table]) for table in SIDES)
    )
    return analytics.unionByName(metrics)


@dataclass(frozen=True)
class Joining:
    """How events are joined into calls: the gap T, and the grace after it."""

    gap_s: int
    grace_s: int

    @property
    def closes_after(self) -> timedelta:
        """How long after its last event a call closes."""
        return timedelta(seconds=self.gap_s + self.grace_s + 1)

    def pieces(self, clean: DataFrame) -> DataFrame:
        """Return the calls that the rows of a micro-batch form among themselves."""
        return _joined(clean, self.gap_s)

    def fold(self, partials: DataFrame, current: DataFrame, progress: EventTimeProgress) -> DataFrame:
        """Return the calls that have new events or are due to close, and the keys that are gone."""
        due = by_reference(F.lit(shifted(progress.now, -self.closes_after)), F.col("last_event_time"))
        pairs = partials.select(*PAIR, F.lit(True).alias("touched")).distinct()
        standing = current.join(pairs, list(PAIR), "left").where(
            F.col("touched") | ((F.col("status") == "open") & (F.col("last_event_time") <= due))
        )
        olds = standing.select(
            *PAIR,
            "ts",
            "last_event_time",
            *(_kept(side) for side in SIDES.values()),
            *(f"{side}_events" for side in SIDES.values()),
            F.struct("ts", "status", "was_closed").alias("old"),
        )
        calls = _joined(olds.unionByName(partials, allowMissingColumns=True), self.gap_s)
        closed = F.col("last_event_time") <= due
        old_open = F.exists("olds", lambda old: old["status"] == "open")
        changed = calls.where(F.col("has_new") | (closed & old_open))
        gone = F.transform(F.filter("olds", lambda old: old["ts"] != F.col("ts")), _gone)
        return changed.select(
            *PAIR, F.inline(F.concat(F.array(_standing(closed, self.closed_by_now())), gone))
        )

    def closed_by_now(self) -> Mapping[str, Column]:
        """Return the columns of an open call that is due to close and has no new event."""
        return {
            "status": F.lit("closed"),
            "closed_at": F.col("last_event_time") + F.lit(self.closes_after),
            "was_closed": F.lit(True),
        }


# A payload in transit: its coordinates, in the order that selects the earliest, and the payload.
_FOUND = "struct<event_time: timestamp, partition: int, offset: bigint, payload: string>"


def _found(side: str) -> Column:
    place = F.struct("event_time", "partition", "offset", F.col(side).alias("payload"))
    return F.when(F.col(side).isNotNull(), place).cast(_FOUND).alias(side)


def _kept(side: str) -> Column:
    place = F.col(f"{side}_place")
    fields = (place.getField(name).alias(name) for name in ("event_time", "partition", "offset"))
    kept = F.struct(*fields, F.col(side).alias("payload"))
    return F.when(F.col(side).isNotNull(), kept).cast(_FOUND).alias(side)


def _joined(parts: DataFrame, gap_s: int) -> DataFrame:
    """Join parts of calls, each from `ts` to `last_event_time`, into calls.

    A part begins a new call if it begins more than the gap after the end of everything before it. Parts that
    are in the table have their `old` key and status; the call gets a list of these.
    """
    before = Window.partitionBy(*PAIR).orderBy("ts").rowsBetween(Window.unboundedPreceding, -1)
    up_to = Window.partitionBy(*PAIR).orderBy("ts").rowsBetween(Window.unboundedPreceding, 0)
    apart = F.col("ts") > F.max("last_event_time").over(before) + F.expr(f"INTERVAL {gap_s} SECONDS")
    numbered = parts.withColumn("apart", apart.cast("int")).withColumn("call", F.sum("apart").over(up_to))
    folding = "old" in parts.columns
    olds = (
        F.collect_list("old").alias("olds"),
        F.bool_or(F.col("old").isNull()).alias("has_new"),
    )
    return (
        numbered.groupBy(*PAIR, F.coalesce("call", F.lit(0)).alias("call"))
        .agg(
            F.min("ts").alias("ts"),
            F.max("last_event_time").alias("last_event_time"),
            *(F.min(side).alias(side) for side in SIDES.values()),
            *(F.sum(f"{side}_events").alias(f"{side}_events") for side in SIDES.values()),
            *(olds if folding else ()),
        )
        .drop("call")
    )


def _standing(closed: Column, becomes: Mapping[str, Column]) -> Column:
    """Return a joined call as a row of the table, without its pair; a closed one `becomes` this."""
    was_closed = F.exists("olds", lambda old: (old["ts"] == F.col("ts")) & old["was_closed"])
    values = {
        "ts": F.col("ts"),
        **{side: F.col(side).getField("payload") for side in SIDES.values()},
        **{f"{side}_events": F.col(f"{side}_events") for side in SIDES.values()},
        "last_event_time": F.col("last_event_time"),
        "status": F.when(closed, becomes["status"]).otherwise("open"),
        "closed_at": F.when(closed, becomes["closed_at"]),
        "was_closed": closed | was_closed,
        **{f"{side}_place": F.col(side).dropFields("payload") for side in SIDES.values()},
        DELETED: F.lit(False),
    }
    return _row(values)


def _gone(old: Column) -> Column:
    return _row({"ts": old["ts"], DELETED: F.lit(True)})


def _row(values: Mapping[str, Column]) -> Column:
    """Return the columns after the pair as one struct, null where there is no value."""
    types = {column.name: column.dataType for column in SCHEMA if column.name not in PAIR}
    return F.struct(
        *(values.get(name, F.lit(None)).cast(type_).alias(name) for name, type_ in types.items()),
        values[DELETED].alias(DELETED),
    )
