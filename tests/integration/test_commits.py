"""Our own commits: what they find, write, leave alone and conflict with, even on tables of many files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse.common.errors import PositionError, TableError
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.tables import DELETED, Lake, Move, TableSpec, Why, Written, data_files
from lakehouse.storage.tables import delta_internals as delta
from lakehouse.storage.tables.pruning import Between, Near
from tests.support import pipeline
from tests.support.counting import counted

SCHEMA = "k long, v string"


@pytest.fixture
def table(spark: SparkSession, lake_settings: Settings) -> str:
    schema = spark.createDataFrame([], SCHEMA).schema
    return Lake(spark, lake_settings.lake).ensure(
        TableSpec("gold", "t", schema, stats=("k",), change_feed=True)
    )


def put(
    spark: SparkSession,
    table: str,
    rows: Iterable[tuple[int, str]],
    *,
    near: str | None = None,
    moves: Sequence[Move] = (),
) -> int:
    """Upsert rows; those without a value are deleted."""
    frame = spark.createDataFrame([(k, v, not v) for k, v in rows], f"{SCHEMA}, {DELETED} boolean")
    commit = tables.begin(spark, table)
    candidates = commit.candidates(None if near is None else F.expr(near))
    return tables.upsert(frame.persist(), commit, candidates, ["k"], moves).rows


def moved(before: int | None, after: int, application: str = "query") -> list[Move]:
    return [Move(application, before, after)]


def fill(spark: SparkSession, table: str, files: int, *, twice: str = "false") -> None:
    """Append the keys 0 to 39 in new files, repeating those that `twice` selects."""
    rows = spark.range(0, 40, 1, files).select(F.col("id").alias("k"), F.lit("old").alias("v"))
    rows.unionByName(rows.where(twice)).write.format("delta").mode("append").save(table)


def files_by_rows(spark: SparkSession, table: str) -> list[int]:
    """Return how many rows each file of the table has, in ascending order."""
    rows = spark.read.format("delta").load(table).groupBy(F.col("_metadata.file_name")).count()
    return sorted(row["count"] for row in rows.collect())


def bounds_of_files(spark: SparkSession, table: str) -> list[tuple[int, int]]:
    """Return the least and the greatest key of each file of the table."""
    rows = spark.read.format("delta").load(table).groupBy(F.col("_metadata.file_name"))
    bounds = rows.agg(F.min("k").alias("least"), F.max("k").alias("greatest")).collect()
    return sorted((row.least, row.greatest) for row in bounds)


def rows_of(frame: DataFrame) -> list[tuple[int, str]]:
    return sorted((row.k, row.v) for row in frame.collect())


def feed_of(spark: SparkSession, table: str, version: int) -> list[tuple[str, int, str]]:
    """Return a version's change feed as Spark's own reader reads it."""
    reader = spark.read.format("delta").option("readChangeFeed", "true")
    changes = reader.option("startingVersion", version).option("endingVersion", version).load(table)
    return sorted((row["_change_type"], row.k, row.v) for row in changes.collect())


@pytest.mark.parametrize("files", [pytest.param(2, marks=pytest.mark.soak), 20])
def test_an_upsert_replaces_inserts_and_deletes_by_key_and_the_feed_says_so(
    spark: SparkSession, table: str, files: int
) -> None:
    fill(spark, table, files)

    assert put(spark, table, [(3, "new"), (7, ""), (41, "more"), (99, "")], near="k <= 41") == 4

    expected = [(k, "new" if k == 3 else "old") for k in range(40) if k != 7] + [(41, "more")]
    assert rows_of(tables.read(spark, table)) == expected
    assert feed_of(spark, table, 2) == [
        ("delete", 7, "old"),
        ("insert", 41, "more"),
        ("update_postimage", 3, "new"),
        ("update_preimage", 3, "old"),
    ]


@pytest.mark.parametrize("files", [pytest.param(2, marks=pytest.mark.soak), 20])
def test_rows_are_amended_where_a_condition_holds_and_the_feed_says_so(
    spark: SparkSession, table: str, files: int
) -> None:
    """One row is in the table twice, and another is given twice."""
    fill(spark, table, files, twice="k = 3")
    given = spark.sql(
        "SELECT * FROM VALUES (3L, 'a'), (5L, 'b'), (5L, 'b'), (7L, 'c'), (99L, 'd') AS r(k, w)"
    )

    def update() -> int:
        where, values = F.col("t.v").eqNullSafe("old") & (F.col("s.w") != "c"), {"v": F.col("s.w")}
        return tables.update_matched(given, table, ["k"], where, values, within=F.expr("k BETWEEN 3 AND 99"))

    assert (update(), update()) == (3, 0)

    assert tables.version_of(spark, table) == 2
    expected = [(k, {3: "a", 5: "b"}.get(k, "old")) for k in [*range(40), 3]]
    assert rows_of(tables.read(spark, table)) == sorted(expected)
    assert feed_of(spark, table, 2) == [
        ("update_postimage", 3, "a"),
        ("update_postimage", 3, "a"),
        ("update_postimage", 5, "b"),
        ("update_preimage", 3, "old"),
        ("update_preimage", 3, "old"),
        ("update_preimage", 5, "old"),
    ]


def test_what_is_missing_is_inserted_and_what_a_condition_selects_is_set(
    spark: SparkSession, table: str
) -> None:
    fill(spark, table, 20)
    given = spark.sql("SELECT * FROM VALUES (3L, 'new'), (41L, 'new') AS r(k, v)")

    inserted = [tables.insert_missing(given, table, ["k"], F.expr("k IN (3, 41)")) for _ in range(2)]
    changed = [tables.clear(spark, table, ["v"], F.expr("k >= 39")) for _ in range(2)]

    assert (inserted, changed) == ([1, 0], [2, 0])
    assert tables.version_of(spark, table) == 3
    assert rows_of(tables.read(spark, table).where("k < 39")) == [(k, "old") for k in range(39)]
    assert tables.read(spark, table).where("k >= 39").orderBy("k").collect() == [(39, None), (41, None)]
    operations = spark.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT 2").collect()
    assert [row.operation for row in operations] == ["UPDATE", "WRITE"]


def test_a_repeated_upsert_is_refused_and_one_without_rows_commits_nothing(
    spark: SparkSession, table: str
) -> None:
    assert put(spark, table, [(1, "a"), (2, "b")], moves=moved(None, 1)) == 2
    assert feed_of(spark, table, 1) == [("insert", 1, "a"), ("insert", 2, "b")]
    with pytest.raises(
        PositionError, match=f"^query: {table} is at position 1, but this process left it at None"
    ):
        put(spark, table, [(1, "other")], moves=moved(None, 1))
    assert put(spark, table, [], moves=moved(1, 2)) == 0

    assert tables.version_of(spark, table) == 1
    assert tables.transactions(spark, table) == {"query": 1}
    assert rows_of(tables.read(spark, table)) == [(1, "a"), (2, "b")]


def test_what_a_commit_notes_comes_with_its_rows_or_alone_and_begins_with_what_is_noted(
    spark: SparkSession, table: str
) -> None:
    unread = spark.sql("SELECT 1L AS k, CAST(raise_error('it is read') AS string) AS v")
    rows = spark.sql("SELECT 1L AS k, 'a' AS v")

    both = [*moved(None, 7), *moved(None, 3, "query@5")]
    assert tables.append(rows, table, both) == Written(1, 1)
    assert tables.note(spark, table, moved(7, 9)) == Written(0, 2)
    assert tables.note(spark, table, moved(None, 1, "another")) == Written(0, 3)

    for moves in (moved(7, 10), moved(None, 10), [*moved(9, 10), *moved(2, 4, "query@5")]):
        with pytest.raises(PositionError, match="Another process is running the same layer"):
            tables.append(unread, table, moves)
        with pytest.raises(PositionError, match="Another process is running the same layer"):
            tables.note(spark, table, moves)
    assert tables.version_of(spark, table) == 3
    assert tables.transactions(spark, table) == {"query": 9, "query@5": 3, "another": 1}
    assert rows_of(tables.read(spark, table)) == [(1, "a")]


@pytest.mark.parametrize("write", ["append", "upsert", "note"])
def test_of_two_that_write_the_same_micro_batch_the_second_conflicts_and_is_refused(
    spark: SparkSession, table: str, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    """The second reads the notes before the first commits its own."""
    rows, finish, commits = spark.createDataFrame([(1, "a")], SCHEMA), tables.Commit.finish, 0

    def finish_late(commit: tables.Commit, moves: Sequence[Move], why: Why | None = None) -> int:
        nonlocal commits
        commits += 1
        if commits == 1:
            assert tables.append(rows, table, moves).rows == 1
        return finish(commit, moves, why)

    def second() -> object:
        if write == "append":
            return tables.append(spark.sql("SELECT 2L AS k, 'b' AS v"), table, moved(None, 1))
        if write == "note":
            return tables.note(spark, table, moved(None, 1))
        return tables.retry_on_conflict(lambda: put(spark, table, [(2, "b")], moves=moved(None, 1)))

    monkeypatch.setattr(tables.Commit, "finish", finish_late)
    with pytest.raises(PositionError, match="is at position 1, but this process left it at None"):
        second()

    assert commits == 2
    assert rows_of(tables.read(spark, table)) == [(1, "a")]
    assert tables.version_of(spark, table) == 1


def test_a_condition_with_whole_numbers_leaves_the_files_that_may_have_them(
    spark: SparkSession, table: str
) -> None:
    """Each of the twenty files has two keys."""
    fill(spark, table, 20)
    commit, k = tables.begin(spark, table), F.col("k")
    conditions = (k == 41, k.between(3, 4), k.between(2**40, 2**41), (k == 0) | (k == 39), F.expr("k < 5"))
    assert [len(commit.candidates(where).files) for where in conditions] == [0, 2, 0, 2, 3]
    assert commit.candidates(None).rows == 40


@pytest.mark.parametrize("files", [pytest.param(2, marks=pytest.mark.soak), 20])
def test_of_two_that_put_the_same_new_key_the_second_conflicts_and_replaces_it(
    spark: SparkSession, table: str, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    """The second looks for rows with the key before the first commits one."""
    fill(spark, table, files)
    finish, commits = tables.Commit.finish, 0

    def finish_late(commit: tables.Commit, moves: Sequence[Move], why: Why | None = None) -> int:
        nonlocal commits
        commits += 1
        if commits == 1:
            assert put(spark, table, [(41, "first")], near="k = 41") == 1
        return finish(commit, moves, why)

    monkeypatch.setattr(tables.Commit, "finish", finish_late)
    assert tables.retry_on_conflict(lambda: put(spark, table, [(41, "second")], near="k = 41")) == 1

    assert commits == 3
    assert [row for row in rows_of(tables.read(spark, table)) if row[0] > 39] == [(41, "second")]


def test_an_append_goes_by_names_and_types_of_the_table_and_names_a_column_that_it_lacks(
    spark: SparkSession, table: str
) -> None:
    swapped = spark.sql("SELECT 'x' AS v, CAST(5 AS int) AS k")
    assert tables.append(swapped, table) == Written(1, 1)
    assert tables.append(spark.sql("SELECT 6L AS k"), table) == Written(1, 2)
    with pytest.raises(TableError, match="has no column other; it has k, v"):
        tables.append(spark.sql("SELECT 7L AS k, 1 AS other"), table)

    assert tables.read(spark, table).orderBy("k").collect() == [(5, "x"), (6, None)]


def test_a_table_whose_change_feed_was_switched_off_gets_no_rows_of_one(
    spark: SparkSession, table: str
) -> None:
    put(spark, table, [(1, "a"), (2, "b")])
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES (delta.enableChangeDataFeed = false)")

    put(spark, table, [(1, "c"), (2, "")])

    assert rows_of(tables.read(spark, table)) == [(1, "c")]


def test_a_table_without_statistics_is_written_and_counted_all_the_same(
    spark: SparkSession, table: str
) -> None:
    spark.conf.set("spark.databricks.delta.stats.collect", "false")
    try:
        assert tables.append(spark.sql("SELECT 1L AS k, 'a' AS v"), table) == Written(1, 1)
        assert put(spark, table, [(1, "b"), (2, "c")]) == 2
    finally:
        spark.conf.unset("spark.databricks.delta.stats.collect")

    assert rows_of(tables.read(spark, table)) == [(1, "b"), (2, "c")]


def test_rows_that_stay_in_a_large_file_go_to_files_of_their_own(spark: SparkSession, table: str) -> None:
    """The next change to the changed rows then rewrites only their file."""
    many = 4_100
    old = {number: hashlib.sha256(str(number).encode()).hexdigest() for number in range(many)}
    fields = F.col("id").alias("k"), F.sha2(F.col("id").cast("string"), 256).alias("v")
    spark.range(0, many, 1, 1).select(*fields).write.format("delta").mode("append").save(table)

    assert put(spark, table, [(7, "new"), (8, ""), (many, "new")], near="k >= 0") == 3
    assert files_by_rows(spark, table) == [2, many - 2]
    assert feed_of(spark, table, 2) == [
        ("delete", 8, old[8]),
        ("insert", many, "new"),
        ("update_postimage", 7, "new"),
        ("update_preimage", 7, old[7]),
    ]
    assert put(spark, table, [(7, "newer")], near="k >= 0") == 1
    assert files_by_rows(spark, table) == [2, many - 2]
    expected = old | {7: "newer", many: "new"}
    del expected[8]
    assert rows_of(spark.read.format("delta").load(table)) == sorted(expected.items())


@pytest.mark.soak
@pytest.mark.parametrize("many", [pytest.param(5_000, id="few"), pytest.param(15_000, id="many")])
def test_rows_that_stay_keep_apart_as_in_the_files_they_lay_in(
    spark: SparkSession, table: str, many: int
) -> None:
    """Otherwise the files of one merge would mix rows of all times, and every later merge would read them."""
    keys = F.col("id").alias("k")
    for first, count in ((0, many), (many, many), (2 * many, 3)):
        ids = spark.range(first, first + count, 1, 1)
        rows = ids.select(keys, F.sha2(F.col("id").cast("string"), 256).alias("v"))
        rows.write.format("delta").mode("append").save(table)

    assert put(spark, table, [(7, "new"), (many + 7, "new"), (2 * many, "new")], near="k >= 0") == 3

    assert bounds_of_files(spark, table) == [(0, many - 1), (7, 2 * many + 2), (many, 2 * many - 1)]
    assert files_by_rows(spark, table) == [5, many - 1, many - 1]
    found = spark.read.format("delta").load(table)
    assert found.count() == found.select("k").distinct().count() == 2 * many + 3
    assert rows_of(found.where("v = 'new'")) == [(7, "new"), (many + 7, "new"), (2 * many, "new")]


def test_files_are_found_by_their_bounds_without_a_job_whatever_has_been_committed(
    spark: SparkSession, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(spark, table, 60)
    conditions = [Between("k", first, last) for first, last in ((3, 3), (39, None), (40, None), (None, None))]
    for number in range(3):
        put(spark, table, [(100 + number, "new")], near="k >= 100")
        with counted(spark) as counts:
            found = [tables.begin(spark, table).candidates(Near(((one,),))).rows for one in conditions]
        assert found == [1, 2 + number, 1 + number, 41 + number]
        assert counts.jobs <= (1 if number == 0 else 0)
    for statement in ("OPTIMIZE {}", "ALTER TABLE {} SET TBLPROPERTIES ('a' = 'b')"):
        spark.sql(statement.format(f"delta.`{table}`"))
        monkeypatch.setattr(data_files, "_known", {})  # as in another process, which has read no commit
        assert tables.begin(spark, table).candidates(Near(((conditions[0],),))).rows == 43


def test_files_are_found_though_the_commits_since_the_last_look_have_left_the_log(
    spark: SparkSession, table: str
) -> None:
    every = Near(((Between("k", 0, None),),))
    fill(spark, table, 2)
    assert tables.begin(spark, table).candidates(every).rows == 40
    put(spark, table, [(40, "new")], near="k >= 0")
    put(spark, table, [(41, "new")], near="k >= 0")
    delta.write_checkpoint(delta.log_of(spark, table))
    pipeline.forget_commits(table, before=tables.version_of(spark, table))

    assert tables.begin(spark, table).candidates(every).rows == 42
