"""windowed_statistics: count, sum, minimum, maximum, mean, deviation and percentiles of a value per window.

topic ── silver.<stream> ─┬─ gold.<stream>_<length> ── topic, Redis
                          └─ …                            one per Windows
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import functions as F

from lakehouse.common.quantities import parse_duration_s
from lakehouse.streams.definition import (
    Comparison,
    Export,
    Field,
    FieldType,
    FoldState,
    GoldTable,
    Quantiles,
    RedisView,
    Source,
    Stream,
    only,
)
from lakehouse.streams.kinds.records import (
    Named,
    Records,
    fields_of,
    message_name_of,
    optional,
    pinned_name,
    refuse_columns,
    require_keys,
    source_of,
    topic_of,
    value_of,
)
from lakehouse.streams.messages.layout import Equals, Key, Millis, Plain, joined_key, key
from lakehouse.streams.transforms import statistics
from lakehouse.streams.transforms.nulls import FilledNulls
from lakehouse.streams.transforms.windows import StatisticsWindows, Tumbling, statistics_message
from lakehouse.streams.window_lengths import window_length

_ON_THE_WAY = ("_now", "recomputed")


@dataclass(frozen=True, kw_only=True)
class Windows:
    """A gold table with statistics per key and window.

    by             the fields in its key, all strings
    length         the length of its tumbling event-time windows: a duration, such as 1m, or day, week or
                   month
    zone           the time zone of days, weeks and months, such as Europe/Berlin; None: UTC
    absent         default values for optional key fields, by field name or column; silver keeps the null,
                   but the table gets the default. All other key fields are required
    gold_table     its name; by default `<stream>_<length>`, such as points_1m
    to             the topic for its rows; by default its name with hyphens; None: Redis only
    series         the message key; by default the key's values separated by colons
    merge_every    in a live run, how long rows may wait in silver before they are merged
    comment        a description of a row, shown in catalogs
    """

    by: Named | Sequence[Named]
    length: str
    zone: str | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    gold_table: str | None = None
    to: str | None = ""
    series: Key | None = None
    merge_every: str = "0s"
    comment: str = ""

    @property
    def fields(self) -> tuple[Field, ...]:
        """The key's fields."""
        instead = self.instead
        found = fields_of(self.by, FieldType.STRING)
        return tuple(optional(one) if one.column in instead else one for one in found)

    @property
    def instead(self) -> Mapping[str, str]:
        """The values that replace nulls in optional key columns. Raises ValueError for an unknown name."""
        found = fields_of(self.by, FieldType.STRING)
        columns = {name: one.column for one in found for name in (one.name, one.column)}
        if unknown := sorted(self.absent.keys() - columns.keys()):
            names = ", ".join(one.name for one in found)
            raise ValueError(
                f"`absent` lists names that are not fields of the key: {', '.join(unknown)}; "
                f"the key has {names}"
            )
        return {columns[name]: value for name, value in self.absent.items()}


def windowed_statistics(
    name: str,
    records: str | Records,
    *,
    value: Named,
    windows: Windows | Sequence[Windows],
    grace: str = "1m",
    idle_after: str = "5m",
    quantile_k: int = 1600,
) -> Stream:
    """Return a stream that maintains statistics of `value`, a double, per key and window.

    name        the stream's name, and by default the name of its bronze and silver tables
    records     the topic, or Records
    windows     the keys and window lengths, one for each gold table
    grace       how long after its end, in event time, a window becomes final
    idle_after  once no event has arrived for this long, the wall clock decides instead
    quantile_k  the size of the sketches: exact up to k values, beyond that with a rank error within
                2.446 / k^0.9433

    Gold has one row per key and window; see `lakehouse.streams.transforms.windows.StatisticsWindows`. The
    order of records and the boundaries of micro-batches do not affect the rows. For each value of the
    key's last field, Redis stores the latest window for every combination of the other fields.
    """
    tables = (windows,) if isinstance(windows, Windows) else tuple(windows)
    measured = value_of(value, FieldType.DOUBLE)
    for table in tables:
        lacking = [one for one in table.fields if one.column not in table.instead]
        require_keys(lacking, "give it a default in `absent`")
    refuse_columns((one for table in tables for one in table.fields), _ON_THE_WAY)
    source = source_of(name, records, _in_order(measured, tables))
    pinned = {pinned_name(name, "quantile_k"): str(quantile_k)}
    late_s, idle_s = parse_duration_s(grace), parse_duration_s(idle_after)
    kept = (
        _table(
            one,
            source,
            StatisticsWindows(
                Tumbling(tuple(field.column for field in one.fields), window_length(one.length, one.zone)),
                grace_s=late_s,
                quantile_k=quantile_k,
                idle_after_s=idle_s,
                value=measured.column,
            ),
            pinned,
        )
        for one in tables
    )
    return Stream(name, (source,), tuple(kept))


def _in_order(measured: Field, tables: Sequence[Windows]) -> tuple[Field, ...]:
    """Return the fields of all tables, required fields first."""
    every = {one.name: one for table in tables for one in table.fields}
    required = [one for one in every.values() if one.required]
    return (*required, measured, *(one for one in every.values() if not one.required))


def _table(table: Windows, source: Source, kept: StatisticsWindows, pinned: Mapping[str, str]) -> GoldTable:
    columns, window = kept.windows.by, kept.windows.length
    name = table.gold_table or f"{source.table}_{window.label}"
    series = table.series or joined_key(*columns)
    others = columns[:-1] or columns
    comment = f"One row per {', '.join(columns)} and {window.label} window, with statistics."
    return GoldTable(
        name=name,
        comment=table.comment or comment,
        reads=(source.table,),
        combine=FilledNulls(table.instead) if table.instead else only,
        keys=kept.windows.keys,
        schema=kept.schema,
        time_columns=("window_start", "window_start"),
        window=window,
        merge_every_s=parse_duration_s(table.merge_every),
        preaggregate=kept.preaggregate,
        fold=kept.fold,
        clock=kept.clock(),
        pinned_settings=pinned,
        comparison=Comparison(
            ignored=("sketch",),
            slack=statistics.slack,
            quantiles=(
                Quantiles(
                    value=kept.value,
                    ranks=statistics.PERCENTILES,
                    keyed=kept.keyed,
                    exact_to=kept.quantile_k,
                    limit=statistics.rank_error_limit(kept.quantile_k),
                ),
            ),
        ),
        needs_recompute=kept.needs_recompute,
        state=FoldState(
            tuple(statistics.FOR_MERGES.names),
            until="window_end",
            settled=lambda: F.col("is_final"),
            unsettled_from=kept.unsettled_from,
        ),
        final=Equals("is_final", True),
        export=Export(
            topic=topic_of(table.to, name),
            key=series,
            identity=("windowStart",),
            value=statistics_message({message_name_of(one): one.column for one in table.fields}),
            redis=RedisView(
                row_key=series + key(":", Millis("window_start")),
                group=key(Plain(columns[-1])) if len(columns) > 1 else key("all"),
                member=key(Plain(others[0])) if len(others) == 1 else joined_key(*others),
                order=Millis("window_start"),
            ),
        ),
    )
