"""sql: named aggregates of selected rows, per key and tumbling window or per key alone.

topic ── silver.<stream> ─┬─ gold.<stream>_<length> ── topic, Redis
                          └─ …                            one per Aggregates
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from lakehouse.storage.spark.columns import Columns
from lakehouse.streams.column_types import DECIMAL, SPARK_TYPES
from lakehouse.streams.contract import MOST_MAGNITUDE
from lakehouse.streams.definition import (
    Comparison,
    Export,
    Field,
    FieldType,
    GoldTable,
    Quantiles,
    RedisView,
    Rule,
    Source,
    Stream,
    only,
)
from lakehouse.streams.expressions import expression, refused_words
from lakehouse.streams.kinds.records import (
    Named,
    Records,
    field_of,
    fields_of,
    json_name_of,
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
    OfColumns,
    Plain,
    Value,
    joined_key,
    key,
)
from lakehouse.streams.transforms import aggregates as functions
from lakehouse.streams.transforms import statistics
from lakehouse.streams.transforms.aggregated import ROW_COUNT, STATE, AggregatedRows
from lakehouse.streams.transforms.aggregates import LONG, STRING, TIME, Aggregate
from lakehouse.streams.window_lengths import WindowLength, window_length

_NAMES = {
    FieldType.STRING: "a string",
    FieldType.LONG: "a 64-bit integer",
    FieldType.DOUBLE: f"a number from {-MOST_MAGNITUDE:.0e} to {MOST_MAGNITUDE:.0e}",
    FieldType.DECIMAL: f"a {DECIMAL.simpleString()}",
    FieldType.BOOLEAN: "a boolean",
}
_OF_KEYS = (STRING, LONG)
_LAST = "last_event_time"
_ON_THE_WAY = (STATE, _LAST, "recomputed", "window_start", "window_end", "event_time", "partition", "offset")
_LONGEST = len("false")


@dataclass(frozen=True)
class Selected:
    """A column that an SQL expression computes from the other columns of a row, and its type."""

    sql: str
    type: FieldType


@dataclass(frozen=True, kw_only=True)
class Aggregates:
    """A gold table with aggregates per key, or per key and window.

    by           the fields in its key, or their columns, or columns of `select`: strings and whole numbers
    aggregates   its columns, each with an aggregate such as `sum(amount)` of a column; see
                 `lakehouse.streams.transforms.aggregates`
    select       columns that SQL expressions compute from the columns of a row
    where        an SQL condition: only rows for which it is true are aggregated
    length       the length of its tumbling event-time windows: a duration, such as 1h, or day, week or month;
                 None: one row per key
    zone         the time zone of days, weeks and months, such as Europe/Berlin; None: UTC
    gold_table   its name; by default `<stream>_<length>`, or `<stream>_by_<key>` without windows
    to           the topic for its rows; by default its name with hyphens; None: Redis only
    group        the name under which Redis stores the latest row for each key
    comment      a description of a row, shown in catalogs
    """

    by: Named | Sequence[Named]
    aggregates: Mapping[str, str]
    select: Mapping[str, Selected] = field(default_factory=dict)
    where: str | None = None
    length: str | None = None
    zone: str | None = None
    gold_table: str | None = None
    to: str | None = ""
    group: str = "all"
    comment: str = ""


def sql(name: str, records: str | Records, *, tables: Aggregates | Sequence[Aggregates]) -> Stream:
    """Return a stream that aggregates rows as its tables declare.

    name     the stream's name, and by default the name of its bronze and silver tables
    records  the topic, or Records, whose fields can be selected and aggregated
    tables   the gold tables

    Gold has one row per key and window (UTC, end exclusive), or per key. Its columns are the key, the
    aggregates, and `state`, which only merges need. A table without windows also has `last_event_time`, the
    latest event time (UTC) of its rows. The order of records and the boundaries of micro-batches do not
    affect the rows, except that means and deviations of doubles have floating-point accuracy, and percentiles
    a bounded rank error. A record becomes a dead letter under the rule `not_computable` if the result of an
    expression does not fit its type, or if its key is null. An expression that fails stops silver, and the
    error names the record.
    Raises ValueError for an unknown column or function, and for an expression that is not deterministic.
    """
    given = Records(records) if isinstance(records, str) else records
    several = (tables,) if isinstance(tables, Aggregates) else tables
    every = [replace(table, by=tuple(_by_name(table, given.also))) for table in several]
    named = {one.name: one for one in given.also}
    keys = dict[str, Field]()
    for place, table in enumerate(every):
        for one in fields_of(table.by, FieldType.STRING):
            is_new = one.name not in named and one.name not in table.select
            if is_new and keys.setdefault(one.name, one) != one:
                raise ValueError(
                    f"tables[{place}].by: an earlier table declares field {one.name} differently: declare it "
                    "once, in `fields`"
                )
    types = {one.column: SPARK_TYPES[one.type] for one in (*keys.values(), *given.also)}
    fields = {**keys, **named}
    made = [_Table.of(name, place, table, types, fields) for place, table in enumerate(every)]
    source = source_of(
        name, records, keys.values(), rules=lambda: tuple(rule for one in made for rule in one.rules())
    )
    return Stream(name, (source,), tuple(one.gold(source) for one in made))


@dataclass(frozen=True)
class _Table:
    """A declared table, checked. `names` maps the columns of its key to their JSON names."""

    stream: str
    at: str
    declared: Aggregates
    types: Mapping[str, DataType]
    names: Mapping[str, str]
    aggregates: Mapping[str, Aggregate]
    window: WindowLength | None

    @classmethod
    def of(
        cls,
        stream: str,
        place: int,
        declared: Aggregates,
        types: Mapping[str, DataType],
        fields: Mapping[str, Field],
    ) -> _Table:
        """Check a declaration against the columns of silver. Raises a ValueError that names the key."""
        at = f"tables[{place}]"
        _check_select(at, declared, types)
        if declared.length is not None and "window_start" in map(str.lower, types):
            raise ValueError(f"{at}.length: assign the field with the column window_start to another column")
        every = {**types, **{name: SPARK_TYPES[one.type] for name, one in declared.select.items()}}
        by = dict(_keys(at, declared, fields))
        for column in by:
            if every[column] not in _OF_KEYS:
                said = every[column].simpleString()
                raise ValueError(f"{at}.by: {column} is a {said}; expected a string or a whole number")
        every["event_time"], made = TIME, dict[str, Aggregate]()
        for column, written in declared.aggregates.items():
            if column.lower() in {*by, *_ON_THE_WAY}:
                raise ValueError(f"{at}.aggregates.{column}: the name {column} is taken; choose another name")
            try:
                made[column] = functions.aggregate_of(written, every)
            except ValueError as error:
                raise ValueError(f"{at}.aggregates.{column}: {error}") from None
        if declared.length is None:
            made.setdefault(_LAST, functions.aggregate_of("max(event_time)", every))
        if not declared.aggregates:
            raise ValueError(f"{at}.aggregates: expected at least one aggregate, such as n = 'count(*)'")
        return cls(stream, at, declared, every, by, made, _window(at, declared))

    def key(self, name: str) -> str:
        """Return the full name of one of the table's settings."""
        return f"streams.{self.stream}.{self.at}.{name}"

    @property
    def name(self) -> str:
        """The gold table's name without the stream's."""
        return f"by_{'_and_'.join(self.names)}" if self.window is None else self.window.label

    @cached_property
    def kept(self) -> AggregatedRows:
        """The table's transformations."""
        by = {column: self.types[column] for column in self.names}
        return AggregatedRows(by, self.window, self.aggregates)

    def rules(self) -> Iterator[Rule]:
        """Yield the rules for records whose expressions have no usable result.

        Silver evaluates each expression here, so it cannot fail for a clean row in gold.
        """
        for column, one in self.declared.select.items():
            where = self.key(f"select.{column}")
            found = expression(one.sql, where)
            kept, is_key = _fitting(found, one.type), column in self.names
            violated = kept.isNull() if is_key else found.isNotNull() & kept.isNull()
            value = F.coalesce(found.cast("variant").cast("string"), F.lit("null"))
            message = F.concat(F.lit(f"{column} ({one.sql}) must be {_NAMES[one.type]}, not "), value)
            yield Rule("not_computable", column, violated, message, where)
        if self.declared.where is not None:
            where = self.key("where")
            met = expression(self.declared.where, where)
            # Never true, but evaluated. A `when`, unlike other operators, refuses text as a condition.
            violated = F.when(met, F.lit(False)).otherwise(F.length(met.cast("string")) > _LONGEST)
            yield Rule("not_computable", "where", violated, F.lit("the condition failed"), where)

    def gold(self, source: Source) -> GoldTable:
        """Return the gold table."""
        declared, kept = self.declared, self.kept
        table = declared.gold_table or f"{source.table}_{self.name}"
        windowed = self.window is not None
        start: tuple[OfColumns, ...] = (Millis("window_start"),) if windowed else ()
        parts = [column if self.types[column] == STRING else Plain(column) for column in self.names]
        member = joined_key(*parts) if len(parts) > 1 else key(Plain(next(iter(self.names))))
        slack = {name: one.slack for name, one in self.aggregates.items() if one.slack is not None}
        grain = f"One row per {', '.join(self.names)}"
        return GoldTable(
            name=table,
            comment=declared.comment
            or (f"{grain}." if self.window is None else f"{grain} and {self.window.label} window."),
            reads=(source.table,),
            keys=kept.keys,
            schema=kept.schema,
            time_columns=("window_start", "window_start") if windowed else None,
            window=self.window,
            combine=_Selection(self) if declared.select or declared.where else only,
            preaggregate=kept.preaggregate,
            counted=lambda: F.sum(ROW_COUNT),
            fold=kept.fold,
            needs_recompute=kept.needs_recompute if kept.totals else None,
            totals={f"{STATE}.{name}": ROW_COUNT for name in kept.totals},
            pinned_settings={pinned_name(self.stream, "tables"): self._pinned},
            comparison=Comparison(
                present=tuple(f"{STATE}.{part.name}" for part in kept.parts if not part.is_exact),
                slack=lambda: {name: of(F.col(STATE)) for name, of in slack.items()},
                quantiles=tuple(self._quantiles()),
            ),
            export=Export(
                topic=topic_of(declared.to, table),
                key=member,
                identity=("windowStart",) if windowed else (),
                value=self._message,
                redis=RedisView(
                    row_key=joined_key(*parts, *start) if len(parts) > 1 or windowed else member,
                    group=key(declared.group),
                    member=member,
                    order=Millis("window_start") if windowed else Constant(0),
                ),
            ),
        )

    @property
    def _pinned(self) -> str:
        """The parts of the declaration that determine the rows."""
        select = {name: [one.sql, one.type.value] for name, one in self.declared.select.items()}
        settings = {
            "where": self.declared.where,
            "select": select,
            "aggregates": dict(self.declared.aggregates),
        }
        return json.dumps(settings, sort_keys=True)

    @property
    def _message(self) -> Message:
        values: dict[str, Value] = {name: Plain(column) for column, name in self.names.items()}
        if self.window is not None:
            values |= {"windowStart": Millis("window_start"), "windowEnd": Millis("window_end")}
        for column, one in self.aggregates.items():
            name = json_name_of(column)
            if name in values:
                raise ValueError(
                    f"{self.at}.aggregates.{column}: messages already have a value {name}; choose another "
                    "name"
                )
            values[name] = _value(column, one.type)
        return Message(values)

    def _quantiles(self) -> Iterator[Quantiles]:
        ranks: dict[str, dict[str, float]] = defaultdict(dict)
        for name, one in self.aggregates.items():
            if one.percentile is not None:
                ranks[one.percentile.column][name] = one.percentile.rank
        for column, of_column in ranks.items():
            yield Quantiles(
                value=column,
                ranks=of_column,
                keyed=self.kept.keyed,
                exact_to=functions.QUANTILE_K,
                limit=statistics.rank_error_limit(functions.QUANTILE_K),
                count=f"{STATE}.count_{column}",
            )


