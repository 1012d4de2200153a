"""Lag beside a real broker and real layers: as many wait as were sent, none once they are written."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import CoordinatorNotAvailableError
from pyspark.sql import SparkSession

from lakehouse.settings import Settings
from lakehouse.telemetry import Observer, StreamState
from lakehouse.telemetry.consumer_groups import GroupProgress, committing, group_of
from tests import pipeline
from tests.batches import plan
from tests.conftest import MakeSettings
from tests.pipeline import BRONZE, SOURCE, STREAM, Raw


def events(count: int, at: datetime) -> list[Raw]:
    """Return events of one window, in two partitions by turns."""
    text = '{{"serviceId": "auth", "metricName": "latency", "value": 1.5, "timestamp": {}}}'
    return [
        Raw(text.format(int(at.timestamp() * 1000)).encode(), partition=number % 2) for number in range(count)
    ]


def waiting(state: StreamState) -> tuple[list[int | None], dict[str, int | None]]:
    return [lag.records for lag in state.partitions], {lag.query: lag.records for lag in state.layers}


def committed(settings: Settings) -> list[int | None]:
    """Return what another client finds of the group of bronze."""
    consumer = KafkaConsumer(
        bootstrap_servers=settings.kafka_bootstrap_servers, group_id=group_of(settings, SOURCE.table)
    )
    topic = settings.topic(SOURCE.topic)
    try:
        return [consumer.committed(TopicPartition(topic, number)) for number in range(2)]
    finally:
        consumer.close()


@pytest.mark.parametrize(("refusals", "noticed"), [(3, 0), (1000, 1)])
def test_a_broker_that_is_not_ready_for_groups_is_asked_again_before_anybody_is_told(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, refusals: int, noticed: int
) -> None:
    """A new broker makes the topic of its groups when it is first asked for one."""
    settings, notices, asked = make_settings(topic_partitions=2), list[str](), 0
    pipeline.send(settings, events(7, datetime.now(UTC)))
    plan(settings, 0, planned_at=datetime.now(UTC), ends=[4])
    (pipeline.checkpoint_of(settings, BRONZE) / "commits").mkdir()
    (pipeline.checkpoint_of(settings, BRONZE) / "commits" / "0").write_text("v1\n{}")
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
def test_what_waits_moves_from_layer_to_layer(spark: SparkSession, make_settings: MakeSettings) -> None:
    settings, at = make_settings(topic_partitions=2), datetime.now(UTC)
    observer, groups = Observer([STREAM], settings), GroupProgress([STREAM], settings)

    def look() -> StreamState:
        (state,) = observer.observe(datetime.now(UTC)).streams
        return state

    silver, gold, export = "silver.metrics_events", "gold.metrics_1m", "export.metrics_1m"
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
    assert waiting(state) == ([0, 0], {silver: 7, gold: 0, export: 0})
    assert [lag.seconds for lag in state.partitions] == [0.0, 0.0]

    pipeline.run_layers(spark, settings, "silver")
    assert waiting(look()) == ([0, 0], {silver: 0, gold: 7, export: 0})
    pipeline.run_layers(spark, settings, "gold")
    assert waiting(look()) == ([0, 0], {silver: 0, gold: 0, export: 1})
    pipeline.run_layers(spark, settings, "export")
    state = look()
    assert waiting(state) == ([0, 0], {silver: 0, gold: 0, export: 0})
    assert {lag.seconds for lag in state.layers} == {0.0}
    assert state.health.word == "well"

    pipeline.send(settings, events(2, at))
    assert waiting(look()) == ([1, 1], {silver: 0, gold: 0, export: 0})
    pipeline.run_layers(spark, settings, "bronze", "silver", "gold")
    groups.commit()
    assert committed(settings) == [5, 4]
    assert waiting(look())[1][export] == 2  # one row, as it was and as it is
    pipeline.run_layers(spark, settings, "export")
    assert waiting(look()) == ([0, 0], {silver: 0, gold: 0, export: 0})
    groups.close()
    observer.close()
