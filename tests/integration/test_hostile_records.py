"""Records as hostile as contracts allow match the oracles in every layer and store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr
from pyspark.sql import SparkSession

from lakehouse.dev.services.services import Endpoints
from lakehouse.engine.layers import LAYERS
from lakehouse.engine.runtime.runner import RunOptions, run, utc_now
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.settings import Settings
from lakehouse.storage.kafka.topics import create_topics
from lakehouse.storage.tables import Lake
from lakehouse.streams.registry import load
from tests.chaos.checks import differences
from tests.fuzz.names import NAMES, composed
from tests.fuzz.records import PARTITIONS, TABLES, Shape, Times, make
from tests.support import pipeline, redis_databases
from tests.support.chance import chance
from tests.support.delta_commands import SOURCES
from tests.support.pipeline import micros, rows_of, utc
from tests.support.settings import settings_for
from tests.support.verdicts import judge_batches

HALF_OF_THEM = len(NAMES) // 2  # records of a topic, with a different half of the names in each topic
REDIS_DATABASE = 12  # no other test file uses it
CENTURY_S = 36_525 * 24 * 3600


@pytest.fixture
def redis_url(services: Endpoints) -> Iterator[str]:
    with redis_databases.emptied(services.redis, REDIS_DATABASE) as url:
        yield url


def lake_in(directory: Path, settings: Settings, services: Endpoints, redis_url: str) -> Settings:
    """Return a lake that accepts event times from a hundred years, and closes past calls at once."""
    return settings_for(settings, services, directory).changed(
        {
            "redis.url": SecretStr(redis_url),
            "stream_defaults.allowed_lateness_s": CENTURY_S,
            "stream_defaults.future_tolerance_s": CENTURY_S,
            "stream_defaults.earliest_event_time": utc("1900-01-01T00:00:00"),
            "streams": {
                "calls": {"gap": "1s", "grace": "1s"},
                "metrics": {"idle_after": f"{CENTURY_S}s"},
                "sales": {"threshold": 100},
            },
        }
    )


@pytest.mark.slow
@pytest.mark.soak
def test_records_as_hostile_as_contracts_allow_are_what_the_oracles_make_of_them(
    spark: SparkSession, session_settings: Settings, services: Endpoints, redis_url: str, tmp_path: Path
) -> None:
    """The first micro-batch of a lake has no watermark, so all times from 1900 on are accepted."""
    settings, random = lake_in(tmp_path, session_settings, services, redis_url), chance(13)
    now_us = micros(utc_now())
    times = Times(micros(utc("1900-01-01T00:00:00")), now_us + (CENTURY_S - 86_400) * 1_000_000, now_us)
    shape = Shape([*NAMES, *(composed(random) for _ in range(8))], times, HALF_OF_THEM)
    create_topics(settings.kafka.access, {settings.topic(one.topic): PARTITIONS for one in SOURCES.values()})
    records = {table: make(table, random, shape) for table in SOURCES}
    for table, source in SOURCES.items():
        pipeline.send(settings, records[table], source)

    run(Lake(spark, settings.lake), load(settings), LAYERS, settings, RunOptions(AVAILABLE_NOW, at_once=2))

    verdicts = {
        table: judge_batches([rows_of(settings, f"bronze.{table}")], settings, source)
        for table, source in SOURCES.items()
    }
    _, found = differences(settings, verdicts, now_us=micros(utc_now()))
    accepted = {
        table: sum(not one.reasons for one in of_table.values()) for table, of_table in verdicts.items()
    }
    assert found == []
    assert accepted == {table: len(records[table]) - 1 for table in TABLES}
    assert min(accepted.values()) > HALF_OF_THEM
