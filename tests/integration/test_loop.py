"""One loop runs any layers: together or separately, after a kill anywhere, and beside other writers.

The tests use a real Kafka, Redis and Delta. A kill is an error instead of a write or right after it, and in
every later write.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.common.errors import StreamError
from lakehouse.engine.layers import bronze
from lakehouse.engine.layers.step import LAYERS, LayerName
from lakehouse.engine.progress import parts, sent
from lakehouse.engine.runtime.runner import BatchDone, RunOptions, run, utc_now
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.operations.audit import audit
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Stream
from lakehouse.testing.kills import crash_at
from tests.support import pipeline
from tests.support.chance import chance
from tests.support.pipeline import BRONZE, DEAD_LETTERS, GOLD, SILVER, SOURCE, STREAM, Raw, await_
from tests.support.settings import MakeSettings

NOON = pipeline.utc("2026-03-01T12:00:00")
EXPORT = "export.metrics_1m"
QUERIES = (BRONZE, SILVER, GOLD, EXPORT)
WRITES = ((tables, "append"), (tables, "upsert"), (sent, "note"))
BY_LAYER = tuple([layer] for layer in LAYERS)


@dataclass
class LoopLake:
    """A lake of metrics; `sent` counts the valid events of each service, `refused` the others."""

    spark: SparkSession
    settings: Settings
    stream: Stream = STREAM
    sent: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    done: list[BatchDone] = field(default_factory=list)

    def produce(self, *services: str) -> None:
        """Send an event of each service, later than all before, and a record that is refused."""
        at = NOON + timedelta(minutes=sum(self.sent.values()))
        events = [
            {"serviceId": name, "metricName": "m", "value": 1, "timestamp": int(at.timestamp() * 1000)}
            for name in services
        ]
        pipeline.send(self.settings, [*(Raw(json.dumps(one).encode()) for one in events), Raw(b"no JSON")])
        self.sent.update(services)
        self.refused += 1

    def catch_up(self, *, by_layer: bool = False) -> list[tuple[str, int | None]]:
        """Run all layers, in one loop or one after the other; return what was written."""
        self.done.clear()
        for layers in BY_LAYER if by_layer else [LAYERS]:
            run(
                Lake(self.spark, self.settings.lake),
                [self.stream],
                layers,
                self.settings,
                RunOptions(AVAILABLE_NOW, on_batch=self.done.append),
            )
        return [(one.query, one.batch) for one in self.done]

    def killed(self, where: tuple[Any, str], number: int, *, after: bool, by_layer: bool = False) -> bool:
        """Run until call `number` of a write; return whether it got that far."""
        module, name = where
        with pytest.MonkeyPatch.context() as patch:
            ending = crash_at(getattr(module, name), number, after=after, for_good=True)
            patch.setattr(module, name, ending)
            patch.setattr("lakehouse.engine.runtime.runner.RETRIES", 0)
            try:
                self.catch_up(by_layer=by_layer)
            except StreamError:
                return True
        return False

    def counted(self) -> Counter[str]:
        rows = pipeline.rows_of(self.settings, GOLD)
        return Counter(
            {name: sum(row["count"] for row in rows if row["service_id"] == name) for name in self.sent}
        )

    def check(self) -> None:
        """Check that everything has arrived once in every layer, and that nothing is left to do."""
        assert self.counted() == self.sent
        assert len(pipeline.rows_of(self.settings, DEAD_LETTERS)) == self.refused
        assert len(pipeline.rows_of(self.settings, BRONZE)) == self.refused + self.sent.total()
        topic = self.settings.topic("metrics-aggregated-1m")
        messages = pipeline.read_topic(self.settings.kafka.bootstrap_servers, topic)
        assert len({message.value for message in messages}) == len(messages) > 0  # none was sent twice
        assert self.catch_up() == []


@pytest.fixture
def lake(spark: SparkSession, make_settings: MakeSettings) -> LoopLake:
    return LoopLake(spark, make_settings({"kafka.topic_partitions": 1}))


@pytest.mark.soak
def test_layers_run_together_or_by_themselves_and_one_that_is_killed_goes_on_either_way(
    lake: LoopLake,
) -> None:
    lake.produce("a")
    assert lake.catch_up() == [(BRONZE, 1), (SILVER, 1), (GOLD, 1), (EXPORT, 1)]
    lake.check()
    lake.produce("b", "c")
    assert lake.catch_up(by_layer=True) == [(BRONZE, 2), (SILVER, 2), (GOLD, 2), (EXPORT, 2)]
    lake.check()

    lake.produce("d")
    assert lake.killed((tables, "upsert"), 1, after=True)
    assert lake.catch_up(by_layer=True) == []  # what had been written was sent by the run that failed
    lake.check()

    lake.produce("e")
    assert lake.killed((tables, "append"), 1, after=False)  # bronze's
    lake.produce("f")
    assert lake.catch_up() == [(BRONZE, 4), (SILVER, 4), (GOLD, 4), (EXPORT, 4)]
    lake.check()


def test_each_commit_notes_how_far_its_query_has_read(lake: LoopLake) -> None:
    lake.produce("a")
    lake.catch_up()
    ids = {table: table_id(lake.settings, table) for table in (BRONZE, SILVER)}
    topic = lake.settings.topic(SOURCE.topic)

    landings, offsets = sorted(pipeline.noted(lake.settings, BRONZE).items())
    assert landings == (
        f"{BRONZE} landed",
        landed := pipeline.rows_of(lake.settings, BRONZE)[0]["ingested_at"],
    )
    assert offsets[0].startswith(f"{BRONZE} reads {topic}:")
    assert (offsets[0][-2:], offsets[1]) == ("/0", 2)
    (front,) = {row["own_time"] for row in pipeline.rows_of(lake.settings, SILVER)}
    assert pipeline.noted(lake.settings, SILVER) == {
        f"{SILVER} reads {ids[BRONZE]}": 2,
        f"{SILVER} front": front,
        f"{SILVER} landed": landed,
    }
    assert pipeline.noted(lake.settings, DEAD_LETTERS) == {
        f"{SILVER} of {ids[SILVER]} reads {ids[BRONZE]}": 2
    }
    assert pipeline.noted(lake.settings, GOLD) == {f"{GOLD} reads {ids[SILVER]}": 2}
    note = pipeline.path_of(lake.settings, GOLD) / "_lakehouse_export"
    (file,) = note.glob("*.json")
    assert json.loads(file.read_text()) == {
        "table": table_id(lake.settings, GOLD),
        "version": 2,
        "files": None,
    }


def test_records_that_are_all_refused_are_noted_in_a_commit_without_rows(lake: LoopLake) -> None:
    lake.produce("a")
    lake.catch_up()
    lake.produce()

    assert lake.catch_up() == [(BRONZE, 2), (SILVER, 2)]

    assert len(pipeline.rows_of(lake.settings, SILVER)) == 1
    assert lake.catch_up() == []


@pytest.mark.soak
@pytest.mark.parametrize(
    ("where", "after"),
    [((tables, "append"), False), ((tables, "append"), True)],
)
def test_a_first_micro_batch_that_is_killed_in_bronze_is_finished_by_layer(
    lake: LoopLake, where: tuple[Any, str], *, after: bool
) -> None:
    lake.produce("a")
    assert lake.killed(where, 1, after=after)
    lake.produce("b")
    lake.catch_up(by_layer=True)
    lake.check()


@pytest.mark.soak
@pytest.mark.parametrize("number", [1, 2])
def test_an_export_that_is_killed_around_its_note_sends_nothing_twice(lake: LoopLake, number: int) -> None:
    """Kafka and Redis have the rows; the lake does not know. Without any note, Kafka's position is taken."""
    for _ in range(number - 1):
        lake.produce("a")
        lake.catch_up()
    lake.produce("b")
    assert lake.killed((sent, "note"), 1, after=False)

    assert lake.catch_up() == [(EXPORT, 2)] * (number - 1)
    lake.check()


