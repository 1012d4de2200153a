"""Tables with Delta's features: the known ones change nothing, and any other is refused by name.

The features are Delta's own, set by ALTER TABLE, and the results are compared with what Spark reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from lakehouse.common import memory
from lakehouse.common.errors import PositionError, TableError
from lakehouse.operations.telemetry.delta_log import Log
from lakehouse.storage import tables
from lakehouse.storage.spark.query_errors import error_line
from lakehouse.storage.tables import Lake, Move, TableSpec, data_files
from lakehouse.storage.tables import delta_internals as delta
from lakehouse.storage.tables.features import RETENTION, SAFE, features_in
from lakehouse.storage.tables.pruning import Between, Near
from lakehouse.storage.tables.upkeep import clean_log
from lakehouse.storage.tables.writing import delete, update, upsert
from tests.support import pipeline

SCHEMA = StructType().add("k", LongType()).add("v", StringType()).add("t", TimestampType())
SPEC = TableSpec("silver", "numbers", SCHEMA, stats=("k", "t"), change_feed=True)
CHANGED = [(0, "z"), (1, "y"), (3, "y"), (5, "y"), (6, "x"), (7, "y"), (8, "y")]
APPENDED = [(number, "x") for number in range(7)]


@dataclass(frozen=True)
class Case:
    """How a table gets features (names joined by spaces), and whether it is append-only with them."""

    features: str
    clauses: tuple[str, ...] = ()
    appends_only: bool = False

    def __str__(self) -> str:
        return self.features


def supported(feature: str) -> str:
    return f"SET TBLPROPERTIES ('delta.feature.{feature}' = 'supported')"


def enabled(name: str, value: str = "true") -> str:
    return f"SET TBLPROPERTIES ('delta.{name}' = '{value}')"


TRIED = [
    Case("appendOnly", (enabled("appendOnly"),), appends_only=True),
    Case("checkConstraints", ("ADD CONSTRAINT positive CHECK (k >= 0)",)),
    Case("checkpointProtection", (supported("checkpointProtection"),)),
    Case("clustering domainMetadata", ("CLUSTER BY (k)",)),
    Case("generatedColumns", (supported("generatedColumns"),)),
    Case("inCommitTimestamp", (enabled("enableInCommitTimestamps"),)),
    Case("changeDataFeed invariants"),
    Case("timestampNtz", (supported("timestampNtz"), "ADD COLUMN n TIMESTAMP_NTZ"), appends_only=True),
    Case("typeWidening", (enabled("enableTypeWidening"),)),
    Case("variantType", (supported("variantType"), "ADD COLUMN n VARIANT"), appends_only=True),
]
REFUSED = [
    Case("allowColumnDefaults", (supported("allowColumnDefaults"),)),
    Case("columnMapping", (enabled("columnMapping.mode", "name"),)),
    Case("coordinatedCommits-preview", (supported("coordinatedCommits-preview"),)),
    Case("deletionVectors", (enabled("enableDeletionVectors"),)),
    Case("geospatial", (supported("geospatial"),)),
    Case("icebergCompatV2", (enabled("columnMapping.mode", "name"), enabled("enableIcebergCompatV2"))),
    Case("identityColumns", (supported("identityColumns"),)),
    Case("materializePartitionColumns", (supported("materializePartitionColumns"),)),
    Case("rowTracking", (enabled("enableRowTracking"),)),
    Case("v2Checkpoint", (enabled("checkpointPolicy", "v2"),)),
    Case("vacuumProtocolCheck", (supported("vacuumProtocolCheck"),)),
    Case("variantShredding", (supported("variantShredding"),)),
]


def marked(cases: Sequence[Case]) -> list[Any]:
    """Return the cases, of which make test runs the feature that Delta gives to new tables."""
    return [
        pytest.param(one, marks=() if str(one) == "deletionVectors" else pytest.mark.soak) for one in cases
    ]


def alter(spark: SparkSession, path: str, case: Case) -> None:
    for clause in case.clauses:
        spark.sql(f"ALTER TABLE delta.`{path}` {clause}")


def rows(spark: SparkSession, *numbers: int, value: str = "x") -> DataFrame:
    found = spark.createDataFrame([(number, value) for number in numbers], "k long, v string").coalesce(1)
    return found.withColumn("t", F.timestamp_seconds(F.col("k") + 1_700_000_000))


def content(frame: DataFrame) -> list[tuple[int, str]]:
    return sorted((row.k, row.v) for row in frame.select("k", "v").collect())


def put(spark: SparkSession, path: str, near: Near | Column, *numbers: int, version: int) -> int:
    commit, new = tables.begin(spark, path), rows(spark, *numbers, value="y").persist()
    try:
        moves = [Move("merges", version - 1 if version else None, version)]
        return upsert(new, commit, commit.candidates(near), ["k"], moves).rows
    finally:
        new.unpersist()


@pytest.fixture
def path(lake: Lake) -> str:
    """Create a table with three rows in one file."""
    location = lake.ensure(SPEC)
    tables.append(rows(lake.spark, 0, 1, 2), location, [Move("appends", None, 0)])
    return location


def test_every_known_feature_is_tried() -> None:
    assert {feature for case in TRIED for feature in case.features.split()} == SAFE
    assert not {case.features for case in REFUSED} & SAFE


@pytest.mark.parametrize("case", marked(TRIED), ids=str)
def test_with_a_known_feature_writers_and_readers_give_the_same_as_without(
    lake: Lake, path: str, case: Case
) -> None:
    spark = lake.spark
    alter(spark, path, case)
    assert set(case.features.split()) <= features_in(delta.protocol(tables.snapshot(spark, path)))
    assert lake.ensure_source(SPEC) == path
    first = tables.version_of(spark, path) + 1

    assert tables.append(rows(spark, 3, 4, 5), path, [Move("appends", 0, 1)]).rows == 3
    with pytest.raises(PositionError, match="appends"):
        tables.append(rows(spark, 3, 4, 5), path, [Move("appends", 0, 1)])
    assert tables.append(rows(spark, 6), path, [Move("appends", 1, 2)]).rows == 1
    if not case.appends_only:
        spark.sql(f"DELETE FROM delta.`{path}` WHERE k = 4")
        assert put(spark, path, Near(((Between("k", 1, 3),),)), 1, 3, 7, version=0) == 3
        assert put(spark, path, F.col("k").between(5, 9), 5, 8, version=1) == 2
        assert update(spark, path, F.col("k") == 0, {"v": F.lit("z")}) == 1
        assert delete(spark, path, F.col("k") == 2) == 1

    expected = APPENDED if case.appends_only else CHANGED
    assert content(tables.read(spark, path)) == expected
    assert content(spark.read.format("delta").load(path)) == expected
    for version in range(first, tables.version_of(spark, path) + 1):
        assert changes(tables.read_changes(spark, path, version, version)) == changes(
            spark.read.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", version)
            .option("endingVersion", version)
            .load(path)
        )
    memory.forget()
    files = data_files.files_of(spark, path, tables.snapshot(spark, path)).by_name
    assert sum(file.rows or 0 for file in files.values()) == len(expected)
    check_log(path, len(expected), appends_only=case.appends_only)
    clean_from_checkpoint(spark, path)
    check_log(path, len(expected), appends_only=case.appends_only)
    assert content(tables.read(spark, path)) == expected


def changes(frame: DataFrame) -> list[tuple[object, ...]]:
    """Return the rows of a change feed, with the times of the commits."""
    at = F.unix_millis("_commit_timestamp")
    return sorted(map(tuple, frame.select("k", "v", "_change_type", "_commit_version", at).collect()))


def check_log(path: str, count: int, *, appends_only: bool) -> None:
    """Check what the reader without a JVM finds."""
    found = Log(path, "t")
    assert found.refresh()
    merged = {} if appends_only else {"merges": 1}
    assert (found.rows, found.transactions) == (count, {"appends": 2, **merged})
    assert found.newest is not None
    assert found.newest.timestamp() == 1_700_000_000 + (6 if appends_only else 8)


def clean_from_checkpoint(spark: SparkSession, path: str) -> None:
    """Write a checkpoint, and remove everything before it from the log."""
    clean_log(spark, path, timedelta(0))
    delta.write_checkpoint(delta.log_of(spark, path))
    pipeline.forget_commits(path, before=tables.version_of(spark, path))


@pytest.mark.parametrize("case", marked(REFUSED), ids=str)
def test_any_other_feature_is_refused_by_its_name_before_anything_is_read_or_written(
    lake: Lake, path: str, case: Case
) -> None:
    alter(lake.spark, path, case)
    before = sorted(Path(path).rglob("*"))

    for look in (
        lambda: lake.ensure(SPEC),
        lambda: lake.ensure_source(SPEC),
        lambda: lake.exists(SPEC.layer, SPEC.name),
    ):
        with pytest.raises(
            TableError, match=rf"^silver\.numbers at .* has Delta's table feature .*{case}"
        ) as e:
            look()
        assert "DROP FEATURE" in str(e.value)
    assert sorted(Path(path).rglob("*")) == before


@pytest.fixture
def foreign(lake: Lake) -> Iterator[Path]:
    """Yield the only commit of a table, to be given another protocol."""
    path = lake.ensure(SPEC)
    log = Path(path, "_delta_log")
    for checksum in log.glob("*.crc"):
        checksum.unlink()
    yield log / f"{0:020}.json"
    forget(lake.spark)


def forget(spark: SparkSession) -> None:
    """Make Delta forget every log, as in a new process."""
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]


@pytest.mark.parametrize("feature", ["catalogManaged", "somethingOf2031"])
def test_a_feature_for_which_delta_does_not_open_the_table_is_refused_in_the_same_words(
    lake: Lake, foreign: Path, feature: str
) -> None:
    """Delta alone has no CREATE TABLE for a catalog-managed table."""
    actions = [json.loads(line) for line in foreign.read_text().splitlines()]
    of_readers = [feature, "vacuumProtocolCheck"]
    of_writers = [*of_readers, "inCommitTimestamp", "appendOnly", "invariants", "changeDataFeed"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": of_readers}
    for action in actions:
        if "protocol" in action:
            action["protocol"] = protocol | {"writerFeatures": of_writers}
        if "commitInfo" in action:
            action["commitInfo"]["inCommitTimestamp"] = action["commitInfo"]["timestamp"]
    foreign.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    foreign.with_name(f".{foreign.name}.crc").unlink(missing_ok=True)
    forget(lake.spark)

    for look in (lambda: lake.ensure(SPEC), lambda: lake.exists(SPEC.layer, SPEC.name)):
        with pytest.raises(TableError, match=f"has Delta's table feature {feature}, which lakehouse"):
            look()


def test_a_table_that_forgets_transactions_is_refused_by_the_property(lake: Lake, path: str) -> None:
    alter(lake.spark, path, Case("", (enabled("setTransactionRetentionDuration", "interval 7 days"),)))
    with pytest.raises(TableError, match=f"{RETENTION} = interval 7 days: .* UNSET TBLPROPERTIES") as refused:
        lake.ensure(SPEC)

    lake.spark.sql(str(refused.value).partition("Remove it: ")[2])
    assert lake.ensure(SPEC) == path


def test_what_a_session_adds_to_a_new_table_is_refused_too(lake: Lake) -> None:
    default = "spark.databricks.delta.properties.defaults.enableRowTracking"
    lake.spark.conf.set(default, "true")
    try:
        with pytest.raises(TableError, match="rowTracking"):
            lake.ensure(SPEC)
    finally:
        lake.spark.conf.unset(default)


@pytest.mark.soak
def test_a_dropped_feature_is_no_reason_any_more(lake: Lake, path: str) -> None:
    alter(lake.spark, path, Case("", (enabled("enableDeletionVectors"),)))
    with pytest.raises(TableError, match="deletionVectors"):
        lake.ensure(SPEC)
    alter(lake.spark, path, Case("", (enabled("enableDeletionVectors", "false"),)))
    alter(lake.spark, path, Case("", ("DROP FEATURE deletionVectors",)))

    assert lake.ensure(SPEC) == path
    assert tables.append(rows(lake.spark, 3), path, [Move("appends", 0, 1)]).rows == 1


@pytest.mark.parametrize(
    ("protocol", "features"),
    [
        ({"minReaderVersion": 1, "minWriterVersion": 2}, {"appendOnly", "invariants"}),
        (
            {"minReaderVersion": 1, "minWriterVersion": 4},
            {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"},
        ),
        ({"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}, {"rowTracking"}),
        (
            {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["a"],
                "writerFeatures": ["a", "b"],
            },
            {"a", "b"},
        ),
    ],
)
def test_the_features_of_a_protocol(protocol: dict[str, object], features: set[str]) -> None:
    assert features_in(protocol) == features


def test_an_old_protocol_with_column_mapping_is_refused() -> None:
    assert features_in({"minReaderVersion": 2, "minWriterVersion": 5}) - SAFE == {"columnMapping"}


def test_rows_that_a_constraint_or_a_generated_column_forbids_are_not_written(lake: Lake) -> None:
    path = lake.path(SPEC.layer, SPEC.name)
    lake.spark.sql(
        f"CREATE TABLE delta.`{path}` (k BIGINT NOT NULL, v STRING GENERATED ALWAYS AS (CAST(k AS STRING)), "
        "t TIMESTAMP) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')"
    )
    alter(lake.spark, path, Case("", ("ADD CONSTRAINT positive CHECK (k >= 0)",)))
    assert lake.ensure_source(SPEC) == path

    assert tables.append(rows(lake.spark, 1, value="1"), path).rows == 1
    for number, value in ((-1, "-1"), (2, "x")):
        with pytest.raises(Py4JError) as caught:
            tables.append(rows(lake.spark, number, value=value), path)
        assert f"with values: k : {number}" in error_line(caught.value).replace(f"v : {value}, ", "")
    assert content(tables.read(lake.spark, path)) == [(1, "1")]
