"""Access to a lake with a Spark session. Code without a session uses `path_of`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from lakehouse.common.memory import forget
from lakehouse.common.terminal import warn
from lakehouse.settings import Settings
from lakehouse.storage.spark.session import require_jvm, start_session
from lakehouse.storage.tables import features, making, reading, versions, writers
from lakehouse.storage.tables.log import properties
from lakehouse.storage.tables.making import ColumnsOf
from lakehouse.storage.tables.schema_evolution import Refused
from lakehouse.storage.tables.specs import TableSpec, path_of


@dataclass(frozen=True)
class Lake:
    """The tables below a root, and the session that reads and writes them.

    Raises VersionError for a Spark Connect session.
    """

    spark: SparkSession
    root: str

    def __post_init__(self) -> None:
        """Raise VersionError for a session without a JVM, because every method needs the JVM."""
        require_jvm(self.spark)

    def path(self, layer: str, name: str) -> str:
        """Return a table's path. The table need not exist."""
        return path_of(self.root, layer, name)

    def exists(self, layer: str, name: str) -> bool:
        """Return whether a table exists. Raises TableError if it has an unsupported table feature."""
        return features.exists(self.spark, self.path(layer, name), f"{layer}.{name}")

    def read(self, layer: str, name: str) -> DataFrame:
        """Return a table's current rows. Raises AnalysisException if there is no table."""
        return reading.read(self.spark, self.path(layer, name))

    def read_or_empty(self, spec: TableSpec) -> DataFrame:
        """Return a table's current rows, or an empty frame if the table does not exist."""
        if self.exists(spec.layer, spec.name):
            return self.read(spec.layer, spec.name)
        return self.spark.createDataFrame([], spec.schema).limit(0)  # Spark then knows that it is empty

    def ensure(self, spec: TableSpec) -> str:
        """Create the table if it is missing, evolve it to the spec's schema, and return its path.

        Missing columns are added and types are widened in place. A rerun changes nothing, but if an earlier
        run was killed before it committed the new table, the rerun completes the creation.

        Raises TableError if the table cannot be created, or has an unsupported feature or property
        (`lakehouse.storage.tables.features`). Also raises TableError if the table was built with different
        settings, keys or windows that its rows depend on, or if a column was removed, renamed or given a type
        that cannot store its values.
        """
        return self._ensure(spec, Refused.TO_A_WRITER)

    def ensure_source(self, spec: TableSpec) -> str:
        """Do the same as `ensure`, but for a reader, which accepts additional columns and wider types."""
        return self._ensure(spec, Refused.TO_A_READER)

    def is_made_otherwise(self, spec: TableSpec) -> bool:
        """Return whether the table was built with different settings, or a rebuild of it is unfinished.

        Returns false if there is no table.
        """
        path = self.path(spec.layer, spec.name)
        return self.exists(spec.layer, spec.name) and making.are_others(properties(self.spark, path), spec)

    @contextmanager
    def made_anew(self, spec: TableSpec, columns_of: ColumnsOf = lambda _settings: ()) -> Iterator[None]:
        """Call `ensure` for a rebuild. The block must recompute rows that were built with different settings.

        Until the block ends, no process can write to the table or read it as a source, whatever the process's
        settings. If the block fails or is killed, this applies until another rebuild is completed. Columns
        from `columns_of` that are not in the spec remain in the table, null in new rows and unchanged in
        existing rows.
        """
        if not self.is_made_otherwise(spec):
            self.ensure(spec)
            yield
            return
        path = self.path(spec.layer, spec.name)
        making.begin_anew(self.spark, path, spec, columns_of)
        making.ensure(self.spark, path, spec, Refused.TO_A_WRITER, is_made_anew=True)
        yield
        making.end_anew(self.spark, path, spec)

    def _ensure(self, spec: TableSpec, refused: Refused) -> str:
        path = self.path(spec.layer, spec.name)
        making.ensure(self.spark, path, spec, refused)
        return path


@contextmanager
def open_lake(
    settings: Settings, name: str, *, brief: bool | None = None, reads_only: bool = False
) -> Iterator[Lake]:
    """Open the configured lake with a new session, and stop the session after the block; see `start_session`.

    Prints a warning if Spark or Delta has an untested version. Raises VersionError if that version lacks a
    required member, and TableError if this application may not write to the lake; see `writers.admitted`.
    """
    with start_session(settings, name, brief=brief) as spark:
        if (warning := versions.check(spark)) is not None:
            warn(warning)
        alone = settings.s3.single_writer
        try:
            with writers.admitted(spark, settings.lake, has_one_writer=alone, reads_only=reads_only):
                yield Lake(spark, settings.lake)
        finally:
            forget()
