"""An audit of a table whose log no longer begins at its first version, as log retention leaves it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kafka import KafkaProducer
from pydantic import SecretStr
from pyspark.sql import SparkSession

from lakehouse.engine.runtime.runner import RunOptions, run, utc_now
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.operations.audit import Check
from lakehouse.operations.audit.stores import check_lead, check_store
from lakehouse.settings import Settings
from lakehouse.sinks.redis import sink as to_redis
from lakehouse.storage.tables import Lake
from tests.support import pipeline, redis_databases
from tests.support.pipeline import Raw
from tests.support.settings import MakeSettings
from tests.support.streams import TRANSACTIONS, USER_TRANSACTIONS_5M

GOLD = "gold.user_transactions_5m"
START = pipeline.utc("2026-03-01T00:00:00")
REDIS_DATABASE = 6  # no other test uses it, since all have the same keys of this table


def spent(user: str, amount: str) -> Raw:
    stamp = int(START.timestamp() * 1000)
    return Raw(f'{{"userId":{json.dumps(user)},"amount":{amount},"timestamp":{stamp}}}'.encode())


def send_again(settings: Settings, topic: str, user: str) -> None:
    """Send a user's message once more, so that it has been sent twice."""
    messages = pipeline.read_topic(settings.kafka.bootstrap_servers, topic)
    (one,) = (message for message in messages if message.key == user.encode())
    producer = KafkaProducer(bootstrap_servers=settings.kafka.bootstrap_servers, acks="all")
    try:
        producer.send(topic, one.value, key=one.key, partition=one.partition).get(30)
    finally:
        producer.close()


def forget_first_commits(path: Path) -> int:
    """Remove what precedes the last checkpoint, as log retention does; return the checkpoint's version."""
    kept = pipeline.log_checkpoints(path)[-1]
    pipeline.forget_commits(path, before=kept)
    return kept


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    own = make_settings()
    url = redis_databases.url_of(own.redis.url.get_secret_value(), REDIS_DATABASE)
    return own.changed({"redis.url": SecretStr(url)})


@pytest.mark.soak
def test_the_audit_notes_what_a_log_that_was_cleaned_up_cannot_tell(
    spark: SparkSession, settings: Settings
) -> None:
    lake = Lake(spark, settings.lake)

    def take(offset: int, *records: Raw) -> None:
        source = TRANSACTIONS.sources[0]
        pipeline.land(spark, settings, [list(records)], landed_at=START, first_offset=offset, source=source)
        run(lake, [TRANSACTIONS], ["silver", "gold", "export"], settings, RunOptions(AVAILABLE_NOW))

    def looked() -> tuple[Check, Check]:
        (sent,) = check_lead(lake, TRANSACTIONS, USER_TRANSACTIONS_5M, settings)
        (put,) = check_store(
            lake, TRANSACTIONS, USER_TRANSACTIONS_5M, to_redis.KIND, settings=settings, now=utc_now()
        )
        return sent, put

    topic, gold = settings.topic("aggregated-transactions"), pipeline.path_of(settings, GOLD)
    take(0, spent("u1", "1"), spent("u2", "1"))
    spark.sql(f"ALTER TABLE delta.`{gold}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    take(2, spent("u1", "2"))
    assert [(check.compared, check.differences) for check in looked()] == [(2, 0), (4, 0)]
    send_again(settings, topic, "u2")
    assert looked()[0].differences == 1
    kept = forget_first_commits(gold)

    sent, put = looked()

    assert [(check.compared, check.differences) for check in (sent, put)] == [(2, 0), (2, 0)]  # of two users
    gone = f"gold's log begins at version {kept}"
    assert sent.notes[1:] == (f"{gone}: it is unknown whether 1 repeated messages are duplicates",)
    begins = f"{gone}: rows changed before that"
    assert [note.startswith(begins) for note in put.notes] == [False]
    assert [why.startswith(begins) for why in put.not_compared] == [True]
