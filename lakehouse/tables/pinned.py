"""Settings that a table's rows depend on: the table notes them, and a rebuild alone changes them.

They are properties, `lakehouse.<setting>`. Who fills or reads the table under others is refused, at its start
and at each commit. A rebuild first notes UNFINISHED, and at its end what the rows are made with now. So a
rebuild that was killed is told from one that has ended, under whichever settings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping

from pyspark.sql import SparkSession

from lakehouse.errors import TableError
from lakehouse.tables import commits
from lakehouse.tables.log import properties
from lakehouse.tables.specs import FIXED_PREFIX, TableSpec
from lakehouse.tables.writing import retry_on_conflict

UNFINISHED = "a rebuild that has not ended"
COLUMNS = f"{FIXED_PREFIX}columns"
"""The property with what the stream declared last, as JSON: other columns are a user's, or are left over."""

ColumnsOf = Callable[[Mapping[str, str]], Collection[str]]
"""Returns the columns that a table has had because of settings, by these."""


def refuse_others(found: Mapping[str, str], spec: TableSpec) -> None:
    """Raise TableError if a table's properties say that its rows were made with other settings."""
    for name, value in spec.pinned_settings.items():
        was = found.get(FIXED_PREFIX + name)
        if was != value:
            rebuild = f"`lakehouse rebuild {spec.layer}`"
            way_out = (
                f"Run {rebuild} again"
                if was == UNFINISHED
                else f"Set {name} to what it was; or let {rebuild} make the rows anew: with --dry-run it "
                "says what that changes"
            )
            raise TableError(
                f"{spec.qualified_name} was made with {name} = {was or 'none'}, the settings say "
                f"{value or 'none'}; its rows depend on it. {way_out}"
            )


def are_others(found: Mapping[str, str], spec: TableSpec) -> bool:
    """Tell whether a table's rows were made with other settings, or a rebuild of them has not ended."""
    return any(found.get(FIXED_PREFIX + name) != value for name, value in spec.pinned_settings.items())


def begin_anew(spark: SparkSession, path: str, spec: TableSpec, columns_of: ColumnsOf) -> None:
    """Note that all rows are being made anew; columns that the settings no longer give are left over."""

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
    """Note what the rows are made with now."""
    values = {FIXED_PREFIX + name: value for name, value in spec.pinned_settings.items()}
    retry_on_conflict(lambda: commits.begin(spark, path).set_properties(values))
