"""The tables to check, pinned to consistent versions, and the views that a suite's queries use."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cached_property

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.common.errors import TableError, first_line
from lakehouse.engine.layers import bronze, gold, silver
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.spark.execution import Amount, executing_for
from lakehouse.storage.tables import Lake, TableSpec
from lakehouse.storage.tables import delta_internals as delta
from lakehouse.storage.tables.entries import LogEntry
from lakehouse.streams.definition import OWN_SUITES, MergedTable, Source, Stream

LAYERS = ("bronze", "silver", "gold")
LIMITS = (
    StructType()
    .add("now", "timestamp")
    .add("sales_threshold", "decimal(38,9)")
    .add("future_tolerance_s", "integer")
)
_SALES_THRESHOLD = "streams.sales.threshold"
_FEED_AGE = timedelta(days=1)
CHANGES = "_changes"
LIMITS_VIEW = "limits"
_LAST = "last_event_time"


@dataclass(frozen=True)
class Subject:
    """A table that can have a suite: its spec and its time column, or None if its rows have no time.

    `suites` is the package that contains the table's suite. `declared` is the stream's declaration of the
    table, or None if the table belongs to no stream.
    """

    spec: TableSpec
    time: str | None
    suites: str = OWN_SUITES
    declared: Source | MergedTable | None = None

    @property
    def name(self) -> str:
        """The table's SQL name: layer.table."""
        return self.spec.qualified_name

    @property
    def view(self) -> str:
        """The name of the table's view in suite queries."""
        return f"{self.spec.layer}_{self.spec.name}"


def subjects(streams: Sequence[Stream]) -> list[Subject]:
    """Return the tables of the streams and the table of dead letters, from bronze to gold."""
    sources = [(source, stream.suites) for stream in streams for source in stream.sources]
    kept = [(table, stream.suites) for stream in streams for table in stream.tables]
    return [
        *(Subject(bronze.spec(source), "ingested_at", suites, source) for source, suites in sources),
        *(Subject(silver.spec(source), "event_time", suites, source) for source, suites in sources),
        Subject(DEAD_LETTERS, "last_attempt"),
        *(Subject(gold.spec(table), _time_of(table), suites, table) for table, suites in kept),
    ]


def _time_of(table: MergedTable) -> str | None:
    if table.time_columns is not None:
        return table.time_columns[1]
    return _LAST if _LAST in table.schema.names else None


