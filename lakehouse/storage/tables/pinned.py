"""Settings that a table's rows depend on: stored as table properties, and changed only by a rebuild.

The properties are `lakehouse.<setting>`. A process that writes or reads the table with other settings is
refused at its start, and a writer at each commit. A rebuild first sets them to UNFINISHED, and at its end to
the current settings. So a killed rebuild is recognised, whatever the settings are then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping

from pyspark.sql import SparkSession

from lakehouse.common.errors import TableError
from lakehouse.storage.tables import commits
from lakehouse.storage.tables.log import properties
from lakehouse.storage.tables.specs import FIXED_PREFIX, TableSpec
from lakehouse.storage.tables.writing import retry_on_conflict

UNFINISHED = "a rebuild that has not ended"
COLUMNS = f"{FIXED_PREFIX}columns"
"""The property with the columns that the stream last declared, as JSON; others are a user's, or left over."""

ColumnsOf = Callable[[Mapping[str, str]], Collection[str]]
"""Returns the columns that a table has because of these settings."""


def refuse_others(found: Mapping[str, str], spec: TableSpec) -> None:
    """Raise TableError if a table's properties say that its rows were made with other settings."""
    for name, value in spec.pinned_settings.items():
        was = found.get(FIXED_PREFIX + name)
        if was != value:
            rebuild = f"`lakehouse rebuild {spec.layer}`"
            way_out = (
                f"Run {rebuild} again"
                if was == UNFINISHED
                else f"Set {name} back to its old value, or recompute the rows by {rebuild}; its --dry-run "
                "lists the changes"
            )
            raise TableError(
                f"{spec.qualified_name} was made with {name} = {was or 'none'}, the settings say "
                f"{value or 'none'}; its rows depend on it. {way_out}"
            )


def are_others(found: Mapping[str, str], spec: TableSpec) -> bool:
    """Tell whether a table's rows were made with other settings, or its rebuild has not ended."""
    return any(found.get(FIXED_PREFIX + name) != value for name, value in spec.pinned_settings.items())


def begin_anew(spark: SparkSession, path: str, spec: TableSpec, columns_of: ColumnsOf) -> None:
    """Record that a rebuild has begun; columns that the settings no longer define stay in the table."""

    def once() -> None:
        found = properties(spark, path)
        values = {FIXED_PREFIX + name: UNFINISHED for name in spec.pinned_settings}
        was = {name: found.get(FIXED_PREFIX + name, "") for name in spec.pinned_settings}
        over = set(columns_of(was)) - set(spec.schema.names)
        ours = {
            name: type_ for name, type_ in json.loads(found.get(COLUMNS, "{}")).items() if name not in over
        }
        commits.begin(spark, path).set_properties({**values, COLUMNS: json.dumps(ours)})

    retry_on_conflict(once)


def end_anew(spark: SparkSession, path: str, spec: TableSpec) -> None:
    """Record the settings that the rows are now made with."""
    values = {FIXED_PREFIX + name: value for name, value in spec.pinned_settings.items()}
    retry_on_conflict(lambda: commits.begin(spark, path).set_properties(values))
