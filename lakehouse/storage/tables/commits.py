"""A commit to a Delta table, including the reads on which the writes depend.

To find out whether a transaction was already written, Delta's DataFrame writer and MERGE replay the log in
Spark jobs, although the version's checksum file already lists the transactions. This module builds the same
commit from Delta's own classes. It begins an optimistic transaction, reads within it, writes files, and
publishes everything in one commit. If another writer changes data that was read, the commit conflicts.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.common.errors import PositionError
from lakehouse.storage.spark import files as storage
from lakehouse.storage.spark import internals
from lakehouse.storage.spark.columns import Columns
from lakehouse.storage.spark.execution import having_set
from lakehouse.storage.tables import delta_internals as delta
from lakehouse.storage.tables import lasting
from lakehouse.storage.tables.data_files import files_of, to_delta
from lakehouse.storage.tables.delta_internals import Action, Operation, Snapshot, Txn
from lakehouse.storage.tables.log import (
    CHANGE_FEED,
    FEW_FILES,
    noted_files,
    properties_of,
    snapshot,
    transactions_in,
)
from lakehouse.storage.tables.pruning import Near
from lakehouse.storage.tables.specs import FIXED_PREFIX, Move, Why

CHANGE_TYPE = "_change_type"
_NO_QUERY = ("lakehouse", 0)  # used because Delta's UPDATE operation has no field for the reason
FILE = "_file"
_UNKNOWN_ROWS = 1_000_000  # assumed for a file without statistics; a safe guess
_LISTS_FILES = "spark.databricks.delta.allFilesInCrc.enabled"

_REQUIRED: ContextVar[Mapping[str, Callable[[Snapshot], None]]] = ContextVar("_REQUIRED", default={})  # noqa: B039
"""Conditions for this thread's commits, keyed by the table's path.

With a parameter instead, every function that writes to a leased table would have to pass the conditions on.
"""


@contextmanager
def requiring(path: str, condition: Callable[[Snapshot], None]) -> Iterator[None]:
    """During the block, call `condition` with the snapshot of each commit to the table.

    To prevent the commit, `condition` raises an error.
    """
    token = _REQUIRED.set({**_REQUIRED.get(), path: condition})
    try:
        yield
    finally:
        _REQUIRED.reset(token)


@dataclass(frozen=True)
class Candidates:
    """The files that might contain matching rows: Delta's file objects and row counts, keyed by file name."""

    files: dict[str, Action]
    size_bytes: int
    rows_by_name: Mapping[str, int]

    @property
    def rows(self) -> int:
        """The number of rows in these files."""
        return self.rows_of(self.files)

    def rows_of(self, names: Iterable[str]) -> int:
        """Return the number of rows in the named files."""
        return sum(self.rows_by_name[name] for name in names)


