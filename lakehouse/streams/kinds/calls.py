"""joined_calls: a call's records from several topics, joined into one row.

    topic 1 ── silver.<stream>_<payload 1> ─┬─ gold.<stream> ── topic, Redis
    topic 2 ── silver.<stream>_<payload 2> ─┘

A record contains the two parties to a call (its pair) and a payload, which can be any JSON value or null. A
call is a maximal set of its pair's events, from any topic, in which neighbours in event time are at most a
gap T apart:

    T = 60 s      a     m  a                      m
                  |--30-|20|--------90 s----------|
                  (a call with both sides )       (a call with one side only)

A joined call contains its first and last time, event counts and earliest payloads. Parts of the same call can
be merged in any order. A call closes once the wall clock is T plus the grace period plus one second past its
last event. A later event corrects the call, and can join two calls into one; the key of one of the two is
then deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, cached_property

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.common.quantities import parse_duration_s, show_duration
from lakehouse.storage.spark.columns import Columns, Grouped
from lakehouse.storage.spark.execution import by_reference
from lakehouse.storage.tables import DELETED, described, shifted
from lakehouse.streams.definition import (
    Comparison,
    EventTimeProgress,
    Export,
    FieldType,
    GoldTable,
    RedisView,
    Stream,
    WallClock,
)
from lakehouse.streams.kinds.records import (
    Named,
    Records,
    column_of,
    field_of,
    keys_of,
    message_name_of,
    optional,
    pinned_name,
    refuse_columns,
    source_of,
    topic_of,
)
from lakehouse.streams.messages.layout import Equals, Message, Millis, Payload, Plain, Value, joined_key, key

_ON_THE_WAY = ("apart", "call", "touched", "old", "olds", "has_new", "_due", "_row")
_PLACE = StructType().add("event_time", "timestamp").add("partition", "integer").add("offset", "long")
# A payload with its record's coordinates, ordered so that the minimum is the earliest payload.
_FOUND = "struct<event_time: timestamp, partition: int, offset: bigint, payload: string>"


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of a call: its topic or Records, and the payload's field, which can contain any JSON value."""

    records: str | Records
    payload: Named


def joined_calls(
    name: str,
    sides: Sequence[Side],
    *,
    pair: tuple[Named, Named],
    gap: str = "1m",
    grace: str = "3m",
    gold_table: str | None = None,
    to: str | None = "",
) -> Stream:
    """Return a stream of calls between the two parties `pair`, joined from the topics of `sides`.

    name        the stream's name
    gap         events at most this far apart, in event time, belong to one call
    grace       how long after the gap, in wall-clock time, a call waits for more events before it closes
    gold_table  the table of calls; by default the stream's name
    to          the topic for closed calls; by default the table's name with hyphens; None: Redis only

    Bronze and silver have one table per side, `<stream>_<payload>` by default. Gold has one row per call:
    both parties, `ts` (earliest event time, UTC), last_event_time, the earliest non-null payload of each side
    as text, the event count of each side, and status. Only closed calls are sent.
    """
    parties = keys_of(pair, _ON_THE_WAY)
    payloads = [optional(field_of(side.payload, FieldType.JSON)) for side in sides]
    refuse_columns(payloads, _ON_THE_WAY)
    sources = tuple(
        source_of(f"{name}_{payload.column}", side.records, (*parties, payload))
        for side, payload in zip(sides, payloads, strict=True)
    )
    one, other = (party.column for party in parties)
    by_table = {source.table: payload.column for source, payload in zip(sources, payloads, strict=True)}
    joining = Joining((one, other), by_table, parse_duration_s(gap), parse_duration_s(grace))
    pair_key = joined_key(one, other, separator="-")
    call_key = pair_key + key(":", Millis("ts"))
    table, closed = gold_table or column_of(name), Equals("status", "closed")
    names: dict[str, Value] = {message_name_of(party): Plain(party.column) for party in parties}
    messages: dict[str, Value] = {message_name_of(one): Payload(one.column) for one in payloads}
    kept = GoldTable(
        name=table,
        comment=f"One row per call: a series of neighbouring events with the same {one} and {other}.",
        reads=tuple(by_table),
        keys=joining.keys,
        schema=joining.schema,
        time_columns=("ts", "last_event_time"),
        stats=("status",),
        combine=joining.events,
        preaggregate=joining.pieces,
        counted=joining.counted,
        fold=joining.fold,
        merge_radius=timedelta(seconds=joining.gap_s),
        clock=WallClock(
            waits=Equals("status", "open"),
            column="last_event_time",
            after=joining.closes_after,
            set_columns=joining.closed_by_now,
        ),
        pinned_settings={
            pinned_name(name, "gap"): show_duration(joining.gap_s),
            pinned_name(name, "grace"): show_duration(joining.grace_s),
        },
        comparison=Comparison(ignored=("was_closed",)),
        final=closed,
        export=Export(
            topic=topic_of(to, table),
            key=call_key,
            value=Message({**names, "ts": Millis("ts"), **messages}),
            partition_by=pair_key,
            export_when=closed,
            tombstone_when=lambda: F.col("was_closed"),
            redis=RedisView(
                row_key=call_key,
                group=key(Plain(one)),
                member=key(Plain(other)),
                order=Millis("ts"),
                rows_move=True,
            ),
        ),
    )
    return Stream(name, sources, (kept,))


