"""Create tables, evolve existing tables to the declared schema, and refuse tables that cannot be used.

A setting that a table's rows depend on is stored as a table property, `lakehouse.<setting>`, which only a
rebuild changes. A process with a different setting is refused when it starts to read or write the table, and
a writer is also refused at each commit. A rebuild first sets the properties to UNFINISHED, and to the current
settings when it ends. A process can therefore detect a killed rebuild, even if the settings have changed
since.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lakehouse.common.errors import TableError
from lakehouse.storage.spark import files as storage
from lakehouse.storage.spark.query_errors import error_line
from lakehouse.storage.tables import commits, features, schema_evolution
from lakehouse.storage.tables.entries import LOG
from lakehouse.storage.tables.log import (
    CHANGE_FEED,
    CHECKPOINT_INTERVAL,
    FOLLOWED,
    Metadata,
    exists,
    first_version,
    metadata,
    properties,
    properties_of,
    read_commit,
    version_of,
)
from lakehouse.storage.tables.schema_evolution import Refused, SchemaChanges
from lakehouse.storage.tables.specs import FIXED_PREFIX, TableSpec
from lakehouse.storage.tables.writing import retry_on_conflict

UNFINISHED = "a rebuild that has not ended"
COLUMNS = f"{FIXED_PREFIX}columns"
"""The property that lists the last declared columns as JSON. Any other column is a user's or obsolete."""

ColumnsOf = Callable[[Mapping[str, str]], Collection[str]]
"""A function that returns the columns that the given settings define in a table."""


def refuse_others(found: Mapping[str, str], spec: TableSpec) -> None:
    """Raise TableError if a table's properties show that its rows were built with different settings."""
    for name, value in spec.pinned_settings.items():
        was = found.get(FIXED_PREFIX + name)
        if was != value:
            rebuild = f"`lakehouse rebuild {spec.layer}`"
            way_out = (
                f"Run {rebuild} again"
                if was == UNFINISHED
                else f"Set {name} back to its old value, or recompute the rows with {rebuild}; its --dry-run "
                "lists the changes"
            )
            raise TableError(
                f"{spec.qualified_name} was made with {name} = {was or 'none'}, but the settings say "
                f"{value or 'none'}; existing rows depend on this setting. {way_out}"
            )


def are_others(found: Mapping[str, str], spec: TableSpec) -> bool:
    """Return whether a table's rows were built with different settings, or a rebuild of it is unfinished."""
    return any(found.get(FIXED_PREFIX + name) != value for name, value in spec.pinned_settings.items())


def begin_anew(spark: SparkSession, path: str, spec: TableSpec, columns_of: ColumnsOf) -> None:
    """Record that a rebuild has begun. Columns that the settings no longer define remain in the table."""

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
    """Record the settings that the rows are now built with."""
    values = {FIXED_PREFIX + name: value for name, value in spec.pinned_settings.items()}
    retry_on_conflict(lambda: commits.begin(spark, path).set_properties(values))


FORMAT = 1
"""The version of the table format, stored in each table as `lakehouse.format` (docs/upgrades.md)."""
FORMAT_PROPERTY = f"{FIXED_PREFIX}format"
_BEGINNINGS = {"_staged_commits", "_commits"}  # directories in which several writers prepare commits
_UNFINISHED = (".tmp", ".tmp.crc")  # a commit that has not been renamed yet, and its checksum
_STATS = "delta.dataSkippingStatsColumns"
_ISOLATION = "delta.isolationLevel"
_MOST_COMMITS = 1_000  # the commits searched for the last one with the declared columns

# Other engines read the tables, so features that only Spark understands are not used. By default, Delta
# writes a checkpoint every ten commits, which takes seconds: too long for a table that is written every
# second.
_COMMON_PROPERTIES = {
    "delta.enableDeletionVectors": "false",
    "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
    "delta.checkpoint.writeStatsAsStruct": "true",
}


