"""One loop runs any layers, together or separately, beside other writers. Kafka, Redis and Delta are real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.engine.layers import LAYERS, LayerName, bronze
from lakehouse.engine.runtime.runner import BatchDone, RunOptions, run
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.engine.runtime.watch import Watch, Watches
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from tests.support import pipeline
from tests.support.pipeline import BRONZE, DEAD_LETTERS, GOLD, SILVER, SOURCE, STREAM, Raw, await_
from tests.support.settings import MakeSettings

NOON = pipeline.utc("2026-03-01T12:00:00")


@pytest.mark.soak
def test_each_commit_notes_how_far_its_query_has_read(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    settings = make_settings({"kafka.topic_partitions": 1})
    pipeline.send(settings, [measured(0), Raw(b"no JSON")])
    pipeline.run_layers(spark, settings, *LAYERS)
    ids = {table: table_id(settings, table) for table in (BRONZE, SILVER)}
    topic = settings.topic(SOURCE.topic)

    landings, offsets = sorted(pipeline.noted(settings, BRONZE).items())
    assert landings == (
        f"{BRONZE} landed",
        landed := pipeline.rows_of(settings, BRONZE)[0]["ingested_at"],
    )
    assert offsets[0].startswith(f"{BRONZE} reads {topic}:")
    assert (offsets[0][-2:], offsets[1]) == ("/0", 2)
    (front,) = {row["own_time"] for row in pipeline.rows_of(settings, SILVER)}
    assert pipeline.noted(settings, SILVER) == {
        f"{SILVER} reads {ids[BRONZE]}": 2,
        f"{SILVER} front": front,
        f"{SILVER} landed": landed,
    }
    assert pipeline.noted(settings, DEAD_LETTERS) == {f"{SILVER} of {ids[SILVER]} reads {ids[BRONZE]}": 2}
    assert pipeline.noted(settings, GOLD) == {f"{GOLD} reads {ids[SILVER]}": 2}
    note = pipeline.path_of(settings, GOLD) / "_lakehouse_export"
    (file,) = note.glob("*.json")
    assert json.loads(file.read_text()) == {
        "table": table_id(settings, GOLD),
        "version": 2,
        "files": None,
    }


# Without Kafka: silver and gold from bronze's records.


def measured(value: int) -> Raw:
    """Return a metric in the minute of noon."""
    at_ms = int(NOON.timestamp() * 1000) + value
    event = {"serviceId": "s", "metricName": "m", "value": value, "timestamp": at_ms}
    return Raw(json.dumps(event).encode())


class Landed:
    """A lake with records in bronze; each value lands once, in a commit of its own."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self.spark = spark
        self.settings = settings
        self.count = 0

    def land(self, *values: int) -> None:
        cuts = [[measured(value)] for value in values]
        pipeline.land(self.spark, self.settings, cuts, landed_at=NOON, first_offset=self.count)
        self.count += len(values)

    def catch_up(self, *layers: LayerName) -> list[tuple[str, int]]:
        """Run silver and gold; return the micro-batches and how many rows each has read."""
        done = pipeline.run_layers(self.spark, self.settings, *(layers or ("silver", "gold")))
        return [(one.query, one.result.rows) for one in done]

    def sums(self) -> list[tuple[int, float]]:
        return [(row["count"], row["sum"]) for row in pipeline.rows_of(self.settings, GOLD)]

    @property
    def bronze(self) -> str:
        return Lake(self.spark, self.settings.lake).path("bronze", SOURCE.table)


@pytest.fixture
def landed(spark: SparkSession, lake_settings: Settings) -> Landed:
    return Landed(spark, lake_settings)


def test_a_micro_batch_takes_as_many_commits_as_fit_and_gold_takes_them_from_memory(landed: Landed) -> None:
    landed.land(1, 2)
    assert landed.catch_up() == [(SILVER, 2), (GOLD, 2)]
    landed.settings = landed.settings.changed({"run.max_bytes": 1})
    landed.land(3, 4)
    assert landed.catch_up() == [(SILVER, 1), (GOLD, 1), (SILVER, 1), (GOLD, 1)]
    assert landed.catch_up() == []
    assert landed.sums() == [(4, 10.0)]


def test_a_round_is_reported_whether_or_not_its_stream_has_rows(landed: Landed) -> None:
    rounds: list[str] = []

    class Noting(Watch):
        def on_round(self, stream: str) -> None:
            rounds.append(stream)

    landed.land(1)
    options = RunOptions(AVAILABLE_NOW, watch=Watches([Noting()]))
    run(Lake(landed.spark, landed.settings.lake), [STREAM], ("silver", "gold"), landed.settings, options)
    assert rounds == [STREAM.name, STREAM.name]  # one with the row, and one that finds nothing left


def test_a_live_layer_takes_what_another_process_lands_and_names_its_jobs(landed: Landed) -> None:
    done: list[BatchDone] = []
    landed.land(1)
    lake, options = Lake(landed.spark, landed.settings.lake), RunOptions("100 ms", on_batch=done.append)

    with pipeline.running(lake, [STREAM], ["silver"], landed.settings, options) as failures:
        await_(lambda: len(done) == 1)
        landed.land(2)
        await_(lambda: len(done) == 2)

    assert failures == []
    assert [(one.batch, one.result.rows) for one in done] == [(1, 1), (2, 1)]
    assert len(pipeline.rows_of(landed.settings, SILVER)) == 2
    status = landed.spark.sparkContext.statusTracker()
    assert status.getJobIdsForGroup("metrics/silver.metrics_events/2")


def test_a_table_that_is_made_again_under_a_live_layer_is_refused_by_name(landed: Landed) -> None:
    done: list[BatchDone] = []
    landed.land(1)
    lake, options = Lake(landed.spark, landed.settings.lake), RunOptions("100 ms", on_batch=done.append)

    with pipeline.running(lake, [STREAM], ["silver"], landed.settings, options) as failures:
        await_(lambda: len(done) == 1)
        pipeline.remove(Path(landed.bronze))
        lake.ensure(bronze.spec(SOURCE))
        await_(lambda: failures, timeout_s=60)

    (failure,) = failures
    assert str(failure).startswith(f"{SILVER} was built from a different {BRONZE} (id ")


def table_id(settings: Settings, table: str) -> str:
    first = pipeline.path_of(settings, table) / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(line) for line in first.read_text(encoding="utf-8").split("\n") if line]
    return next(str(line["metaData"]["id"]) for line in lines if "metaData" in line)