@dataclass
class Commit:
    """A commit in progress, and the table's state when the commit began.

    The arguments of `expect` and `candidates` determine which data counts as read. If another writer has
    changed this data, `finish` fails with one of Delta's conflicts; see
    `lakehouse.storage.tables.writing.retry_on_conflict`.
    """

    spark: SparkSession
    path: str
    _txn: Txn
    _actions: list[Action] = field(default_factory=list)
    _removes: bool = False

    @property
    def snapshot(self) -> Snapshot:
        """Delta's snapshot of the table when the commit began."""
        return delta.snapshot_of(self._txn)

    @property
    def schema(self) -> StructType:
        """The table's schema."""
        return StructType.fromJson(json.loads(delta.schema_in(self._txn)))

    @property
    def has_change_feed(self) -> bool:
        """True if the table has a change feed."""
        return (delta.property_in(self._txn, CHANGE_FEED) or "").lower() == "true"

    def expect(self, moves: Sequence[Move]) -> None:
        """Raise PositionError unless the table has the positions that the moves expect.

        A later change to these positions conflicts with the commit.
        """
        noted = transactions_in(self.spark, self.snapshot) if moves else {}
        for move in moves:
            delta.note_read_application(self._txn, move.application)
            found = noted.get(move.application)
            if found != move.before:
                raise PositionError(
                    f"{move.application}: {self.path} is at position {found}, but this process left it at "
                    f"{move.before}. Another process is running the same layer; stop one of them"
                )

    def expect_settings(self, settings: Mapping[str, str]) -> None:
        """Raise PositionError unless the table's rows were built with these settings (`pinned_settings`).

        A later change to the settings conflicts with the commit.
        """
        for name, value in settings.items():
            found = delta.property_in(self._txn, FIXED_PREFIX + name)
            if found != value:
                raise PositionError(
                    f"{self.path} now uses {name} = {found or 'none'}, but this process has "
                    f"{value or 'none'}: the setting was changed elsewhere. Restart with the current settings"
                )

    def candidates(self, where: Near | Column | None) -> Candidates:
        """Return the files that might contain rows matching the condition, or all files if `where` is None.

        The returned files count as read. If `where` is a `Near`, or the table has few files, the whole table
        counts as read. The commit then conflicts with every other commit that changes rows.
        """
        if isinstance(where, Near):
            return self._near(where)
        files = noted_files(self.snapshot, FEW_FILES)
        if files is not None:
            delta.note_whole_table_read(self._txn)
        else:
            files = self._filtered(F.lit(True) if where is None else where)
        by_name = {delta.path_of(file).rsplit("/", 1)[-1]: file for file in files}
        counts = {name: delta.records_in(file) for name, file in by_name.items()}
        rows = {name: _UNKNOWN_ROWS if count is None else count for name, count in counts.items()}
        return Candidates(by_name, sum(map(delta.size_of, files)), rows)

    def _near(self, where: Near) -> Candidates:
        delta.note_whole_table_read(self._txn)
        files = files_of(self.spark, self.path, self.snapshot).by_name
        found = {name: file for name, file in files.items() if where.may_hold(file.bounds)}
        return Candidates(
            {name: to_delta(self.spark, file) for name, file in found.items()},
            sum(file.size_bytes for file in found.values()),
            {name: _UNKNOWN_ROWS if file.rows is None else file.rows for name, file in found.items()},
        )

    def _filtered(self, where: Column) -> list[Action]:
        """Return the files that might contain rows matching the condition, according to file statistics."""
        rows = self.spark.read.format("delta").load(self.path).where(where)
        # Delta compares statistics only with literals. Comparing a Python int with a long adds a cast, so
        # fold the constants.
        return delta.filtered_files(self.spark, self._txn, internals.folded_condition(rows))

    def rows(self, candidates: Candidates, names: Iterable[str] | None = None) -> DataFrame:
        """Return the rows of all candidate files or of the named files, with the file name as `_file`."""
        chosen = candidates.files.values() if names is None else [candidates.files[name] for name in names]
        return delta.rows_of_files(self.spark, self.snapshot, chosen).withColumn(
            FILE, F.col("_metadata.file_name")
        )

    def write(self, rows: DataFrame) -> int:
        """Write the rows to files, and return how many of them are table rows.

        Rows with a `_change_type` go to the change feed if the table has one. All other rows go to the table.
        """
        if CHANGE_TYPE in rows.columns and not self.has_change_feed:
            rows = rows.where(F.col(CHANGE_TYPE).isNull()).drop(CHANGE_TYPE)
        written, count = delta.write_files(self._txn, rows)
        self._actions += written
        if count is not None:
            return count
        added = [file for file in written if delta.is_added(file)]
        return delta.rows_of_files(self.spark, self.snapshot, added).count()  # for a table without statistics

    def remove(self, candidates: Candidates, names: Iterable[str]) -> None:
        """Remove the named files from the table."""
        now_ms = int(time.time() * 1000)
        self._actions += [delta.removed(candidates.files[name], now_ms) for name in names]
        self._removes = True

    def finish(self, moves: Sequence[Move] = (), why: Why | None = None) -> int:
        """Commit all changes and moves together, and return the table's new version.

        `why` is the reason for removed or changed rows, recorded for readers of the changes (`LogEntry.why`).
        """
        made = [
            (one.application, one.after) for one in moves if one.after is not None and one.after != one.before
        ]
        if not made and why is None:
            # With ManualUpdate, Delta would compute the checksum by replaying the log.
            operation = delta.update(self.spark) if self._removes else delta.write(self.spark)
            return self._publish(self._actions, operation)
        at_ms = int(time.time() * 1000)
        noted = [delta.application_wrote(self.spark, name, after, at_ms) for name, after in made]
        update = delta.streaming_update(
            self.spark,
            *(made[0] if made else _NO_QUERY),
            updates=self._removes,
            metadata=None if why is None else why.noted,
        )
        return self._publish([*noted, *self._actions], update)

    def set_properties(self, values: Mapping[str, str | None]) -> int:
        """Set the table's properties, remove properties whose value is None, and return the new version.

        This method commits. The commit conflicts with every other change to the properties or the schema.
        """
        standing = properties_of(self.snapshot)
        kept = {name: value for name, value in {**standing, **values}.items() if value is not None}
        delta.set_properties(self.spark, self._txn, kept)
        given = {name: value for name, value in values.items() if value is not None}
        return self._publish([], delta.property_change(self.spark, given, unset=values))

    def _publish(self, actions: Sequence[Action], operation: Operation) -> int:
        if (condition := _REQUIRED.get().get(self.path)) is not None:
            condition(self.snapshot)
        return _commit(self.spark, self.path, self._txn, actions, operation)


