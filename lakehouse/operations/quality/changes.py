"""Incremental checks for a live gate: a table's changes show whether it still meets its expectations.

If a table met its expectations at one version, it also meets them at a later version if
- every row whose key is in the change feed between the two versions meets every condition,
- the `step` of each query returns no such row (`lakehouse.streams.suites.no_rows`), and
- no row was removed from the other tables that the steps name.

Changed rows are read by key, and rows near them by time or number, both with data skipping. A result of False
only means that the whole table must be checked: the feed or the log might be gone, the table might have been
recreated, or a changed row might be wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from great_expectations import ExpectationSuite
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, LongType, TimestampType

from lakehouse.common.errors import TableError
from lakehouse.operations.quality.subjects import CHANGES, LIMITS_VIEW, PinnedTables, Subject, showing, words
from lakehouse.storage.spark.execution import Amount, amount_of, execute_for, executing_for
from lakehouse.storage.tables import from_micros
from lakehouse.storage.tables.pruning import MOST_SPANS, merged
from lakehouse.streams.definition import MergedTable
from lakehouse.streams.suite_internals import ExpectNoRows, ExpectRowsToMeet

Marks = Mapping[str, tuple[str, int]]
"""Each table's id and version, keyed by table name."""
Suites = Sequence[tuple[Subject, ExpectationSuite]]

_BATCH = "changed_rows"
_MINUTE_US = 60_000_000
_NUMBERS = 10_000


def marks_of(pinned: PinnedTables) -> Marks:
    """Return the ids and versions of the pinned tables."""
    return {name: (pinned.ids[name], version) for name, version in pinned.versions.items()}


def without_step(suite: ExpectationSuite) -> ExpectationSuite:
    """Return a suite with only the expectations that need the whole table in every check."""
    rest = [
        one
        for one in suite.expectations
        if not isinstance(one, ExpectRowsToMeet) and not (isinstance(one, ExpectNoRows) and one.step)
    ]
    return ExpectationSuite(name=suite.name, expectations=rest)


def can_go_on(pinned: PinnedTables, suites: Suites) -> bool:
    """Return whether later checks can be incremental: no query's `step` currently returns a row."""
    with pinned.executing():
        for subject, suite in suites:
            stricter = [one for one in _steps(suite) if one.step != one.unexpected_rows_query]
            views = {_BATCH: pinned.rows(subject)}
            if not all(_finds_nothing(pinned, one, views, pinned.versions) for one in stricter):
                return False
    return True


def go_on_holding(pinned: PinnedTables, held: Marks, suites: Suites, kept: Mapping[str, MergedTable]) -> bool:
    """Return whether the changes prove that the tables still meet their expectations.

    False means that whole tables must be checked. `held` contains the tables' ids and versions from the last
    time when the tables met their expectations and `can_go_on` returned True. `kept` contains the gold tables
    whose change feeds are read, keyed by name.
    """
    now = marks_of(pinned)
    if now.keys() != held.keys() or any(
        now[name][0] != table_id or now[name][1] < version for name, (table_id, version) in held.items()
    ):
        return False
    since = _Since(pinned, {name: version for name, (_, version) in held.items()}, kept)
    try:
        with executing_for(pinned.spark, Amount.FEW):
            return since.lost_nothing(suites) and all(since.holds(*one) for one in suites)
    except (PySparkException, Py4JJavaError, TableError, OverflowError):  # for example, the feed is missing
        return False
    finally:
        since.forget()


@dataclass(frozen=True)
class _Changed:
    """The keys in a table's change feed, and the current rows with these keys. Both frames are persisted."""

    keys: DataFrame
    rows: DataFrame


