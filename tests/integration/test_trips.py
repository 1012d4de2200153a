"""Trips leave what the queries of single layers leave, whichever goes first and wherever one is killed.

Over a real Kafka and Redis. A kill is an error in place of a write or behind it, and in every later one: of a
plan, of rows, or of the note that a step is done.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse import tables
from lakehouse.audit import audit
from lakehouse.errors import StreamError
from lakehouse.layers.query import LAYERS
from lakehouse.progress import checkpoints
from lakehouse.runtime.runner import BatchDone, RunOptions, run, utc_now
from lakehouse.runtime.triggers import AVAILABLE_NOW
from lakehouse.settings import Settings
from lakehouse.stream import Stream
from lakehouse.tables import Lake, Transaction
from tests import pipeline
from tests.chance import chance
from tests.conftest import MakeSettings
from tests.crashing import crash_at
from tests.pipeline import BRONZE, DEAD_LETTERS, GOLD, SILVER, STREAM, Raw

NOON = pipeline.utc("2026-03-01T12:00:00")
QUERIES = (BRONZE, SILVER, GOLD, "export.metrics_1m")
WRITES = ((tables, "append"), (tables, "upsert"), (checkpoints, "plan"), (checkpoints, "note_done"))


@dataclass
class TripsLake:
    """A lake of metrics; `sent` counts the valid events of each service, `refused` the others."""

    spark: SparkSession
    settings: Settings
    stream: Stream = STREAM
    sent: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    done: list[BatchDone] = field(default_factory=list)

    def produce(self, *services: str) -> None:
        """Send an event of each service, a minute after the last one, and a record that is refused."""
        at = NOON + timedelta(minutes=sum(self.sent.values()))
        events = [
            {"serviceId": name, "metricName": "m", "value": 1, "timestamp": int(at.timestamp() * 1000)}
            for name in services
        ]
        pipeline.send(self.settings, [*(Raw(json.dumps(one).encode()) for one in events), Raw(b"no JSON")])
        self.sent.update(services)
        self.refused += 1

    def catch_up(self, *, trips: bool) -> list[str]:
        """Run all layers in trips or by layer; return the queries whose micro-batches were written."""
        self.done.clear()
        run(
            Lake(self.spark, self.settings.lake),
            [self.stream],
            LAYERS,
            self.settings,
            RunOptions(AVAILABLE_NOW, on_batch=self.done.append, trips=trips),
        )
        return [one.query for one in self.done]

    def killed(self, where: tuple[Any, str], number: int, *, after: bool, trips: bool) -> bool:
        """Run until a write's call of this number; tell whether it came so far."""
        module, name = where
        with pytest.MonkeyPatch.context() as patch:
            ending = crash_at(getattr(module, name), number, after=after, for_good=True)
            patch.setattr(module, name, ending)
            try:
                self.catch_up(trips=trips)
            except StreamError:
                return True
        return False

    def counted(self) -> Counter[str]:
        rows = pipeline.rows_of(self.settings, GOLD)
        return Counter(
            {name: sum(row["count"] for row in rows if row["service_id"] == name) for name in self.sent}
        )

    def check(self) -> None:
        """All of it has arrived once, in every layer, and no micro-batch is under way."""
        assert self.counted() == self.sent
        assert len(pipeline.rows_of(self.settings, DEAD_LETTERS)) == self.refused
        assert len(pipeline.rows_of(self.settings, BRONZE)) == self.refused + self.sent.total()
        for query in QUERIES:
            assert pipeline.planned(self.settings, query)[-1] == pipeline.committed(self.settings, query)[-1]
        topic = self.settings.topic("metrics-aggregated-1m")
        messages = pipeline.read_topic(self.settings.kafka_bootstrap_servers, topic)
        assert len({message.value for message in messages}) == len(messages) > 0  # none was sent twice


@pytest.fixture
def lake(spark: SparkSession, make_settings: MakeSettings) -> TripsLake:
    return TripsLake(spark, make_settings(topic_partitions=1))


@pytest.mark.slow
@pytest.mark.soak
def test_trips_and_layers_may_take_turns_and_one_that_is_killed_is_finished_by_the_other(
    lake: TripsLake,
) -> None:
    lake.produce("a")
    assert lake.catch_up(trips=True) == list(QUERIES)
    lake.check()
    lake.produce("b", "c")
    assert lake.catch_up(trips=False) == list(QUERIES)
    lake.check()

    lake.produce("d")
    assert lake.killed((tables, "upsert"), 1, after=True, trips=True)
    assert pipeline.planned(lake.settings, GOLD) == [0, 1, 2]
    assert pipeline.committed(lake.settings, GOLD) == [0, 1]
    assert lake.catch_up(trips=False) == [GOLD]  # what had been written was sent by the trip
    lake.check()

    lake.produce("e")
    assert lake.killed((tables, "append"), 1, after=False, trips=True)  # of bronze
    lake.produce("f")
    assert lake.catch_up(trips=True) == [BRONZE, *QUERIES]  # what was begun, and then the trip
    lake.check()
    assert lake.catch_up(trips=True) == []


@pytest.mark.parametrize("where", [(checkpoints, "plan"), (checkpoints, "note_done")])
def test_a_first_trip_that_is_killed_in_bronze_is_finished_by_layer(
    lake: TripsLake, where: tuple[Any, str]
) -> None:
    lake.produce("a")
    assert lake.killed(where, 1, after=False, trips=True)
    lake.produce("b")
    lake.catch_up(trips=False)
    lake.check()


@pytest.mark.soak
def test_what_another_writer_puts_into_silver_is_merged_with_what_a_trip_brings(lake: TripsLake) -> None:
    lake.produce("a")
    lake.catch_up(trips=True)
    path = str(pipeline.path_of(lake.settings, SILVER))
    row = lake.spark.read.format("delta").load(path).selectExpr("* EXCEPT (partition)", "7 AS partition")
    tables.append(row, path, Transaction("a replay", 0))
    lake.produce("b")

    queries = lake.catch_up(trips=True)

    assert queries.count(GOLD) == 2
    assert lake.counted() == {"a": 2, "b": 1}
    assert lake.catch_up(trips=False) == []


@pytest.mark.slow
@pytest.mark.soak
def test_any_order_of_ways_and_kills_ends_in_the_same_tables(lake: TripsLake) -> None:
    random: Random = chance(15)
    kills = 0
    for _ in range(30):
        lake.produce(*random.choices("abcdef", k=random.randint(1, 3)))
        where, number = random.choice(WRITES), random.randint(1, 4)
        after, trips = random.random() < 0.5, random.random() < 0.7
        kills += lake.killed(where, number, after=after, trips=trips)
        if random.random() < 0.3:
            lake.catch_up(trips=random.random() < 0.5)
    lake.catch_up(trips=True)
    assert kills > 10
    assert lake.counted() == lake.sent
    assert len(pipeline.rows_of(lake.settings, DEAD_LETTERS)) == lake.refused
    assert audit(Lake(lake.spark, lake.settings.lake), [STREAM], lake.settings, utc_now()).is_clean