def properties_when_made(spec: TableSpec) -> dict[str, str]:
    """Return the properties of a newly created table."""
    feed = {CHANGE_FEED: str(spec.change_feed).lower()}
    made_with = {FIXED_PREFIX + name: value for name, value in spec.made_with.items()}
    return _COMMON_PROPERTIES | feed | made_with | _own_properties(spec)


def ensure(
    spark: SparkSession, path: str, spec: TableSpec, refused: Refused, *, is_made_anew: bool = False
) -> None:
    """Implement `Lake.ensure` and `Lake.ensure_source` for the table at the path.

    With `is_made_anew`, a table that was built with different settings is accepted.
    """
    if not features.exists(spark, path, spec.qualified_name):
        _make(spark, path, spec)
        features.exists(spark, path, spec.qualified_name)  # checks features that session defaults have added
    if not _is_as_declared(spark, path, spec):
        _refuse_later_format(spark, path, spec)
        _refuse_other_settings(spark, path, spec, is_made_anew=is_made_anew)
        _evolve(spark, path, spec, refused)
        if refused is Refused.TO_A_WRITER:
            _note_properties(spark, path, spec)


def _is_as_declared(spark: SparkSession, path: str, spec: TableSpec) -> bool:
    """Return whether the table matches its declaration completely. Reads the log only once."""
    found = metadata(spark, path)
    if found is None or not _differing(found, spec).are_none:
        return False
    return all(found.properties.get(name) == value for name, value in _own_properties(spec).items())


def _own_properties(spec: TableSpec) -> dict[str, str]:
    """Return the properties that follow from the spec."""
    fixed = {
        FIXED_PREFIX + name: value for name, value in (*spec.pinned_settings.items(), *spec.shape.items())
    }
    return _maintained_properties(spec) | fixed


def _maintained_properties(spec: TableSpec) -> dict[str, str]:
    """Return the properties that are also set on existing tables.

    Under WriteSerializable, a commit that has read the table does not conflict with a blind append: the
    append counts as the later commit. A merge must see every row, so a merged table is Serializable, which is
    Delta's default.
    """
    isolation = "Serializable" if spec.is_merged else "WriteSerializable"
    followed = {FOLLOWED: str(spec.is_followed).lower()}
    feed = {CHANGE_FEED: "true", **followed} if spec.change_feed else {}
    return feed | {
        _STATS: ",".join(spec.stats),
        FORMAT_PROPERTY: str(FORMAT),
        _ISOLATION: isolation,
        COLUMNS: _declared(spec.schema),
    }


def _declared(schema: StructType) -> str:
    """Return the declared columns and their types as JSON, for a property."""
    return json.dumps({column.name: column.dataType.simpleString() for column in schema})


def _make(spark: SparkSession, path: str, spec: TableSpec) -> None:
    try:
        _refuse_foreign(spark, path)
        commits.create(spark, path, spec.schema, properties_when_made(spec), spec.comment)
    except (TableError, PySparkException, Py4JJavaError) as error:
        if exists(spark, path):  # another job has just created it
            return
        raise TableError(
            f"{spec.qualified_name} could not be created, and there is no table at {path}: "
            f"{error_line(error)}"
        ) from error


def _refuse_foreign(spark: SparkSession, path: str) -> None:
    """Raise TableError if the path contains files other than those of an unfinished table creation.

    The error suggests removing the files only if there is no log, because a log might belong to a table that
    Delta does not recognize.
    """
    found = storage.names(spark, path)
    foreign = [name for name in found if name != LOG]
    foreign += [
        f"{LOG}/{name}"
        for name in storage.names(spark, f"{path}/{LOG}")
        if name not in _BEGINNINGS and not name.endswith(_UNFINISHED)
    ]
    if foreign and LOG in found:
        raise TableError(
            f"{foreign[-1]} exists, and might belong to a table whose log Delta does not see. Nothing was "
            "changed: docs/refused-tables.md"
        )
    if foreign:
        raise TableError(f"{foreign[0]} exists there. If you do not need it, remove it and run this again")


