"""The Delta table features that lakehouse supports. A table with any other feature is refused.

A feature changes the meaning of a log or a data file. lakehouse's commits, its readers of log entries and its
readers without a JVM support the features below; tests/storage/tables/test_features.py tests each feature.
Other writers and ALTER TABLE can add further features to a table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lakehouse.common.errors import TableError
from lakehouse.storage.spark import files as storage
from lakehouse.storage.tables import delta_internals as delta
from lakehouse.storage.tables import lasting
from lakehouse.storage.tables.delta_internals import Snapshot
from lakehouse.storage.tables.log import properties_of, refuse_files_outside, snapshot

SAFE = frozenset(
    {
        "appendOnly",  # Delta refuses commits that change rows
        "changeDataFeed",  # the tables use it
        "checkConstraints",  # checked by Delta when it writes our rows
        "checkpointProtection",  # Delta's own code cleans the logs, and respects it
        "clustering",  # the tables use it, for OPTIMIZE
        "domainMetadata",  # clustering's metadata in the log, which our readers of log entries ignore
        "generatedColumns",  # checked by Delta when it writes our rows
        "inCommitTimestamp",  # the log's readers use it as a commit's time
        "invariants",  # checked by Delta when it writes our rows
        "timestampNtz",  # only in columns that no stream declares; readers omit them
        "typeWidening",  # the tables use it, when a declared type becomes wider
        "variantType",  # only in columns that no stream declares; readers omit them
    }
)
"""The supported features, and why they are safe.

The following features are not supported:

- allowColumnDefaults: a missing column in new rows would get its default, not null.
- catalogManaged, coordinatedCommits-preview: the newest version is not in the log's directory.
- columnMapping, and therefore icebergCompat: files and statistics use different column names.
- deletionVectors, vacuumProtocolCheck: deltalake cannot read the table, so it cannot be served.
- identityColumns: untested; lakehouse's commits might assign wrong numbers.
- rowTracking: a merge would give rewritten rows new ids.
- v2Checkpoint: the log's reader without a JVM cannot read these checkpoints.
"""

RETENTION = "delta.setTransactionRetentionDuration"
"""The property with which Delta drops old transactions, and thus the streams' positions stored in them."""

# An older table's protocol does not name its features. These are the features that each writer version added.
_OF_WRITERS = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}
_NAMED = 7
_MANAGED = "DELTA_PATH_BASED_ACCESS_TO_CATALOG_MANAGED_TABLE_BLOCKED"
_UNKNOWN = re.compile(r'DELTA_UNSUPPORTED_FEATURES_FOR_READ\b.*Delta Lake "[^"]*": (.*?)\.', re.DOTALL)


def exists(spark: SparkSession, path: str, name: str) -> bool:
    """Return whether the table exists.

    Raises TableError if the table has an unsupported feature or property, has files outside its directory, or
    has lost rows in a power failure.
    """
    if (here := storage.on_this_machine(spark, path)) is not None:
        lasting.look(here, name)
    try:
        found = snapshot(spark, path)
    except Py4JJavaError as error:
        refused = _refused_by_delta(str(error.java_exception))
        if refused is None:
            raise
        raise _refusal(name, path, refused) from error
    if delta.version_of(found) < 0:
        return False
    unsafe = sorted(features_in(delta.protocol(found)) - SAFE)
    if unsafe:
        raise _refusal(name, path, ", ".join(unsafe))
    _refuse_retention(found, path, name)
    refuse_files_outside(spark, path, found)
    return True


def features_in(protocol: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of a protocol's features. The protocol's fields are named as in the log."""
    writers = int(protocol["minWriterVersion"])
    named = (*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ()))
    if writers >= _NAMED:
        return frozenset(named)
    return frozenset(name for since, names in _OF_WRITERS.items() if since <= writers for name in names)


def _refused_by_delta(text: str) -> str | None:
    """Return the features that made Delta refuse to open a table, or None if there was another reason."""
    if _MANAGED in text:
        return "catalogManaged"
    unknown = _UNKNOWN.search(text)
    return None if unknown is None else unknown[1]


def _refusal(name: str, path: str, features: str) -> TableError:
    first = features.split(", ", maxsplit=1)[0]
    return TableError(
        f"{name} at {path} has Delta's table feature {features}, which lakehouse does not support. Remove it "
        f"(ALTER TABLE delta.`{path}` DROP FEATURE {first}, if Delta can); or give the table a different "
        "name, or set lake (LAKEHOUSE_LAKE) to a new location, and reload the data"
    )


def _refuse_retention(found: Snapshot, path: str, name: str) -> None:
    if (kept := properties_of(found).get(RETENTION)) is not None:
        raise TableError(
            f"{name} at {path} has {RETENTION} = {kept}: Delta would drop the streams' positions. "
            f"Remove it: ALTER TABLE delta.`{path}` UNSET TBLPROPERTIES ('{RETENTION}')"
        )
