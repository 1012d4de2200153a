"""A table follows its declaration: columns are added, types widened in place, and user columns kept.

Anything else is refused.
"""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DecimalType, MapType, StringType, StructType

from lakehouse.common.errors import TableError
from lakehouse.common.events import Event, EventLog, noting
from lakehouse.engine.layers import bronze, silver
from lakehouse.engine.runtime.runner import RunOptions, run
from lakehouse.engine.runtime.signals import Stop
from lakehouse.operations.audit.landing import unknown_fields
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake, TableSpec
from lakehouse.storage.tables.schema_evolution import Added, SchemaChanges, Widened, compare
from lakehouse.streams.definition import Field, FieldType, Stream
from tests.support import pipeline
from tests.support.pipeline import GOLD, SILVER, SOURCE, STREAM, Raw, await_

LANDED = pipeline.utc("2026-03-29T01:00:00")
PLACE = StructType().add("partition", "integer").add("offset", "long")
SCHEMA = StructType().add("name", "string").add("n", "integer").add("at", "timestamp").add("place", PLACE)
SPEC = TableSpec("silver", "numbers", SCHEMA, ("n",))
WIDER = TableSpec(
    "silver",
    "numbers",
    StructType()
    .add("name", "string")
    .add("unit", "string")
    .add("n", "integer")
    .add("at", "timestamp")
    .add("place", StructType().add("topic", "string").add("partition", "integer").add("offset", "long")),
    ("n", "unit"),
)


def with_column(name: str, type_: str) -> StructType:
    return StructType().add("key", "string").add(name, type_)


@pytest.mark.parametrize(
    ("was", "declared", "changes"),
    [
        ("integer", "long", SchemaChanges(widened=(Widened("n", "bigint"),))),
        ("float", "double", SchemaChanges(widened=(Widened("n", "double"),))),
        ("decimal(10,2)", "decimal(38,9)", SchemaChanges(widened=(Widened("n", "decimal(38,9)"),))),
        ("long", "decimal(38,9)", SchemaChanges(widened=(Widened("n", "decimal(38,9)"),))),
        (
            "long",
            "decimal(20,9)",
            SchemaChanges(other=("n (bigint, declared as decimal(20,9))",)),
        ),
        ("long", "integer", SchemaChanges(narrowed=("n (bigint, declared as int)",))),
        ("long", "double", SchemaChanges(other=("n (bigint, declared as double)",))),
        ("string", "long", SchemaChanges(other=("n (string, declared as bigint)",))),
        ("string", "string", SchemaChanges()),
    ],
)
def test_a_type_is_widened_where_the_new_one_holds_every_value(
    was: str, declared: str, changes: SchemaChanges
) -> None:
    assert compare(with_column("n", was), with_column("n", declared)) == changes


def test_columns_are_told_by_name_also_within_structs_and_arrays() -> None:
    standing = StructType().add("old", "string").add("b", "long").add("reasons", ArrayType(PLACE))
    nested = StructType().add("offset", "long").add("rule", "string").add("partition", "integer")
    declared = StructType().add("a", "string").add("reasons", ArrayType(nested)).add("b", "long")

    assert compare(standing, declared) == SchemaChanges(
        added=(Added("a", "string", None), Added("reasons.element.rule", "string", "offset")),
        missing=("old",),
    )


def test_types_are_compared_without_comments_and_whether_they_may_be_null() -> None:
    notes = {"comment": "a user's", "delta.columnMapping.id": 3}

    def schema(field: StructType, *, nullable: bool) -> StructType:
        of_map, of_array = MapType(StringType(), field, nullable), ArrayType(field, nullable)
        return StructType().add("map", of_map).add("array", of_array).add("struct", field)

    noted = schema(StructType().add("n", "long", nullable=False, metadata=notes), nullable=False)
    plain = schema(StructType().add("n", "long"), nullable=True)
    wider = schema(StructType().add("n", "decimal(38,9)").add("rule", "string"), nullable=True)

    assert compare(noted, plain) == compare(plain, noted) == SchemaChanges()
    changes = compare(noted, wider)
    assert changes.added[0] == Added("map.value.rule", "string", "n")
    assert changes.widened[0] == Widened("map.value.n", "decimal(38,9)")
    assert compare(wider, noted).missing[0] == "map.value.rule"


def test_a_comment_inside_a_map_stops_nothing_and_its_values_get_columns_in_place(lake: Lake) -> None:
    def spec(value: StructType) -> TableSpec:
        return replace(SPEC, schema=StructType().add("n", "integer").add("of", MapType(StringType(), value)))

    first = spec(StructType().add("total", "integer"))
    path = lake.ensure(first)
    tables.append(lake.spark.createDataFrame([(1, {"a": (1,)})], first.schema), path)
    lake.spark.sql(f"ALTER TABLE delta.`{path}` ALTER COLUMN of.value.total COMMENT 'theirs'")
    assert lake.ensure(first) == path
    tables.append(lake.spark.createDataFrame([(2, {"a": (2,)})], first.schema), path)

    second = spec(StructType().add("total", "long").add("count", "long"))
    lake.ensure(second)
    tables.append(lake.spark.createDataFrame([(3, {"a": (2**40, 7)})], second.schema), path)
    found = {row.n: tuple(row.of["a"]) for row in tables.read(lake.spark, path).collect()}
    assert found == {1: (1, None), 2: (2, None), 3: (2**40, 7)}