def _window(at: str, declared: Aggregates) -> WindowLength | None:
    """Return the length of the table's windows, if any. Raises a ValueError that names the key."""
    if declared.length is not None:
        try:
            return window_length(declared.length, declared.zone)
        except ValueError as error:
            raise ValueError(f"{at}.length: {error}") from None
    if declared.zone is not None:
        raise ValueError(f"{at}.zone: the table has no windows; set length to day, week or month")
    return None


def _value(column: str, type_: DataType) -> Value:
    if type_ == DECIMAL:
        return Exact(column)
    return Millis(column) if type_ == TIME else Plain(column)


def _by_name(table: Aggregates, fields: Sequence[Field]) -> Iterator[Named]:
    """Yield the fields in a table's key. The column of a declared field stands for this field."""
    named, columns = {one.name for one in fields}, {one.column: one.name for one in fields}
    for one in fields_of(table.by, FieldType.STRING):
        is_column = one.name not in {*named, *table.select} and one == field_of(one.name, FieldType.STRING)
        yield columns.get(one.name, one) if is_column else one


def _keys(at: str, declared: Aggregates, fields: Mapping[str, Field]) -> Iterator[tuple[str, str]]:
    """Yield each key column with its JSON name. Raises ValueError for an optional field."""
    for one in fields_of(declared.by, FieldType.STRING):
        if one.name in declared.select:
            yield one.name, json_name_of(one.name)
            continue
        found = fields[one.name]
        try:
            require_keys((found,), "make it required, or give it a default with coalesce in `select`")
            refuse_columns((found,), _ON_THE_WAY)
        except ValueError as error:
            raise ValueError(f"{at}.by: {error}") from None
        yield found.column, message_name_of(found)


