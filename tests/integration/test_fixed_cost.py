"""What a micro-batch costs whatever its rows: Spark jobs, classes compiled, calls to the JVM. Not a clock."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse import tables
from lakehouse.settings import Settings
from lakehouse.spark import execution
from lakehouse.tables import Lake, TableSpec, Transaction
from tests import pipeline
from tests.batches import gold_of, silver_of, take
from tests.counting import Counts, counted
from tests.pipeline import BRONZE, GOLD, SILVER, Raw

LANDED = pipeline.utc("2026-05-04T12:00:00")
RECORDS = 40
ROUNDS = [
    pytest.param((True, 2, 3), id="interpreted"),
    pytest.param((False, 3, 10), id="generated, ten rounds", marks=pytest.mark.soak),
]
"""How they are executed, the rounds that warm the pipeline up, and those that are counted."""


@pytest.fixture
def table(spark: SparkSession, lake_settings: Settings) -> str:
    schema = spark.range(1).schema
    return Lake(spark, lake_settings.lake).ensure(TableSpec("silver", "numbers", schema, stats=("id",)))


def test_an_append_is_one_job_and_a_repeated_one_and_the_look_for_it_are_none(
    spark: SparkSession, table: str
) -> None:
    rows, one = spark.range(0, 1000, 1, 2), Transaction("query", 0)
    with counted(spark) as appended:
        assert tables.append(rows, table, one) == 1000
    with counted(spark) as looked:
        assert tables.is_written(spark, table, one)
        assert not tables.is_written(spark, table, Transaction("query", 1))
        assert not tables.is_written(spark, table, Transaction("other", 0))
    with counted(spark) as repeated:
        assert tables.append(rows, table, one) == 0

    assert (appended.jobs, looked.jobs, repeated.jobs) == (1, 0, 0)
    assert spark.read.format("delta").load(table).count() == 1000


def rows_of_commit(spark: SparkSession, settings: Settings, table: str, version: int) -> DataFrame:
    """Return what a commit has added: a plan without a value that is another in each round."""
    path = str(pipeline.path_of(settings, table))
    added = [file["path"] for file in tables.read_commit(spark, path, version).of("add")]
    schema = spark.read.format("delta").load(path).schema
    return spark.read.schema(schema).parquet(*(f"{path}/{name}" for name in added))


def records(number: int) -> list[Raw]:
    """A round's records: each minute again and one more, of three services, one record malformed."""
    at = int((LANDED - timedelta(minutes=30)).timestamp() * 1000) + number * 20_000
    values = [
        {"serviceId": f"s{n % 3}", "metricName": "cpu", "value": n + number / 8, "timestamp": at + n * 700}
        for n in range(RECORDS - 1)
    ]
    return [*(Raw(json.dumps(value).encode()) for value in values), Raw(b"{")]


@pytest.fixture(params=ROUNDS)
def rounds(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    lake_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> list[dict[str, Counts]]:
    """Rounds of silver and gold on a warm pipeline, executed as suits few rows, or many."""
    is_interpreted, warming, counting = request.param
    if not is_interpreted:
        monkeypatch.setattr(execution, "FEW_ROWS", 0)
        monkeypatch.setattr(execution, "FEW_BYTES", 0)
    cuts = [records(number) for number in range(warming + counting)]
    pipeline.land(spark, lake_settings, cuts, landed_at=LANDED)
    silver, gold = silver_of(spark, lake_settings), gold_of(spark, lake_settings)
    found = []
    for number in range(len(cuts)):
        counts: dict[str, Counts] = {}
        for query, table in ((silver, BRONZE), (gold, SILVER)):
            rows = rows_of_commit(spark, lake_settings, table, number + 1)
            with counted(spark) as counts[query.layer]:
                take(query, rows, number, now=LANDED)
        found.append(counts)
    assert pipeline.version_of(lake_settings, GOLD) == len(cuts)
    windows = pipeline.frame_of(spark, lake_settings, GOLD)
    assert windows.agg(F.sum("count")).first()[0] == len(cuts) * (RECORDS - 1)  # type: ignore[index]
    if is_interpreted:
        cold = sum(one.compiled for one in found[0].values())
        assert cold < 30  # generated code would be a hundred classes
    return found[warming:]


def test_a_warm_micro_batch_compiles_nothing_calls_the_jvm_little_and_is_a_few_jobs(
    request: pytest.FixtureRequest, rounds: list[dict[str, Counts]]
) -> None:
    few, _, counted_rounds = request.node.callspec.params["rounds"]

    assert len(rounds) == counted_rounds
    compiled = sum(one.compiled for counts in rounds for one in counts.values())
    assert compiled <= (0 if few else counted_rounds)
    assert max(one.calls for counts in rounds for one in counts.values()) < 500
    assert max(counts["silver"].jobs for counts in rounds) <= (3 if few else 6)
    assert max(counts["gold"].jobs for counts in rounds) <= (4 if few else 14)