class _Since:
    """Pinned tables and their changes since the versions in `held`."""

    def __init__(
        self, pinned: PinnedTables, held: Mapping[str, int], kept: Mapping[str, MergedTable]
    ) -> None:
        self._pinned = pinned
        self._held = held
        self._kept = kept
        self._found: dict[str, _Changed] = {}

    def lost_nothing(self, suites: Suites) -> bool:
        """Return whether no row was removed from the tables that steps name."""
        named = words("\n".join(str(one.step) for _, suite in suites for one in _steps(suite)))
        return all(
            self._has_all(subject)
            for subject in self._pinned.subjects
            if subject.view in named and subject.name in self._held
        )

    def holds(self, subject: Subject, suite: ExpectationSuite) -> bool:
        """Return whether the changed rows meet the conditions, and no step returns a changed row."""
        if not self._has_changed(subject):
            return True
        steps = _steps(suite)
        conditions = [one.condition for one in suite.expectations if isinstance(one, ExpectRowsToMeet)]
        unmet = {f"_unmet_{n}": F.count_if(~F.expr(text)) for n, text in enumerate(conditions)}
        lie = {
            f"_near_{n}_{view}": _buckets(F.expr(first), F.expr(last), self._type_of(view, column))
            for n, one in enumerate(steps)
            for view, (column, first, last) in (one.near or {}).items()
        }
        rows = self._changed(subject).rows
        every = {"_rows": F.count(F.lit(1)), **unmet, **lie}
        (found,) = rows.agg(*(what.alias(name) for name, what in every.items())).collect()
        if any(found[name] for name in unmet):
            return False
        return all(
            _finds_nothing(
                self._pinned,
                one,
                {_BATCH: rows}
                | self._near(one, {view: found[f"_near_{n}_{view}"] for view in one.near or {}}),
                self._held,
            )
            for n, one in enumerate(steps)
        )

    def forget(self) -> None:
        """Unpersist the cached frames."""
        for found in self._found.values():
            found.rows.unpersist()
            found.keys.unpersist()

    def _has_changed(self, subject: Subject) -> bool:
        return self._pinned.versions[subject.name] > self._held[subject.name]

    def _has_all(self, subject: Subject) -> bool:
        """Return whether no row was removed.

        This means for gold that no key is missing, and for other layers that no commit has rewritten files.
        """
        if not self._has_changed(subject):
            return True
        if subject.spec.name in self._kept and subject.spec.layer == "gold":
            changed = self._changed(subject)
            return _with_keys(changed.keys, changed.rows, changed.keys.columns, "left_anti").isEmpty()
        return not any(entry.rewrites for entry in self._pinned.commits(subject, self._held[subject.name]))

    def _changed(self, subject: Subject) -> _Changed:
        if subject.name not in self._found:
            names = list(self._kept[subject.spec.name].keys)
            keys = self._pinned.changes(subject, self._held[subject.name]).select(*names).distinct().persist()
            types = {column.name: column.dataType for column in subject.spec.schema}
            by = next((name for name in names if _size_of(types[name]) is not None), None)
            where = F.lit(None) if by is None else _buckets(F.col(by), F.col(by), types[by])
            count, buckets = keys.agg(F.count(F.lit(1)), where).first() or (0, [])
            execute_for(self._pinned.spark, amount_of(rows=count))
            rows = self._pinned.rows(subject)
            if by is not None:  # null is a valid key value
                rows = rows.where(_within(F.col(by), buckets, types[by]) | F.col(by).isNull())
            self._found[subject.name] = _Changed(keys, _with_keys(rows, keys, names, "left_semi").persist())
        return self._found[subject.name]

    def _near(self, one: ExpectNoRows, found: Mapping[str, Any]) -> dict[str, DataFrame]:
        """Return the rows in other tables that are near the changed rows, keyed by view."""
        views = {}
        for view, (column, *_) in (one.near or {}).items():
            within = _within(F.col(column), found[view], self._type_of(view, column))
            views[view] = self._pinned.rows_or_none(self._subject(view)).where(within)
        return views

    def _subject(self, view: str) -> Subject:
        for one in self._pinned.subjects:
            if one.view == view:
                return one
        raise TableError(f"`near` names {view}, which the step does not read")

    def _type_of(self, view: str, column: str) -> DataType:
        return self._subject(view).spec.schema[column].dataType


def _steps(suite: ExpectationSuite) -> list[ExpectNoRows]:
    return [one for one in suite.expectations if isinstance(one, ExpectNoRows) and one.step]


def _finds_nothing(
    pinned: PinnedTables,
    one: ExpectNoRows,
    views: Mapping[str, DataFrame],
    after: Mapping[str, int],
) -> bool:
    """Return whether the `step` returns no row. Tables that are not in `views` are read in full.

    `after` maps tables to versions. A table's change feed is read from the version that follows, by default
    from version 1.
    """
    step = str(one.step)
    named, shown = words(step), dict(views)
    for subject in pinned.subjects:
        if subject.view in named and subject.view not in shown:
            shown[subject.view] = pinned.rows_or_none(subject)
        if subject.view + CHANGES in named:
            shown[subject.view + CHANGES] = pinned.changes(subject, after.get(subject.name, 0))
    if LIMITS_VIEW in named:
        shown[LIMITS_VIEW] = pinned.limits
    with showing(pinned.spark, shown):
        return pinned.spark.sql(step.format(batch=_BATCH)).isEmpty()


def _with_keys(rows: DataFrame, keyed: DataFrame, names: Sequence[str], how: str) -> DataFrame:
    """Join two frames on the given keys. Nulls count as equal."""
    others = keyed.select(*(F.col(name).alias(f"_key_{name}") for name in names))
    same = (F.col(name).eqNullSafe(F.col(f"_key_{name}")) for name in names)
    return rows.join(others, reduce(Column.__and__, same), how)


def _size_of(type_: DataType) -> int | None:
    """Return the bucket width for a timestamp (in microseconds) or long column, or None for other types."""
    if isinstance(type_, TimestampType):
        return _MINUTE_US
    return _NUMBERS if isinstance(type_, LongType) else None


def _buckets(first: Column, last: Column, type_: DataType) -> Column:
    """Return an aggregate that collects the first and last bucket of each row's range."""
    size = _size_of(type_)
    if size is None:
        raise TableError(f"`near` needs a column of type timestamp or long, not {type_.simpleString()}")
    ends = (F.unix_micros(end) if isinstance(type_, TimestampType) else end for end in (first, last))
    begins, is_last = (end - F.pmod(end, F.lit(size)) for end in ends)
    return F.collect_set(F.when(begins <= is_last, F.struct(begins, is_last)))


def _within(column: Column, buckets: Iterable[tuple[int, int]], type_: DataType) -> Column:
    """Return the condition that a column is in one of the buckets.

    If there are too many buckets, the condition covers their whole span.
    """
    size = _size_of(type_) or 1
    spans = merged((first, last + size) for first, last in buckets)
    if len(spans) > MOST_SPANS:
        spans = [(spans[0][0], spans[-1][1])]
    if isinstance(type_, TimestampType):
        moments = [(from_micros(first), from_micros(end)) for first, end in spans]
        inside = [(column >= F.lit(first)) & (column < F.lit(end)) for first, end in moments]
    else:
        inside = [(column >= first) & (column < end) for first, end in spans]
    return reduce(Column.__or__, inside, F.lit(False))