def _refuse_later_format(spark: SparkSession, path: str, spec: TableSpec) -> None:
    found = properties(spark, path).get(FORMAT_PROPERTY, "0")
    if not found.isdecimal() or int(found) > FORMAT:
        raise TableError(
            f"{spec.qualified_name} was written by a later version of lakehouse, in format {found}; this "
            f"version writes format {FORMAT}. Install the later version again; docs/upgrades.md explains "
            "downgrades"
        )


def _refuse_other_settings(spark: SparkSession, path: str, spec: TableSpec, *, is_made_anew: bool) -> None:
    if not spec.pinned_settings and not spec.shape:
        return
    standing = properties(spark, path)
    if not is_made_anew:
        refuse_others(standing, spec)
    for name, value in spec.shape.items():
        found = standing.get(FIXED_PREFIX + name, value)
        if found != value:
            raise TableError(
                f"{spec.qualified_name} was made with {name} = {found}, but the stream now declares {value}; "
                f"existing rows depend on this setting. Declare {found} again, rename the table that uses "
                f"{value}, or set lake (LAKEHOUSE_LAKE) to a new location and reload the data"
            )


def _evolve(spark: SparkSession, path: str, spec: TableSpec, refused: Refused) -> None:
    def differing() -> SchemaChanges:
        found = metadata(spark, path)
        return SchemaChanges() if found is None else _differing(found, spec)

    schema_evolution.bring_up_to_date(
        spark,
        path,
        spec.qualified_name,
        differing,
        refused=refused,
        way_out=lambda: _way_back(spark, path, spec, refused),
    )


def _differing(found: Metadata, spec: TableSpec) -> SchemaChanges:
    """Return the differences between a table and its declaration. `carried` lists columns added by users."""
    ours = json.loads(found.properties.get(COLUMNS, "{}"))
    return schema_evolution.compare(found.schema, spec.schema).carrying(ours)


def _way_back(spark: SparkSession, path: str, spec: TableSpec, refused: Refused) -> str:
    """Return advice on refused columns, which depends on whether the table or the stream has changed."""
    is_as_before = properties(spark, path).get(COLUMNS) == _declared(spec.schema)
    version = _last_accepted(spark, path, spec, refused) if is_as_before else None
    if version is None:
        return (
            "Restore the old declaration, and add a new column if needed; or give the table a "
            "different name, or set lake (LAKEHOUSE_LAKE) to a new location, and reload the data"
        )
    again = f", and then lakehouse rebuild {spec.layer}" if spec.layer in ("silver", "gold") else ""
    return (
        f"Version {version + 1} of the table changed them. To undo that, run lakehouse sql --write "
        f'"RESTORE TABLE delta.`{path}` TO VERSION AS OF {version}"{again}'
    )


def _last_accepted(spark: SparkSession, path: str, spec: TableSpec, refused: Refused) -> int | None:
    """Return the last version without the refused columns, or None if there is none among recent commits."""
    newest, changed = version_of(spark, path), None
    for version in range(newest, max(first_version(spark, path), newest - _MOST_COMMITS) - 1, -1):
        for one in read_commit(spark, path, version).of("metaData"):
            noted = Metadata(one["configuration"], StructType.fromJson(json.loads(one["schemaString"])))
            if not refused.of(_differing(noted, spec)):
                return None if changed is None else changed - 1
            changed = version
    return None


def _note_properties(spark: SparkSession, path: str, spec: TableSpec) -> None:
    """Update an existing table's maintained properties, and those that record its declared shape."""
    declared = {FIXED_PREFIX + name: value for name, value in spec.shape.items()}
    declared |= _maintained_properties(spec)

    def bring_up_to_date() -> None:
        # ALTER TABLE cannot do this: Delta honors WriteSerializable, but does not allow users to set it.
        commit = commits.begin(spark, path)
        standing = properties_of(commit.snapshot)
        changed = {name: value for name, value in declared.items() if standing.get(name) != value}
        if changed:
            commit.set_properties(changed)

    retry_on_conflict(bring_up_to_date)
