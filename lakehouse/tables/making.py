"""Tables are created, brought up to the declared schema, or refused."""

from __future__ import annotations

import json

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lakehouse.errors import TableError
from lakehouse.spark import storage
from lakehouse.spark.query_errors import error_line
from lakehouse.tables import commits, features, pinned, schema_evolution
from lakehouse.tables.entries import LOG
from lakehouse.tables.log import (
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
from lakehouse.tables.pinned import COLUMNS
from lakehouse.tables.schema_evolution import Refused, SchemaChanges
from lakehouse.tables.specs import FIXED_PREFIX, TableSpec
from lakehouse.tables.writing import retry_on_conflict

FORMAT = 1
"""Under which rules tables are written; noted in each as `lakehouse.format` (docs/upgrades.md)."""
FORMAT_PROPERTY = f"{FIXED_PREFIX}format"
_BEGINNINGS = {"_staged_commits", "_commits"}  # directories for commits of several writers
_UNFINISHED = (".tmp", ".tmp.crc")  # a commit that is not named yet, and its checksum
_STATS = "delta.dataSkippingStatsColumns"
_ISOLATION = "delta.isolationLevel"
_MOST_COMMITS = 1_000  # so many are looked at for the last one with the declared columns

# Other readers open the tables, so they use nothing that only Spark understands. Delta's default, a
# checkpoint of the log every ten commits, takes seconds that a table written every second does not have.
_COMMON_PROPERTIES = {
    "delta.enableDeletionVectors": "false",
    "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
    "delta.checkpoint.writeStatsAsStruct": "true",
}


def properties_when_made(spec: TableSpec) -> dict[str, str]:
    """Return the properties that a table of the spec has from its first version on."""
    feed = {CHANGE_FEED: str(spec.change_feed).lower()}
    made_with = {FIXED_PREFIX + name: value for name, value in spec.made_with.items()}
    return _COMMON_PROPERTIES | feed | made_with | _own_properties(spec)


def ensure(
    spark: SparkSession, path: str, spec: TableSpec, refused: Refused, *, is_made_anew: bool = False
) -> None:
    """Do what `Lake.ensure` and `Lake.ensure_source` promise, for the table at the path.

    If it is made anew, it may have been made under other settings.
    """
    if not features.exists(spark, path, spec.qualified_name):
        _make(spark, path, spec)
        features.exists(spark, path, spec.qualified_name)  # the session's defaults may have added some
    if not _is_as_declared(spark, path, spec):
        _refuse_later_format(spark, path, spec)
        _refuse_other_settings(spark, path, spec, is_made_anew=is_made_anew)
        _evolve(spark, path, spec, refused)
        if refused is Refused.TO_A_WRITER:
            _note_properties(spark, path, spec)


def _is_as_declared(spark: SparkSession, path: str, spec: TableSpec) -> bool:
    """Tell, by one look at the log, whether there is nothing to change and nothing to refuse."""
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
    """Return the properties that a table of an earlier version is given.

    Under WriteSerializable, a commit that has read the table does not conflict with an append that has not:
    those rows count as appended after it. A merge must see every row, so a merged table is Serializable, as
    all are that do not say otherwise.
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
    """Return the columns that a stream declares, with their types, as a property notes them."""
    return json.dumps({column.name: column.dataType.simpleString() for column in schema})


def _make(spark: SparkSession, path: str, spec: TableSpec) -> None:
    try:
        _refuse_foreign(spark, path)
        commits.create(spark, path, spec.schema, properties_when_made(spec), spec.comment)
    except (TableError, PySparkException, Py4JJavaError) as error:
        if exists(spark, path):  # another job has created it at this moment
            return
        raise TableError(
            f"{spec.qualified_name} could not be created, and there is no table at {path}: "
            f"{error_line(error)}"
        ) from error


def _refuse_foreign(spark: SparkSession, path: str) -> None:
    """Raise TableError if something lies at the path that is not the beginning of a table.

    To remove it is advised only where it cannot be a table: its log may have names that Delta overlooks.
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
            f"{foreign[-1]} lies there, and may belong to a table whose log Delta does not see. Nothing was "
            "changed: docs/refused-tables.md"
        )
    if foreign:
        raise TableError(
            f"{foreign[0]} lies there. If you do not need what is there, remove it and run again"
        )