@pytest.mark.soak
def test_what_another_writer_puts_into_silver_is_merged_with_what_comes(lake: LoopLake) -> None:
    lake.produce("a")
    lake.catch_up()
    path = str(pipeline.path_of(lake.settings, SILVER))
    row = lake.spark.read.format("delta").load(path).selectExpr("* EXCEPT (partition)", "7 AS partition")
    tables.append(row, path)
    lake.produce("b")

    lake.catch_up()

    assert lake.counted() == {"a": 2, "b": 1}
    assert lake.catch_up(by_layer=True) == []


@pytest.mark.slow
@pytest.mark.soak
def test_any_order_of_ways_and_kills_ends_in_the_same_tables(lake: LoopLake) -> None:
    random: Random = chance(15)
    kills = rounds = 0
    while kills < 12:  # a kill due after a step's last write never happens
        rounds += 1
        lake.produce(*random.choices("abcdef", k=random.randint(1, 3)))
        where, number = random.choice(WRITES), random.randint(1, 4)
        after, by_layer = random.random() < 0.5, random.random() < 0.3
        kills += lake.killed(where, number, after=after, by_layer=by_layer)
        if random.random() < 0.3:
            lake.catch_up(by_layer=random.random() < 0.5)
    lake.catch_up()
    assert rounds < 100
    lake.check()
    assert audit(Lake(lake.spark, lake.settings.lake), [STREAM], lake.settings, utc_now()).is_clean


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


def test_many_commits_are_taken_by_parts(landed: Landed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MOST_COMMITS", 2)
    landed.land(1, 2, 3, 4)
    # Bronze's first commit creates the table.
    assert landed.catch_up("silver") == [(SILVER, 1), (SILVER, 2), (SILVER, 1)]
    assert landed.catch_up("gold") == [(GOLD, 1), (GOLD, 3)]
    assert landed.sums() == [(4, 10.0)]


def test_rows_that_commits_do_not_tell_are_read_first(landed: Landed) -> None:
    """Something has rewritten the table before silver reads it for the first time."""
    landed.land(1, 2)
    landed.spark.sql(
        f"UPDATE delta.`{landed.bronze}` SET timestamp = timestamp + INTERVAL 1 SECOND WHERE offset = 0"
    )
    assert landed.catch_up("silver") == [(SILVER, 2)]
    landed.land(3)
    assert landed.catch_up() == [(SILVER, 1), (GOLD, 3)]
    assert landed.sums() == [(3, 6.0)]


def test_maintenance_is_no_micro_batch(landed: Landed) -> None:
    landed.land(1, 2)
    landed.catch_up()
    landed.spark.sql(f"OPTIMIZE delta.`{landed.bronze}`")

    assert landed.catch_up() == []
    landed.land(3)
    assert landed.catch_up() == [(SILVER, 1), (GOLD, 1)]
    assert landed.sums() == [(3, 6.0)]


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
