"""Whatever is valid goes through, and whatever a user does to a table is found and mended.

One round of records that are as hostile as contracts allow is part of `make test`; `make soak` has twenty
minutes of tests/fuzz, or as many as FUZZ_MINUTES says, drawn by its SEED.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
import redis
from hypothesis import core
from pydantic import SecretStr
from pyspark.sql import SparkSession

from lakehouse.runtime.runner import utc_now
from lakehouse.sandbox.services import Endpoints
from lakehouse.settings import Settings
from tests import redis_databases
from tests.chance import chance
from tests.conftest import settings_for
from tests.fuzz.lives import CENTURY_S, Life, eras
from tests.fuzz.names import NAMES
from tests.fuzz.records import TABLES, Shape, Times
from tests.pipeline import micros, utc

MINUTES = float(os.environ.get("FUZZ_MINUTES", "20"))
HALF_OF_THEM = len(NAMES) // 2  # first names of a topic's records, in each topic another half
REDIS_DATABASE = 12  # no other file of tests uses it


@pytest.fixture
def redis_url(services: Endpoints) -> Iterator[str]:
    with redis_databases.emptied(services.redis, REDIS_DATABASE) as url:
        yield url


def lake_in(directory: Path, settings: Settings, services: Endpoints, redis_url: str) -> Settings:
    """A lake that takes event times of a hundred years, and closes calls of the past at once."""
    return settings_for(settings, services, directory).model_copy(
        update={
            "redis_url": SecretStr(redis_url),
            "allowed_lateness_s": CENTURY_S,
            "idle_after_s": CENTURY_S,
            "future_tolerance_s": CENTURY_S,
            "earliest_event_time": utc("1900-01-01T00:00:00"),
            "call_gap_s": 1,
            "call_grace_s": 1,
            "sales_threshold": Decimal(100),
        }
    )


@pytest.mark.slow
@pytest.mark.soak
def test_records_as_hostile_as_contracts_allow_are_what_the_oracles_make_of_them(
    spark: SparkSession, session_settings: Settings, services: Endpoints, redis_url: str, tmp_path: Path
) -> None:
    """The first micro-batch of a lake has no watermark, so all times from 1900 on are accepted."""
    first, *_, last = eras(micros(utc_now()))
    every_time = Times(first.first_us, last.last_us, first.now_us)
    settings = lake_in(tmp_path, session_settings, services, redis_url)

    with Life(spark, settings, chance(13)) as life:
        life.round(Shape(NAMES, every_time, HALF_OF_THEM, refused=1), at_once=True)

        accepted = life.accepted()
    assert accepted == {table: life.sent[table] - 1 for table in TABLES}
    assert min(accepted.values()) > HALF_OF_THEM


@pytest.mark.soak
@pytest.mark.slow
def test_no_layer_stops_and_the_audit_finds_what_was_changed_by_hand(
    spark: SparkSession, session_settings: Settings, services: Endpoints, redis_url: str, tmp_path: Path
) -> None:
    until = time.monotonic() + MINUTES * 60
    sent, accepted = Counter[str](), Counter[str]()
    for number in itertools.count(1):
        directory = tmp_path / f"life-{number}"
        settings = lake_in(directory, session_settings, services, redis_url)
        with redis.Redis.from_url(redis_url) as client:
            client.flushdb()
        with Life(spark, settings, chance(13_000 + number)) as life:
            life.history.append(f"life {number} of SEED={getattr(core, 'global_force_seed', None)}")
            life.live(until)
        sent += life.sent
        accepted += Counter(life.accepted())
        shutil.rmtree(directory)
        if time.monotonic() > until:
            break
    print(f"{number} lakes; accepted {dict(accepted)} of {dict(sent)}")
    assert all(accepted[table] > 0.8 * sent[table] for table in TABLES), (accepted, sent)