def begin(spark: SparkSession, path: str) -> Commit:
    """Begin a commit to the current version of the table at the path."""
    newest = snapshot(spark, path)
    return Commit(spark, path, delta.start(spark, delta.log_of(spark, path), newest))


def create(
    spark: SparkSession, path: str, schema: StructType, properties: Mapping[str, str], comment: str = ""
) -> None:
    """Create a table without rows by committing version 0. An incomplete log in the directory is accepted.

    An existing table is left unchanged. Raises Py4JJavaError if another process creates the table at the same
    time.
    """
    txn = delta.start(spark, delta.log_of(spark, path))
    if delta.read_version(txn) >= 0:
        return
    delta.set_new_metadata(
        spark,
        txn,
        table=str(uuid.uuid4()),
        schema=schema.json(),
        comment=comment,
        properties=properties,
        at_ms=int(time.time() * 1000),
    )
    # To list the files of a new table, Delta would replay its empty log in a Spark job.
    with having_set(spark, _LISTS_FILES, "false"):
        _commit(spark, path, txn, [], delta.table_creation(spark, txn))


def _commit(spark: SparkSession, path: str, txn: Txn, actions: Sequence[Action], operation: Operation) -> int:
    """Commit the actions, and return the new version once the commit can survive a power failure."""
    version = delta.commit(spark, txn, actions, operation)
    if (here := storage.on_this_machine(spark, path)) is not None:
        lasting.keep(here, version)
    return version


def changed_rows(old: DataFrame, new: DataFrame, keys: Sequence[str], gone: Column) -> DataFrame:
    """Return the rows that replace the table's rows `old` when `new` is upserted by key.

    `new` has one row per key. Columns that are missing from `new` keep their values from `old`. Rows are
    deleted if `gone` is true. In the result, rows without a `_change_type` belong to the table, and all
    others to its change feed.
    """
    given = tuple(name for name in old.columns if name in new.columns)
    columns = _merging(tuple(old.columns), tuple(keys), given)
    right = columns.new.of(new.withColumn("_gone", gone))
    both = columns.old.of(old).join(right, list(keys), "full_outer")
    return both.select(columns.changes).select("_row.*", CHANGE_TYPE)


def amended_rows(
    rows: DataFrame, names: Sequence[str], hit: Column, values: Mapping[str, Column]
) -> DataFrame:
    """Return the rows that replace the table rows `t` in a frame, with new `values` where `hit` is true.

    `names` are the table's columns. `_change_type` is set as in `changed_rows`.
    """
    before = F.struct(*(F.col(f"t.{name}") for name in names))
    after = F.struct(*(values.get(name, F.col(f"t.{name}")).alias(name) for name in names))
    both = rows.select(before.alias("_old"), F.when(hit, after).alias("_new"), F.lit(False).alias("_gone"))
    changes = _merging(tuple(names), (), tuple(names)).changes
    return both.select(changes).select("_row.*", CHANGE_TYPE)


@dataclass(frozen=True)
class _Merging:
    """Columns for a merge, built once: the old and the new row to join by key, and each pair's changes."""

    old: Columns
    new: Columns
    changes: Column


@cache
def _merging(names: tuple[str, ...], keys: tuple[str, ...], given: tuple[str, ...]) -> _Merging:
    by = {name: F.col(name) for name in keys}
    before, after, gone = F.col("_old"), F.col("_new"), F.col("_gone")
    if given != names:
        fields = (F.col(f"{'_new' if name in given else '_old'}.{name}").alias(name) for name in names)
        after = F.when(F.col("_new").isNotNull(), F.struct(*fields))
    stays, is_update = after.isNotNull() & ~gone, before.isNotNull() & after.isNotNull()
    kinds = (
        (F.when(after.isNull(), before).when(stays, after), F.lit(None)),
        (F.when(is_update, before), F.when(gone, F.lit("delete")).otherwise("update_preimage")),
        (F.when(stays, after), F.when(before.isNull(), F.lit("insert")).otherwise("update_postimage")),
    )
    variants = (F.struct(part.alias("_row"), kind.cast("string").alias(CHANGE_TYPE)) for part, kind in kinds)
    return _Merging(
        old=Columns({**by, "_old": F.struct(*names)}),
        new=Columns({**by, "_new": F.struct(*given), "_gone": gone}),
        changes=F.inline(F.filter(F.array(*variants), lambda variant: variant["_row"].isNotNull())),
    )
