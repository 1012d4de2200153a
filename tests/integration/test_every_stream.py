"""What holds for every stream and every layer of it: a rerun changes nothing, a crash costs nothing.

One journey a stream, over a real Kafka and Redis, in chapters:

    first     600 sample events with malformed and repeated ones; every layer catches up
    again     nothing new; every layer runs once more
    repeated  every checkpoint has forgotten its last commit, as after a crash just before it
    crashed   300 more events; each layer is ended by an error after its first micro-batch's writes and
              resumed

At its end the tables are those of a second lake, which has read the same topics in one undisturbed go.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.errors import StreamError
from lakehouse.layer import LAYERS, LayerName
from lakehouse.loads import Load, send
from lakehouse.local.services import Endpoints
from lakehouse.runner import BatchDone, run
from lakehouse.settings import Settings
from lakehouse.stream import Stream
from lakehouse.streams import STREAMS
from lakehouse.triggers import AVAILABLE_NOW
from tests import pipeline
from tests.conftest import settings_for
from tests.pipeline import DEAD_LETTERS

SHAPES = {"sales": {"tombstones": 0.02}, "transactions": {"hot_user": 0.5}}
# What depends on when a run happened, and not on what it read.
OF_THE_RUN = {"ingested_at", "first_seen", "last_attempt", "batch", "was_closed", "recomputed"}


class CrashError(Exception):
    """What stands in for the end of the process."""


@dataclass
class Journey:
    spark: SparkSession
    stream: Stream
    settings: Settings
    now: datetime
    batches: list[BatchDone] = field(default_factory=list)
    versions: dict[str, dict[str, int]] = field(default_factory=dict)
    messages: dict[str, Counter[str]] = field(default_factory=dict)
    new_batches: dict[str, int] = field(default_factory=dict)

    @property
    def tables(self) -> list[str]:
        sources = [source.table for source in self.stream.sources]
        return [
            *(f"bronze.{name}" for name in sources),
            *(f"silver.{name}" for name in sources),
            DEAD_LETTERS,
            *(f"gold.{table.name}" for table in self.stream.tables),
        ]

    def load(self, events: int, seed: int) -> None:
        shape = SHAPES.get(self.stream.name, {})
        load = Load(self.stream.name, events, seed=seed, malformed=0.05, duplicates=0.05, shape=shape)
        assert send(load, self.settings).failed == 0

    def run(self, *layers: LayerName, crash: bool = False) -> None:
        def on_batch(done: BatchDone) -> None:
            self.batches.append(done)
            if crash:
                raise CrashError(done.query)

        run(
            self.spark,
            [self.stream],
            layers,
            self.settings,
            trigger=AVAILABLE_NOW,
            on_batch=on_batch,
            clock=lambda: self.now,
        )

    def note(self, chapter: str) -> None:
        self.versions[chapter] = pipeline.versions(self.settings, self.tables)
        self.new_batches[chapter] = len(self.batches) - sum(self.new_batches.values())
        written = [
            self.settings.topic(table.export.topic) for table in self.stream.tables if table.export.topic
        ]
        self.messages[chapter] = Counter(
            {
                topic: len(pipeline.read_topic(self.settings.kafka_bootstrap_servers, topic))
                for topic in written
            }
        )

    def forget_last_commits(self) -> None:
        for directory in (pipeline.checkpoint_of(self.settings, "x").parent).iterdir():
            if pipeline.committed(self.settings, directory.name):
                pipeline.forget_last_commit(self.settings, directory.name)

    def rows(self, settings: Settings, table: str) -> list[tuple[Any, ...]]:
        """The rows by what is exact in them: no floating point, whose last digits depend on the order."""
        exact = (str, int, Decimal, type(None))
        found = pipeline.rows_of(self.spark, settings, table)
        return sorted(
            (
                tuple(
                    (name, value)
                    for name, value in sorted(row.items())
                    if name not in OF_THE_RUN and isinstance(value, exact)
                )
                for row in found
            ),
            key=repr,
        )


@pytest.fixture(scope="module", params=STREAMS, ids=[stream.name for stream in STREAMS])
def journey(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    services: Endpoints,
    session_settings: Settings,
    tmp_path_factory: pytest.TempPathFactory,
) -> Journey:
    stream: Stream = request.param
    settings = settings_for(session_settings, services, tmp_path_factory.mktemp(stream.name))
    journey = Journey(spark, stream, settings, datetime.now(UTC) + timedelta(hours=1))
    journey.load(600, seed=1)
    journey.run(*LAYERS)
    journey.note("first")
    journey.run(*LAYERS)
    journey.note("again")
    journey.forget_last_commits()
    journey.run(*LAYERS)
    journey.note("repeated")
    journey.load(300, seed=2)
    for layer in LAYERS:
        with pytest.raises(StreamError, match="CrashError"):
            journey.run(layer, crash=True)
        journey.run(layer)
    journey.note("crashed")
    return journey


@pytest.mark.slow
def test_a_rerun_with_nothing_new_does_nothing(journey: Journey) -> None:
    assert journey.new_batches["first"] > 0
    assert journey.new_batches["again"] == 0
    assert journey.versions["again"] == journey.versions["first"]


@pytest.mark.slow
def test_a_micro_batch_that_runs_again_writes_nothing_again(journey: Journey) -> None:
    layers = len(journey.stream.sources) * 2 + len(journey.stream.gold) + len(journey.stream.tables)
    assert journey.new_batches["repeated"] >= layers
    assert journey.versions["repeated"] == journey.versions["first"]
    assert journey.messages["repeated"] == journey.messages["first"]


@pytest.mark.slow
def test_every_layer_resumes_after_a_crash_with_what_an_undisturbed_run_has(
    journey: Journey, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lake = str(tmp_path_factory.mktemp("undisturbed"))
    undisturbed = journey.settings.model_copy(update={"lake": lake})
    run(
        journey.spark,
        [journey.stream],
        ["bronze", "silver", "gold"],
        undisturbed,
        trigger=AVAILABLE_NOW,
        clock=lambda: journey.now,
    )

    for table in journey.tables:
        assert journey.rows(journey.settings, table) == journey.rows(undisturbed, table), table
    bronze, silver = (
        sum(len(journey.rows(undisturbed, f"{layer}.{source.table}")) for source in journey.stream.sources)
        for layer in ("bronze", "silver")
    )
    dead = len(journey.rows(undisturbed, DEAD_LETTERS))
    assert bronze == 900 == silver + dead
    assert dead >= 40


@pytest.mark.slow
def test_every_message_has_left_once(journey: Journey) -> None:
    sent = Counter[str]()
    for done in journey.batches:
        sent.update(
            {name: rows for name, rows in done.result.written.items() if name in journey.messages["first"]}
        )

    assert journey.messages["crashed"] == sent
    assert sum(sent.values()) > 0