def test_a_new_column_comes_to_its_place_and_rows_that_stand_have_null(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, noted = Lake(spark, str(tmp_path / "a lake [1]")), list[Event]()
    path = lake.ensure(SPEC)
    first = spark.createDataFrame([("a", 1, LANDED, (0, 7))], SCHEMA)
    tables.append(first, path)
    assert lake.ensure_source(SPEC) == path
    assert DeltaTable(path).version() == 1

    with noting(EventLog("a test", lambda batch, _again: noted.extend(batch), print)):
        lake.ensure(WIDER)
    assert [(event.kind, event.table) for event in noted] == [("schema_change", "silver.numbers")] * 2
    assert noted[0].message == "silver.numbers: ADD COLUMNS (`unit` string AFTER `name`)"
    evolved = DeltaTable(path)
    assert evolved.metadata().configuration["delta.dataSkippingStatsColumns"] == "n,unit"
    assert lake.ensure(WIDER) == lake.ensure_source(SPEC) == path
    assert DeltaTable(path).version() == evolved.version()

    # By name, in any order: one writer does not know the column yet, and the other has it elsewhere.
    tables.append(first.select("place", "n", "name", "at").withColumn("n", F.lit(2)), path)
    rows = spark.createDataFrame(
        [("s", "c", 3, LANDED, ("t", 0, 9))],
        "unit string, name string, n int, "
        "at timestamp, place struct<topic: string, partition: int, offset: bigint>",
    )
    tables.append(rows, path)

    found = DeltaTable(path).to_pyarrow_table()
    assert found.column_names == ["name", "unit", "n", "at", "place"]
    assert sorted(
        (row["n"], row["name"], row["unit"], *row["place"].values()) for row in found.to_pylist()
    ) == [
        (1, "a", None, None, 0, 7),
        (2, "a", None, None, 0, 7),
        (3, "c", "s", "t", 0, 9),
    ]
    with pytest.raises(
        TableError, match=r"silver.numbers has columns that .* declaration: unit, place.topic\. "
    ):
        lake.ensure(SPEC)


def test_a_column_of_a_user_is_null_in_new_rows_and_kept_in_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(spark, str(tmp_path))
    path = lake.ensure(SPEC)
    tables.append(spark.createDataFrame([(one, 1, LANDED, (0, 7)) for one in "abc"], SCHEMA), path)
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (note string FIRST)")
    spark.sql(f"UPDATE delta.`{path}` SET note = 'kept'")

    assert lake.ensure(SPEC) == path
    rows = spark.createDataFrame([(one, 2, LANDED, (0, 8)) for one in "bcd"], SCHEMA)
    rows = rows.withColumn(tables.DELETED, F.col("name") == "c")
    assert tables.replace(rows, path, ("name",), within=F.lit(True)) == 3

    found = DeltaTable(path).to_pyarrow_table(columns=["name", "n", "note"]).to_pylist()
    assert sorted(tuple(row.values()) for row in found) == [
        ("a", 1, "kept"),
        ("b", 2, "kept"),
        ("d", 2, None),
    ]


@pytest.mark.soak
@pytest.mark.parametrize("column", ["place.mine", "_mine"])
def test_a_change_by_a_user_that_is_refused_says_how_to_take_it_back(
    spark: SparkSession, tmp_path: Path, column: str
) -> None:
    lake = Lake(spark, str(tmp_path))
    path = lake.ensure(SPEC)
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (note string)")
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS ({column} integer)")

    with pytest.raises(TableError) as caught:
        lake.ensure(SPEC)
    said = re.search(
        r'declaration: (.*?)\. .* Version 2 .* sql --write "(.*)", and then .* rebuild silver$',
        str(caught.value),
    )
    assert said is not None
    assert said[1] == column
    spark.sql(said[2])

    assert lake.ensure(SPEC) == path
    assert DeltaTable(path).to_pyarrow_table().column_names == [*SCHEMA.names, "note"]


def test_a_column_that_several_jobs_add_at_once_is_added_once(spark: SparkSession, tmp_path: Path) -> None:
    path = Lake(spark, str(tmp_path)).ensure(SPEC)
    with ThreadPoolExecutor(4) as pool:
        sessions = [spark.newSession() for _ in range(4)]
        paths = set(pool.map(lambda session: Lake(session, str(tmp_path)).ensure(WIDER), sessions))

    assert paths == {path}
    names = [field.name for field in DeltaTable(path).schema().fields]
    assert names == ["name", "unit", "n", "at", "place"]


def test_a_widened_type_keeps_the_rows_and_needs_a_reader_that_knows_of_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    narrow = StructType().add("n", "integer").add("x", "float").add("money", DecimalType(10, 2))
    wide = StructType().add("n", "long").add("x", "double").add("money", DecimalType(38, 9))
    path = Lake(spark, str(tmp_path)).ensure(replace(SPEC, schema=narrow))
    one = spark.range(1).select(F.lit(1).alias("n"), F.lit(1.5).alias("x"), F.lit(2.25).alias("money"))
    tables.append(one.select(*(F.col(f.name).cast(f.dataType) for f in narrow)), path)
    assert "delta.enableTypeWidening" not in DeltaTable(path).metadata().configuration

    Lake(spark, str(tmp_path)).ensure(replace(SPEC, schema=wide))
    large = one.withColumn("n", F.lit(2**40)).select(*(F.col(f.name).cast(f.dataType) for f in wide))
    tables.append(large, path)

    rows = tables.read(spark, path)
    assert rows.schema.simpleString() == "struct<n:bigint,x:double,money:decimal(38,9)>"
    assert sorted((row.n, row.x, f"{row.money:f}") for row in rows.collect()) == [
        (1, 1.5, "2.250000000"),
        (2**40, 1.5, "2.250000000"),
    ]
    with pytest.raises(DeltaProtocolError, match="typeWidening"):
        DeltaTable(path).to_pyarrow_table()
    assert Lake(spark, str(tmp_path)).ensure_source(replace(SPEC, schema=narrow)) == path
    with pytest.raises(TableError, match=r"n \(bigint, declared as int\), x \(double, declared as float\)"):
        Lake(spark, str(tmp_path)).ensure(replace(SPEC, schema=narrow))


# A stream gets a field while others read its tables.


def with_region(stream: Stream) -> Stream:
    """Return the stream with one more optional field in its source's contract."""
    (source,) = stream.sources
    region = Field("region", "region", FieldType.STRING, required=False)
    contract = replace(source.contract, fields=(*source.contract.fields, region))
    return replace(stream, sources=(replace(source, contract=contract),))


def event(**more: object) -> Raw:
    record = {"serviceId": "s", "metricName": "m", "value": 1.0, "timestamp": 1_767_225_600_000, **more}
    return Raw(json.dumps(record).encode())


def counts(settings: Settings) -> list[int]:
    return [row["count"] for row in pipeline.rows_of(settings, GOLD)]


def await_count(settings: Settings, count: int, live: threading.Thread) -> None:
    def is_there() -> bool:
        assert live.is_alive()
        return counts(settings) == [count]

    await_(is_there)


@pytest.mark.soak
def test_a_new_field_reaches_silver_while_gold_goes_on_reading(
    spark: SparkSession, lake_settings: Settings
) -> None:
    settings = lake_settings
    Lake(spark, settings.lake).ensure(bronze.spec(SOURCE))
    pipeline.land(spark, settings, [[event(), event()]], landed_at=LANDED)
    pipeline.run_layers(spark, settings, "silver", "gold")
    stop = Stop()
    notices: list[str] = []
    failures: list[BaseException] = []

    def gold() -> None:
        try:
            run(
                Lake(spark, settings.lake),
                [STREAM],
                ["gold"],
                settings,
                RunOptions("200 ms", stop=stop, on_notice=notices.append),
            )
        except BaseException as failure:  # noqa: BLE001 - passed to the test
            failures.append(failure)

    live = threading.Thread(target=gold)
    live.start()
    try:
        pipeline.land(spark, settings, [[event()]], landed_at=LANDED, first_offset=2)
        pipeline.run_layers(spark, settings, "silver")
        await_count(settings, 3, live)
        pipeline.land(spark, settings, [[event(region="eu")]], landed_at=LANDED, first_offset=3)
        pipeline.run_layers(spark, settings, "silver", stream=with_region(STREAM))
        await_count(settings, 4, live)
    finally:
        stop.request()
        live.join(300)

    assert failures == []
    assert notices == []
    assert pipeline.run_layers(spark, settings, "gold") == []
    assert counts(settings) == [4]
    rows = sorted(pipeline.rows_of(settings, SILVER), key=lambda row: row["offset"])
    assert [row["region"] for row in rows] == [None, None, None, "eu"]
    assert list(rows[0]) == silver.spec(with_region(STREAM).sources[0]).schema.names


def test_fields_that_no_contract_names_are_counted(spark: SparkSession) -> None:
    values = [
        event(region="eu", zone=1).value,
        event(region=None).value,
        b'{"region": 1, "region": 2, "": {"inner": 1}}',
        b'{"cut": 1, "off',
        b'\xff{"not_utf8": 1}',
        b'[{"in_an_array": 1}]',
        b'"text"',
        b"",
        None,
    ]
    rows = [(value, 1 - number % 2, number) for number, value in enumerate(values)]
    frame = spark.createDataFrame(rows, "value binary, partition int, offset long")

    nested = replace(SOURCE.contract, event_time="region.at")
    assert {row.field for row in unknown_fields(frame, nested).collect()} == {"", "zone", "timestamp"}
    found = unknown_fields(frame, SOURCE.contract)

    assert sorted(tuple(row) for row in found.collect()) == [
        ("", 1, 1, 2),
        ("region", 3, 0, 1),
        ("zone", 1, 1, 0),
    ]
