"""The audit of Redis for a call that was closed and then got another event."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.engine.layers import gold
from lakehouse.engine.runtime.runner import RunOptions, run
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.operations.audit.stores import check_store
from lakehouse.settings import Settings
from lakehouse.sinks.redis import sink as to_redis
from lakehouse.storage import tables
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.tables import Lake
from tests.support.settings import MakeSettings
from tests.support.streams import CALL_RECORDS, CALLS

AT = datetime(2026, 10, 1, 12, tzinfo=UTC)


def call(minute: int, status: str) -> dict[str, Any]:
    ts = AT + timedelta(minutes=minute)
    row = dict.fromkeys(CALL_RECORDS.schema.names) | {"user1": "ann", "user2": "bob", "ts": ts}
    return row | {
        "analytics": f'"{status}"',
        "analytics_events": 1,
        "metrics_events": 0,
        "last_event_time": ts,
        "status": status,
        "was_closed": True,
    }


def put(lake: Lake, *rows: dict[str, Any]) -> None:
    frame = local_frame(lake.spark, list(rows), CALL_RECORDS.schema)
    path = lake.path("gold", CALL_RECORDS.name)
    tables.replace(frame.coalesce(1), path, CALL_RECORDS.keys, within=F.lit(True))


@pytest.fixture
def exported(spark: SparkSession, make_settings: MakeSettings) -> tuple[Lake, Settings]:
    """Put two closed calls of a pair into gold and Redis."""
    settings = make_settings()
    lake = Lake(spark, settings.lake)
    lake.ensure(gold.spec(CALL_RECORDS))
    put(lake, call(0, "closed"), call(5, "closed"))
    run(lake, [CALLS], ["export"], settings, RunOptions(AVAILABLE_NOW))
    return lake, settings


def differences(lake: Lake, settings: Settings) -> list[str]:
    (check,) = check_store(lake, CALLS, CALL_RECORDS, to_redis.KIND, settings=settings, now=datetime.now(UTC))
    assert check.differences == len(check.examples)
    return [one.what for one in check.examples]


@pytest.mark.soak
def test_it_may_stay_the_latest_in_redis_until_it_closes_again(exported: tuple[Lake, Settings]) -> None:
    lake, settings = exported
    assert differences(lake, settings) == []

    put(lake, call(5, "open"))
    run(lake, [CALLS], ["export"], settings, RunOptions(AVAILABLE_NOW))

    assert differences(lake, settings) == []


def test_another_row_may_not(exported: tuple[Lake, Settings]) -> None:
    lake, settings = exported
    put(lake, call(5, "open"))
    run(lake, [CALLS], ["export"], settings, RunOptions(AVAILABLE_NOW))
    with redis.Redis.from_url(settings.redis.url.get_secret_value()) as client:
        key = "lakehouse:call_records:latest:ann"
        ((member, text),) = client.hgetall(key).items()
        client.hset(key, member, text.replace(b"closed", b"forged"))

    (what,) = differences(lake, settings)

    assert "gold has ann-bob:" in what
    assert "forged" in what
