"""What a micro-batch costs whatever its rows: Spark jobs, compiled classes and JVM calls, not time."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.common.errors import PositionError
from lakehouse.engine.layers import gold, silver
from lakehouse.engine.layers.step import Permitted
from lakehouse.engine.progress.reading import InMemory
from lakehouse.engine.runtime.loop import BatchDone, Common, StreamLoop
from lakehouse.engine.runtime.troubles import Troubles
from lakehouse.engine.runtime.watch import Watch
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.spark import execution
from lakehouse.storage.tables import Lake, Move, TableSpec, Written
from tests.support import pipeline
from tests.support.batches import gold_of, silver_of
from tests.support.counting import Counts, counted
from tests.support.pipeline import GOLD, SILVER, STREAM, Raw

LANDED = pipeline.utc("2026-05-04T12:00:00")
RECORDS = 40
ROUNDS = [
    pytest.param((True, 2, 3), id="interpreted"),
    pytest.param((False, 3, 3), id="generated", marks=pytest.mark.soak),
]
"""Whether they are interpreted, how many rounds warm up the pipeline, and how many are counted."""


@pytest.fixture
def table(spark: SparkSession, lake_settings: Settings) -> str:
    schema = spark.range(1).schema
    return Lake(spark, lake_settings.lake).ensure(TableSpec("silver", "numbers", schema, stats=("id",)))


def test_an_append_is_one_job_and_a_repeated_one_and_the_look_for_what_is_noted_are_none(
    spark: SparkSession, table: str
) -> None:
    rows, moves = spark.range(0, 1000, 1, 2), [Move("query", None, 1)]
    with counted(spark) as appended:
        assert tables.append(rows, table, moves) == Written(1000, 1)
    with counted(spark) as looked:
        assert tables.transactions(spark, table) == {"query": 1}
    with counted(spark) as repeated, pytest.raises(PositionError):
        tables.append(rows, table, moves)
    with counted(spark) as noted:
        tables.note(spark, table, [Move("query", 1, 2)])

    assert (appended.jobs, looked.jobs, repeated.jobs, noted.jobs) == (1, 0, 0, 0)
    assert spark.read.format("delta").load(table).count() == 1000


def records(number: int) -> list[Raw]:
    """Return a round's records from three services, 20 s after the last round's, and one malformed record."""
    at = int((LANDED - timedelta(minutes=30)).timestamp() * 1000) + number * 20_000
    values = [
        {"serviceId": f"s{n % 3}", "metricName": "cpu", "value": n + number / 8, "timestamp": at + n * 700}
        for n in range(RECORDS - 1)
    ]
    return [*(Raw(json.dumps(value).encode()) for value in values), Raw(b"{")]


@dataclass(frozen=True)
class Round:
    """The costs of a look for rows, of a micro-batch, and of a look that finds nothing, each by layer."""

    looked: dict[str, Counts]
    wrote: dict[str, Counts]
    idle: dict[str, Counts]


@pytest.fixture(params=ROUNDS)
def rounds(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    lake_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> list[Round]:
    """Run rounds of silver and gold on a warm pipeline, executed as suits few rows, or many.

    As in a run, silver reads bronze's last commit, and gold gets silver's rows from memory.
    """
    is_interpreted, warming, counting = request.param
    if not is_interpreted:
        monkeypatch.setattr(execution, "FEW_ROWS", -1)
        monkeypatch.setattr(execution, "SOME_ROWS", -1)
    cleaning, merging = silver_of(spark, lake_settings), gold_of(spark, lake_settings)
    found, every = [], warming + counting
    for number in range(every):
        pipeline.land(
            spark, lake_settings, [records(number)], landed_at=LANDED, first_offset=RECORDS * number
        )
        one, handed = Round({}, {}, {}), dict[str, InMemory]()
        with ExitStack() as held:
            for step in (cleaning, merging):
                with counted(spark) as one.looked[step.layer]:
                    batch = step.plan(handed)
                assert batch is not None
                with counted(spark) as one.wrote[step.layer]:
                    passed = held.enter_context(step.write(batch, LANDED))
                if passed.rows is not None and step.fills is not None:
                    handed[step.fills] = passed.rows
        for step in (cleaning, merging):
            with counted(spark) as one.idle[step.layer]:
                assert step.plan({}) is None
        found.append(one)
    assert pipeline.version_of(lake_settings, GOLD) == every
    windows = pipeline.frame_of(spark, lake_settings, GOLD)
    assert windows.agg(F.sum("count")).first()[0] == every * (RECORDS - 1)  # type: ignore[index]
    if is_interpreted:
        cold = sum(one.compiled for counts in (found[0].looked, found[0].wrote) for one in counts.values())
        assert cold < 30  # generated code would be a hundred classes
    return found[warming:]


def test_a_warm_micro_batch_compiles_nothing_calls_the_jvm_little_and_is_a_few_jobs(
    request: pytest.FixtureRequest, rounds: list[Round]
) -> None:
    few, _, counted_rounds = request.node.callspec.params["rounds"]

    assert len(rounds) == counted_rounds
    every = [one for each in rounds for counts in (each.looked, each.wrote) for one in counts.values()]
    assert sum(one.compiled for one in every) <= (0 if few else counted_rounds)
    assert (
        max(each.looked[layer].calls + each.wrote[layer].calls for each in rounds for layer in each.wrote)
        < 500
    )
    assert max(each.wrote["silver"].jobs for each in rounds) <= (3 if few else 6)
    assert max(each.wrote["gold"].jobs for each in rounds) <= (4 if few else 14)
    looks = [one for each in rounds for counts in (each.looked, each.idle) for one in counts.values()]
    assert max(one.jobs for one in looks) == 0
    assert max(one.calls for one in looks) < 100


def test_a_round_of_a_loop_that_has_nothing_to_do_is_no_job_and_few_calls(
    spark: SparkSession, lake_settings: Settings
) -> None:
    pipeline.land(spark, lake_settings, [records(0)], landed_at=LANDED)
    lake, done = Lake(spark, lake_settings.lake), list[BatchDone]()
    makers = [
        *silver.steps(lake, STREAM, lake_settings.run.max_bytes, Permitted()),
        *gold.steps(lake, STREAM, lake_settings.run.max_bytes),
    ]
    troubles = Troubles([maker.name for maker in makers], pytest.fail)
    common = Common(done.append, lambda: LANDED, troubles, Watch(), is_live=True)
    loop = StreamLoop("metrics", lake, makers, common)

    assert [loop.round() for _ in range(3)] == [True, False, False]
    with counted(spark) as counts:
        assert not loop.round()
    loop.close()

    assert [(one.query, one.batch, one.result.rows) for one in done] == [
        (SILVER, 1, RECORDS),
        (GOLD, 1, RECORDS - 1),
    ]
    assert (counts.jobs, counts.compiled) == (0, 0)
    assert counts.calls < 150
