"""Lag with a real broker and real layers: all records sent wait until they are written.

`test_lag` has the cases, with logs written by hand; here the layers write the logs.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import CoordinatorNotAvailableError
from pyspark.sql import SparkSession

from lakehouse.engine.runtime.runner import RunOptions, run
from lakehouse.engine.runtime.signals import Stop
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.operations.telemetry import LayerLag, Observer, StreamState
from lakehouse.operations.telemetry.consumer_groups import GroupProgress, committing
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from tests.support import pipeline
from tests.support.log_lakes import DAY, Logs
from tests.support.pipeline import BRONZE, GOLD, SILVER, SOURCE, STREAM, Raw
from tests.support.settings import MakeSettings


def events(count: int, at: datetime) -> list[Raw]:
    """Return events of one window, alternating between two partitions."""
    text = '{{"serviceId": "auth", "metricName": "latency", "value": 1.5, "timestamp": {}}}'
    return [
        Raw(text.format(int(at.timestamp() * 1000)).encode(), partition=number % 2) for number in range(count)
    ]


def waiting(state: StreamState) -> tuple[list[int | None], dict[str, int | None]]:
    return [lag.records for lag in state.partitions], {lag.query: lag.records for lag in state.layers}


def committed(settings: Settings) -> list[int | None]:
    """Return the offsets of bronze's group as another client sees them."""
    consumer = KafkaConsumer(
        bootstrap_servers=settings.kafka.bootstrap_servers, group_id=f"lakehouse-bronze-{SOURCE.table}"
    )
    topic = settings.topic(SOURCE.topic)
    try:
        return [consumer.committed(TopicPartition(topic, number)) for number in range(2)]
    finally:
        consumer.close()


@pytest.mark.soak
@pytest.mark.parametrize(("refusals", "noticed"), [(3, 0), (1000, 1)])
def test_a_broker_that_is_not_ready_for_groups_is_asked_again_before_anybody_is_told(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, refusals: int, noticed: int
) -> None:
    """A new broker creates its groups topic when it is first asked for a group."""
    settings, notices, asked = make_settings({"kafka.topic_partitions": 2}), list[str](), 0
    pipeline.send(settings, events(7, datetime.now(UTC)))
    logs, at = Logs(Path(settings.lake)), DAY.format("08:12:00")
    logs.create(BRONZE, at)
    logs.append(BRONZE, at, (4,), {f"{BRONZE} reads {settings.topic(SOURCE.topic)}:9Zc/0": 4})
    alter = KafkaAdminClient.alter_group_offsets

    def refused_at_first(admin: KafkaAdminClient, group: str, offsets: object) -> object:
        nonlocal asked
        asked += 1
        if asked <= refusals:
            raise CoordinatorNotAvailableError
        return alter(admin, group, offsets)

    monkeypatch.setattr(KafkaAdminClient, "alter_group_offsets", refused_at_first)
    with committing([STREAM], settings, notices.append):
        pass

    assert len(notices) == noticed
    assert committed(settings) == ([None, None] if noticed else [4, None])


@pytest.mark.soak
@pytest.mark.slow
def test_what_waits_moves_from_layer_to_layer(spark: SparkSession, make_settings: MakeSettings) -> None:
    settings, at = make_settings({"kafka.topic_partitions": 2}), datetime.now(UTC)
    groups = GroupProgress([STREAM], settings)
    observer = Observer([STREAM], settings)

    def look() -> StreamState:
        (state,) = observer.observe(datetime.now(UTC)).streams
        return state

    export = "export.metrics_1m"
    groups.commit()
    pipeline.send(settings, events(7, at))
    state = look()
    assert [lag.records for lag in state.partitions] == [4, 3]
    assert all(lag.seconds is not None and 0 < lag.seconds < 600 for lag in state.partitions)
    assert committed(settings) == [None, None]

    pipeline.run_layers(spark, settings, "bronze")
    groups.commit()
    assert committed(settings) == [4, 3]
    state = look()
    assert waiting(state) == ([0, 0], {SILVER: 7, GOLD: 0, export: 0})
    assert [lag.seconds for lag in state.partitions] == [0.0, 0.0]

    pipeline.run_layers(spark, settings, "silver")
    assert waiting(look()) == ([0, 0], {SILVER: 0, GOLD: 7, export: 0})
    pipeline.run_layers(spark, settings, "gold")
    assert waiting(look()) == ([0, 0], {SILVER: 0, GOLD: 0, export: 1})
    pipeline.run_layers(spark, settings, "export")
    state = look()
    assert waiting(state) == ([0, 0], {SILVER: 0, GOLD: 0, export: 0})
    assert {lag.seconds for lag in state.layers} == {0.0}
    assert state.health.word in {"well", "idle"}  # idle ten seconds after bronze has ended
    assert [(query.name, query.done) for query in state.queries] == [
        (BRONZE, 1),
        (SILVER, 1),
        (GOLD, 1),
        (export, 1),
    ]
    times = [query.done_at for query in state.queries if query.done_at is not None]
    assert len(times) == 4
    assert [at, *times] == sorted([at, *times])  # the layers ran one after the other

    pipeline.send(settings, events(2, at))
    assert waiting(look()) == ([1, 1], {SILVER: 0, GOLD: 0, export: 0})
    pipeline.run_layers(spark, settings, "bronze", "silver", "gold")
    groups.commit()
    assert committed(settings) == [5, 4]
    assert waiting(look())[1][export] == 2  # one row, before and after the change
    pipeline.run_layers(spark, settings, "export")
    assert waiting(look()) == ([0, 0], {SILVER: 0, GOLD: 0, export: 0})
    groups.close()
    observer.close()


@pytest.mark.slow
@pytest.mark.soak
def test_of_a_large_table_with_which_a_query_begins_what_it_has_not_read_waits(
    spark: SparkSession, lake_settings: Settings
) -> None:
    """Its first commits have left the log, so silver starts with its files, here one per micro-batch."""
    settings, now = lake_settings.changed({"run.max_bytes": 1}), datetime.now(UTC)
    counts = (2, 3, 4)
    for number, count in enumerate(counts):  # seconds apart: statistics have only milliseconds
        at = now + timedelta(seconds=number)
        first = sum(counts[:number])
        pipeline.land(spark, settings, [events(count, now)], landed_at=at, first_offset=first)
    bronze = DeltaTable(str(pipeline.path_of(settings, BRONZE)))
    bronze.create_checkpoint()
    pipeline.forget_commits(pipeline.path_of(settings, BRONZE), before=len(counts))
    observer, stop = Observer([STREAM], settings), Stop()

    def run_silver(stop: Stop | None = None) -> None:
        options = RunOptions(
            AVAILABLE_NOW, on_batch=lambda _done: stop.request() if stop else None, stop=stop
        )
        run(Lake(spark, settings.lake), [STREAM], ["silver"], settings, options)

    def silver_lag() -> LayerLag:
        (state,) = observer.observe(datetime.now(UTC)).streams
        return state.layers[0]

    assert (silver_lag().query, silver_lag().records) == (SILVER, 2 + 3 + 4)
    run_silver(stop)
    reads = f"{SILVER} reads {bronze.metadata().id}"
    assert pipeline.noted(settings, SILVER).items() >= {f"{reads}@3": 1}.items()
    assert (silver_lag().records, silver_lag().commits) == (3 + 4, 1)
    run_silver()
    assert pipeline.noted(settings, SILVER)[reads] == 4
    assert (silver_lag().records, silver_lag().commits) == (0, 0)
    observer.close()