def _refuse_later_format(spark: SparkSession, path: str, spec: TableSpec) -> None:
    found = properties(spark, path).get(FORMAT_PROPERTY, "0")
    if not found.isdecimal() or int(found) > FORMAT:
        raise TableError(
            f"{spec.qualified_name} was written by a later version, in format {found}; this one writes "
            f"format {FORMAT}. Install the later version again; docs/upgrades.md says how to go back"
        )


def _refuse_other_settings(spark: SparkSession, path: str, spec: TableSpec, *, is_made_anew: bool) -> None:
    if not spec.pinned_settings and not spec.shape:
        return
    standing = properties(spark, path)
    if not is_made_anew:
        pinned.refuse_others(standing, spec)
    for name, value in spec.shape.items():
        found = standing.get(FIXED_PREFIX + name, value)
        if found != value:
            raise TableError(
                f"{spec.qualified_name} was made with {name} = {found}, the stream now declares {value}; its "
                f"rows depend on it. Declare {found} again, give the table with {value} another name, or use "
                f"another LAKEHOUSE_LAKE and fill it again"
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
    """Return the differences between a table and its declaration; a user's columns are carried."""
    ours = json.loads(found.properties.get(COLUMNS, "{}"))
    return schema_evolution.compare(found.schema, spec.schema).carrying(ours)


def _way_back(spark: SparkSession, path: str, spec: TableSpec, refused: Refused) -> str:
    """Say how to mend columns that are refused, by whether the table was changed or the stream."""
    is_as_before = properties(spark, path).get(COLUMNS) == _declared(spec.schema)
    version = _last_accepted(spark, path, spec, refused) if is_as_before else None
    if version is None:
        return (
            "Declare it as it was, with a new one beside it if need be, or give the table another name or "
            "use another LAKEHOUSE_LAKE, and fill it anew"
        )
    again = f", and then lakehouse rebuild {spec.layer}" if spec.layer in ("silver", "gold") else ""
    return (
        f"Version {version + 1} of the table has changed them. Take that back: lakehouse sql --write "
        f'"RESTORE TABLE delta.`{path}` TO VERSION AS OF {version}"{again}'
    )


def _last_accepted(spark: SparkSession, path: str, spec: TableSpec, refused: Refused) -> int | None:
    """Return the last version whose columns were accepted; null if none was, or the log does not tell."""
    newest, changed = version_of(spark, path), None
    for version in range(newest, max(first_version(spark, path), newest - _MOST_COMMITS) - 1, -1):
        for one in read_commit(spark, path, version).of("metaData"):
            noted = Metadata(one["configuration"], StructType.fromJson(json.loads(one["schemaString"])))
            if not refused.of(_differing(noted, spec)):
                return None if changed is None else changed - 1
            changed = version
    return None


def _note_properties(spark: SparkSession, path: str, spec: TableSpec) -> None:
    """Note in the table which columns have minima and maxima, and what its rows' shape depends on."""
    declared = {FIXED_PREFIX + name: value for name, value in spec.shape.items()}
    declared |= _maintained_properties(spec)

    def bring_up_to_date() -> None:
        # Not ALTER TABLE: Delta obeys WriteSerializable, and lets nobody set it.
        commit = commits.begin(spark, path)
        standing = properties_of(commit.snapshot)
        changed = {name: value for name, value in declared.items() if standing.get(name) != value}
        if changed:
            commit.set_properties(changed)

    retry_on_conflict(bring_up_to_date)