@dataclass(frozen=True)
class Joining:
    """The join of a pair's events into calls. `sides` maps silver tables to their payload columns.

    `gap_s` is the gap T in seconds, and `grace_s` is the grace period after the gap.
    """

    pair: tuple[str, str]
    sides: Mapping[str, str]
    gap_s: int
    grace_s: int

    @property
    def keys(self) -> tuple[str, ...]:
        """The key of the table of calls."""
        return (*self.pair, "ts")

    @property
    def payloads(self) -> tuple[str, ...]:
        """The payload columns, one for each side."""
        return tuple(self.sides.values())

    @cached_property
    def schema(self) -> StructType:
        """One row per call.

        If several payloads have the same event time, the payload with the lowest partition and offset is
        kept.
        """
        one, other = self.pair
        return described(
            (one, "string", "First party to the call, as named in the records; part of the key."),
            (other, "string", "Second party to the call, as named in the records; part of the key."),
            ("ts", "timestamp", "Earliest event time of the call, UTC; part of the key."),
            *(
                (
                    side,
                    "string",
                    f"Earliest {side} payload that is not null: JSON, or plain text for a JSON string.",
                )
                for side in self.payloads
            ),
            *((f"{side}_events", "long", f"Number of {side} events.") for side in self.payloads),
            ("last_event_time", "timestamp", "Latest event time of the call, UTC."),
            (
                "status",
                "string",
                "closed once the wall clock has passed last_event_time plus gap and grace, else open.",
            ),
            ("closed_at", "timestamp", "Time at which the call was due to close, UTC; null while open."),
            ("was_closed", "boolean", "True once a row with this key has been closed, and therefore sent."),
            *(
                (f"{side}_place", _PLACE, f"Event time, partition and offset of the {side} payload.")
                for side in self.payloads
            ),
        )

    @property
    def closes_after(self) -> timedelta:
        """The delay from a call's last event until the call closes."""
        return timedelta(seconds=self.gap_s + self.grace_s + 1)

    def counted(self) -> Column:
        """Return an aggregate that adds up the events in parts of calls."""
        first, *others = (F.col(f"{side}_events") for side in self.payloads)
        return F.sum(sum(others, first))

    def events(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        """Return the rows of all silver tables as calls with one event each."""
        first, *others = (self._as_calls[own].of(frames[table]) for table, own in self.sides.items())
        for other in others:
            first = first.unionByName(other)
        return first

    @cached_property
    def _as_calls(self) -> Mapping[str, Columns]:
        """The columns of a call with one event, keyed by the event's payload column."""
        one, none = F.lit(1).cast("long"), F.lit(0).cast("long")
        parties = {name: F.col(name) for name in self.pair}
        times = dict.fromkeys(("ts", "last_event_time"), F.col("event_time"))
        found = {}
        for own in self.payloads:
            missing = F.lit(None).cast(_FOUND)
            payloads = {side: _found(side) if side == own else missing for side in self.payloads}
            events = {f"{side}_events": one if side == own else none for side in self.payloads}
            found[own] = Columns({**parties, **times, **payloads, **events})
        return found

    def pieces(self, clean: DataFrame) -> DataFrame:
        """Return the calls formed by the rows of a micro-batch alone, without the table's rows."""
        return self._joined(clean)

    def fold(self, partials: DataFrame, current: DataFrame, progress: EventTimeProgress) -> DataFrame:
        """Return calls that have new events or are due to close, and keys of calls that no longer exist."""
        due = by_reference(F.lit(shifted(progress.now, -self.closes_after)), F.col("last_event_time"))
        pairs = self._touched.of(partials).distinct()
        standing = current.join(pairs, list(self.pair), "left").withColumn("_due", due).where(_is_standing())
        olds = self._olds.of(standing)
        calls = self._joined(olds.unionByName(partials, allowMissingColumns=True)).withColumn("_due", due)
        return self._rows.of(calls.where(_has_changed())).select(*self.pair, "_row.*")

    def closed_by_now(self) -> Mapping[str, Column]:
        """Return the new column values for an open call that is due to close and has no new event."""
        return {
            "status": F.lit("closed"),
            "closed_at": F.col("last_event_time") + F.lit(self.closes_after),
            "was_closed": F.lit(True),
        }

    def _joined(self, parts: DataFrame) -> DataFrame:
        """Join parts of calls into calls. Each part extends from `ts` to `last_event_time`.

        A part starts a new call if it begins more than the gap after the end of all earlier parts. Parts from
        the table have their previous key and status in `old`, and each call gets a list of its parts' `old`
        values.
        """
        numbered = self._call.added_to(self._apart.added_to(parts))
        calls = self._calls_with_olds if "old" in parts.columns else self._calls
        return calls.of(numbered).drop("call")

    @cached_property
    def _touched(self) -> Columns:
        """The pairs to which the parts belong."""
        return Columns({name: F.col(name) for name in self.pair} | {"touched": F.lit(True)})

    @cached_property
    def _olds(self) -> Columns:
        """The table's rows as parts of calls."""
        names = (*self.pair, "ts", "last_event_time", *(f"{side}_events" for side in self.payloads))
        kept = {side: _kept(side) for side in self.payloads}
        old = F.struct("ts", "status", "was_closed")
        return Columns({name: F.col(name) for name in names} | kept | {"old": old})

    @cached_property
    def _apart(self) -> Columns:
        """1 if a part starts a new call, otherwise 0; null for the pair's first part."""
        before = Window.partitionBy(*self.pair).orderBy("ts").rowsBetween(Window.unboundedPreceding, -1)
        end = F.max("last_event_time").over(before) + F.expr(f"INTERVAL {self.gap_s} SECONDS")
        return Columns({"apart": (F.col("ts") > end).cast("int")})

    @cached_property
    def _call(self) -> Columns:
        """The number of a part's call within its pair; null for the pair's first part."""
        up_to = Window.partitionBy(*self.pair).orderBy("ts").rowsBetween(Window.unboundedPreceding, 0)
        return Columns({"call": F.sum("apart").over(up_to)})

    @cached_property
    def _calls(self) -> Grouped:
        """Calls whose parts are all new."""
        return self._grouped({})

    @cached_property
    def _calls_with_olds(self) -> Grouped:
        """Calls that include rows from the table among their parts."""
        return self._grouped({"olds": F.collect_list("old"), "has_new": F.bool_or(F.col("old").isNull())})

    def _grouped(self, more: Mapping[str, Column]) -> Grouped:
        ends = {"ts": F.min("ts"), "last_event_time": F.max("last_event_time")}
        payloads = {side: F.min(side) for side in self.payloads}
        events = {f"{side}_events": F.sum(f"{side}_events") for side in self.payloads}
        by = (*map(F.col, self.pair), F.coalesce("call", F.lit(0)).alias("call"))
        return Grouped(by, {**ends, **payloads, **events, **more})

    @cached_property
    def _rows(self) -> Columns:
        """A call's row, followed by a row marked as deleted for each key that the call no longer has."""
        gone = F.transform(F.filter("olds", lambda old: old["ts"] != F.col("ts")), self._gone)
        row = F.explode(F.concat(F.array(self._standing), gone))
        return Columns({name: F.col(name) for name in self.pair} | {"_row": row})

    @property
    def _standing(self) -> Column:
        """A joined call as a row in the table, without the pair's columns."""
        closed, becomes = _is_closed(), self.closed_by_now()
        was_closed = F.exists("olds", lambda old: (old["ts"] == F.col("ts")) & old["was_closed"])
        return self._row(
            {
                "ts": F.col("ts"),
                **{side: F.col(side).getField("payload") for side in self.payloads},
                **{f"{side}_events": F.col(f"{side}_events") for side in self.payloads},
                "last_event_time": F.col("last_event_time"),
                "status": F.when(closed, becomes["status"]).otherwise("open"),
                "closed_at": F.when(closed, becomes["closed_at"]),
                "was_closed": closed | was_closed,
                **{f"{side}_place": F.col(side).dropFields("payload") for side in self.payloads},
                DELETED: F.lit(False),
            }
        )

    def _gone(self, old: Column) -> Column:
        return self._row({"ts": old["ts"], DELETED: F.lit(True)})

    def _row(self, values: Mapping[str, Column]) -> Column:
        """Return all columns except the pair's as one struct. Columns without a value are null."""
        return F.struct(
            *(
                values.get(column.name, F.lit(None)).cast(column.dataType).alias(column.name)
                for column in self.schema
                if column.name not in self.pair
            ),
            values[DELETED].alias(DELETED),
        )


def _is_closed() -> Column:
    return F.col("last_event_time") <= F.col("_due")


@cache
def _is_standing() -> Column:
    """Return the condition for current rows that new events can change or that are due to close."""
    return F.col("touched") | ((F.col("status") == "open") & _is_closed())


@cache
def _has_changed() -> Column:
    old_open = F.exists("olds", lambda old: old["status"] == "open")
    return F.col("has_new") | (_is_closed() & old_open)


def _found(side: str) -> Column:
    place = F.struct("event_time", "partition", "offset", F.col(side).alias("payload"))
    return F.when(F.col(side).isNotNull(), place).cast(_FOUND)


def _kept(side: str) -> Column:
    place = F.col(f"{side}_place")
    fields = (place.getField(name).alias(name) for name in ("event_time", "partition", "offset"))
    kept = F.struct(*fields, F.col(side).alias("payload"))
    return F.when(F.col(side).isNotNull(), kept).cast(_FOUND)
