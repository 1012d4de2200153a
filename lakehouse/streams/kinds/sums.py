"""windowed_sums: the sum and count of exact amounts per key and tumbling window.

topic ── silver.<stream> ── gold.<stream>_<length> ── topic, Redis
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.storage.tables import described
from lakehouse.streams.definition import (
    EventTimeProgress,
    Export,
    Field,
    FieldType,
    GoldTable,
    RedisView,
    Rule,
    Stream,
)
from lakehouse.streams.kinds.records import (
    Named,
    Records,
    json_name_of,
    keys_of,
    message_name_of,
    source_of,
    topic_of,
    value_of,
)
from lakehouse.streams.messages.layout import Exact, Message, Millis, Plain, joined_key, key
from lakehouse.streams.transforms import decimals
from lakehouse.streams.transforms.windows import WINDOW_COLUMNS, Tumbling
from lakehouse.streams.window_lengths import window_length

_ON_THE_WAY = ("coming", "more", "recomputed", "standing")


def windowed_sums(
    name: str,
    records: str | Records,
    *,
    by: Named | Sequence[Named],
    value: Named,
    length: str,
    zone: str | None = None,
    signed: bool = False,
    gold_table: str | None = None,
    to: str | None = "",
    group: str = "all",
    comment: str = "",
) -> Stream:
    """Return a stream that adds up `value`, an exact decimal, per window and key.

    name        the stream's name, and by default the name of its bronze and silver tables
    records     the topic, or Records
    by          the fields in the key, all strings
    length      the length of the tumbling event-time windows: a duration, such as 5m, or day, week or month
    zone        the time zone of days, weeks and months, such as Europe/Berlin; None: UTC
    signed      whether amounts may be zero or negative; if not, such records become dead letters under the
                rule not_positive
    gold_table  the gold table's name; by default `<stream>_<length>`, such as payments_5m
    to          the topic for its rows; by default its name with hyphens; None: Redis only
    group       the name under which Redis stores the latest window for each key

    Gold has one row per key and window: the key, window_start and window_end (UTC, end exclusive),
    total_<value> (null if it does not fit in decimal(38,9)) and count. The order of records and the
    boundaries of micro-batches do not affect the rows.
    """
    keys, amount = keys_of(by, _ON_THE_WAY), value_of(value, FieldType.DECIMAL)
    window = window_length(length, zone)
    sums = _Sums(Tumbling(tuple(one.column for one in keys), window), amount.column, signed=signed)
    rules = tuple if signed else lambda: (_positive(amount),)
    source = source_of(name, records, (*keys, amount), rules=rules)
    table = gold_table or f"{source.table}_{window.label}"
    names = {message_name_of(one): one.column for one in keys}
    start = Millis("window_start")
    member = joined_key(*names.values()) if len(names) > 1 else key(Plain(keys[0].column))
    kept = GoldTable(
        name=table,
        comment=comment or f"One row per {', '.join(names)} and {window.label} window, with the total.",
        reads=(source.table,),
        keys=sums.windows.keys,
        schema=sums.schema,
        time_columns=("window_start", "window_start"),
        window=window,
        preaggregate=sums.preaggregate,
        fold=sums.fold,
        needs_recompute=sums.needs_recompute if signed else None,
        totals={sums.total: "count"},
        export=Export(
            topic=topic_of(to, table),
            key=member,
            identity=("windowStart",),
            value=sums.message(names),
            redis=RedisView(
                row_key=joined_key(*names.values(), start),
                group=key(group),
                member=member,
                order=start,
            ),
        ),
    )
    return Stream(name, (source,), (kept,))


def _positive(amount: Field) -> Rule:
    value = F.col(amount.column)
    message = F.concat(F.lit(f"{amount.name} must be above 0, not "), value.cast("variant").cast("string"))
    return Rule("not_positive", amount.column, value <= 0, message)


@dataclass(frozen=True)
class _Sums:
    """The transformations for a table of windowed sums. With `signed`, amounts may be zero or negative."""

    windows: Tumbling
    value: str
    signed: bool

    @property
    def total(self) -> str:
        """The column with the sum."""
        return f"total_{self.value}"

    @cached_property
    def schema(self) -> StructType:
        """One row per key and window."""
        return described(
            *((name, "string", "Part of the key by which amounts are grouped.") for name in self.windows.by),
            *WINDOW_COLUMNS,
            (self.total, decimals.TYPE, "Sum of the amounts; null if it does not fit in decimal(38,9)."),
            ("count", "long", "Number of amounts, at least one."),
        )

    def message(self, names: dict[str, str]) -> Message:
        """Return the message for a row. `names` maps the key's columns to their JSON names."""
        return Message(
            {
                **{name: Plain(column) for name, column in names.items()},
                "windowStart": Millis("window_start"),
                "windowEnd": Millis("window_end"),
                json_name_of(self.total): Exact(self.total),
                "count": Plain("count"),
            }
        )

    def preaggregate(self, clean: DataFrame) -> DataFrame:
        """Return the total and count of each window over a micro-batch's clean rows, one row per key.

        Each task adds up its own rows before the shuffle, so even a key with half of the records shuffles no
        more rows than other keys.
        """
        partials = clean.groupBy(*self.windows.by, self.windows.start().alias("window_start")).agg(
            self._sum().alias(self.total), F.count(F.lit(1)).alias("count")
        )
        return partials.withColumn("recomputed", F.lit(False)) if self.signed else partials

    def fold(self, partials: DataFrame, current: DataFrame, _progress: EventTimeProgress) -> DataFrame:
        """Return the windows that have new amounts, with the amounts added."""
        columns = [*self.windows.keys, self.total, "count"]
        standing = current.select(*columns, F.lit(False).alias("more"))
        coming = partials.select(*columns, F.lit(True).alias("more"))
        return (
            standing.unionByName(coming)
            .groupBy(*self.windows.keys)
            .agg(
                F.bool_or("more").alias("more"),
                self._sum_of_totals().alias(self.total),
                F.sum("count").alias("count"),
            )
            .where("more")
            .withColumn("window_end", self.windows.end())
            .select(*self.schema.names)
        )

    def needs_recompute(self, partials: DataFrame, current: DataFrame) -> DataFrame:
        """Return the keys whose current or new total is null because it does not fit in its type.

        The sum of the two totals can still fit.
        """
        keys = list(self.windows.keys)
        coming = partials.select(*keys, F.col(self.total).alias("coming"))
        both = current.select(*keys, F.col(self.total).alias("standing")).join(coming, keys)
        return both.where(F.col("standing").isNull() | F.col("coming").isNull()).select(*keys)

    def _sum(self) -> Column:
        return decimals.total(self.value) if self.signed else decimals.total_of_positive(self.value)

    def _sum_of_totals(self) -> Column:
        if not self.signed:
            return decimals.total_of_positive(self.total)
        return F.when(F.count_if(F.col(self.total).isNull()) == 0, decimals.total(self.total))