class PinnedTables:
    """A lake's tables pinned to versions, so that a check reads consistent data.

    Gold is pinned first and bronze last, so each layer contains the rows that the next layer was made from. A
    table that does not exist yet appears as an empty view.
    """

    def __init__(
        self,
        lake: Lake,
        every: Sequence[Subject],
        settings: Settings,
        now: datetime,
        *,
        versions: Mapping[str, int] | None = None,
    ) -> None:
        self.spark = lake.spark
        self._lake = lake
        self._settings = settings
        self.now = now
        self._every = {subject.name: subject for subject in every}
        self.versions: dict[str, int] = {}
        self.ids: dict[str, str] = {}
        for layer in reversed(LAYERS):
            for subject in every:
                if subject.spec.layer == layer:
                    self._take(subject, (versions or {}).get(subject.name))

    def _take(self, subject: Subject, version: int | None) -> None:
        """Pin a table to a version, by default the newest. Skip a table that does not exist yet."""
        found = tables.snapshot(self.spark, self._path(subject))
        if delta.version_of(found) >= 0:
            self.versions[subject.name] = delta.version_of(found) if version is None else version
            self.ids[subject.name] = delta.table_id(found)

    @property
    def subjects(self) -> list[Subject]:
        """All tables that were given, including tables that do not exist yet."""
        return list(self._every.values())

    def rows(self, subject: Subject, since: datetime | None = None) -> DataFrame:
        """Return the table's rows at its pinned version.

        With `since` (UTC), older rows are omitted, unless the table's rows have no time. Raises TableError if
        the pinned version no longer exists.
        """
        version = self.versions[subject.name]
        try:
            frame = tables.read_version(self.spark, self._path(subject), version)
        except PySparkException as error:
            raise TableError(f"{subject.name} has no version {version}: {first_line(error)}") from error
        frame = tables.as_declared(frame, subject.spec.schema)
        if since is None or subject.time is None:
            return frame
        return frame.where(F.col(subject.time) >= F.lit(since))

    @cached_property
    def amount(self) -> Amount:
        """The execution mode that suits the largest table."""
        return tables.amount_in(self.spark, (self._path(self._every[name]) for name in self.versions))

    @contextmanager
    def executing(self) -> Iterator[None]:
        """Use execution settings that suit the largest table during the block."""
        with executing_for(self.spark, self.amount):
            yield

    @contextmanager
    def shown(self, queries: str, since: datetime | None = None) -> Iterator[None]:
        """Register the views that the queries name, and drop them after the block."""
        names, views = words(queries), dict[str, DataFrame]()
        for subject in self._every.values():
            if subject.view in names:
                views[subject.view] = self.rows_or_none(subject)
            if subject.view + CHANGES in names:
                views[subject.view + CHANGES] = self._changes_since(subject, since or self.now - _FEED_AGE)
        if LIMITS_VIEW in names:
            views[LIMITS_VIEW] = self.limits
        with showing(self.spark, views):
            yield

    def rows_or_none(self, subject: Subject) -> DataFrame:
        """Return the table's rows at its pinned version, or no rows if the table does not exist yet."""
        if subject.name in self.versions:
            return self.rows(subject)
        return self.spark.createDataFrame([], subject.spec.schema)

    def changes(self, subject: Subject, after: int) -> DataFrame:
        """Return the change feed from the version following `after` up to the table's pinned version."""
        version = self.versions.get(subject.name, after)
        if version <= after:
            schema = StructType(list(subject.spec.schema)).add("_change_type", "string")
            return self.spark.createDataFrame([], schema.add("_commit_version", "long"))
        return tables.read_changes(self.spark, self._path(subject), after + 1, version)

    def commits(self, subject: Subject, after: int) -> Iterator[LogEntry]:
        """Yield the commits from the version following `after` up to the table's pinned version."""
        for version in range(after + 1, self.versions[subject.name] + 1):
            yield tables.read_commit(self.spark, self._path(subject), version)

    def _changes_since(self, subject: Subject, since: datetime) -> DataFrame:
        """Return the change feed from `since` (UTC) up to the table's pinned version."""
        if subject.name not in self.versions:
            return self.changes(subject, 0)
        feed = tables.read_changes_since(self.spark, self._path(subject), since)
        return feed.where(F.col("_commit_version") <= self.versions[subject.name])

    @cached_property
    def limits(self) -> DataFrame:
        """The content of the view `limits`: one row with the time of the check and some settings."""
        declared = [one.declared for one in self._every.values()]
        sources = [one for one in declared if isinstance(one, Source)]
        pinned = (one.pinned_settings for one in declared if isinstance(one, MergedTable))
        thresholds = (settings_[_SALES_THRESHOLD] for settings_ in pinned if _SALES_THRESHOLD in settings_)
        row = (
            self.now,
            next(map(Decimal, thresholds), None),
            max(
                (one.future_tolerance_s for one in sources),
                default=self._settings.stream_defaults.future_tolerance_s,
            ),
        )
        return self.spark.createDataFrame([row], LIMITS)

    def _path(self, subject: Subject) -> str:
        return self._lake.path(subject.spec.layer, subject.spec.name)


def words(queries: str) -> set[str]:
    """Return the words that occur in queries, including view names."""
    return set(re.findall(r"\w+", queries))


@contextmanager
def showing(spark: SparkSession, views: Mapping[str, DataFrame]) -> Iterator[None]:
    """Register frames as temporary views during the block."""
    for name, frame in views.items():
        frame.createOrReplaceTempView(name)
    try:
        yield
    finally:
        for name in views:
            spark.catalog.dropTempView(name)


def chosen(every: Sequence[Subject], names: Sequence[str]) -> Iterator[Subject]:
    """Yield the tables that match a name (layer, table or layer.table), or all tables if no name is given.

    Raises TableError for an unknown name. The message lists the known names.
    """
    known = {*LAYERS, *(one.name for one in every), *(one.spec.name for one in every)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise TableError(
            f"no table or layer is named {', '.join(unknown)}; known: {', '.join(LAYERS)} and "
            f"{', '.join(one.name for one in every)}"
        )
    for one in every:
        if not names or {one.name, one.spec.name, one.spec.layer} & set(names):
            yield one