def _check_select(at: str, declared: Aggregates, types: Mapping[str, DataType]) -> None:
    """Raise ValueError for a name that is taken, and for an expression that is not deterministic."""
    columns, taken = {*types, "event_time"}, {*(one.lower() for one in types), *_ON_THE_WAY}
    for name in declared.select:
        if name.lower() in taken:
            raise ValueError(f"{at}.select.{name}: the name {name} is taken; choose another name")
        taken.add(name.lower())
    written = {f"{at}.select.{name}": one.sql for name, one in declared.select.items()}
    if declared.where is not None:
        written[f"{at}.where"] = declared.where
    for where, text in written.items():
        for word, reason in refused_words(text, columns):
            raise ValueError(f"{where}: {word} is not allowed in an expression, because {reason}")


@dataclass(frozen=True)
class _Selection:
    """Selects the rows that a table aggregates, and adds the computed columns."""

    table: _Table

    def __call__(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        """Return the selected rows of the only silver table, with the computed columns."""
        rows, condition = only(frames), self._condition
        rows = rows if condition is None else rows.where(condition)
        return self._computed.added_to(rows) if self.table.declared.select else rows

    @cached_property
    def _condition(self) -> Column | None:
        where = self.table.declared.where
        return None if where is None else expression(where, self.table.key("where"))

    @cached_property
    def _computed(self) -> Columns:
        selected = self.table.declared.select
        return Columns(
            {
                name: _fitting(expression(one.sql, self.table.key(f"select.{name}")), one.type)
                for name, one in selected.items()
            }
        )


def _fitting(found: Column, type_: FieldType) -> Column:
    """Return an expression's result in its declared type, or null if it does not fit.

    As in a contract, NaN and infinities do not fit in a double.
    """
    kept = found.try_cast(SPARK_TYPES[type_])
    return F.when(F.abs(kept) <= MOST_MAGNITUDE, kept) if type_ is FieldType.DOUBLE else kept
