"""A year-old payment is corrected, sent twice and deleted, from Kafka to Kafka and Redis.

Settings alone give the built-in stream of transactions its ids. A record that would be far too late is not
late if it corrects one that silver has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest
import redis
from pydantic import SecretStr
from pyspark.sql import SparkSession

from lakehouse.common.errors import SettingsError
from lakehouse.dev.services.services import Endpoints
from lakehouse.engine.records.dead_letters import Selection
from lakehouse.engine.runtime.runner import utc_now
from lakehouse.operations.audit import audit
from lakehouse.operations.repair.replay import replay
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Stream
from lakehouse.streams.registry import choose_one
from tests.support import pipeline, redis_databases
from tests.support.pipeline import DEAD_LETTERS, Raw
from tests.support.settings import MakeSettings

TOPIC = "transactions-topic"
REDIS_DATABASE = 9
NOW = utc_now()
LONG_AGO_MS = int((NOW - timedelta(days=365)).timestamp() * 1000) // 300_000 * 300_000
TODAY_MS = int((NOW - timedelta(hours=1)).timestamp() * 1000) // 300_000 * 300_000


@pytest.fixture
def settings(make_settings: MakeSettings, services: Endpoints) -> Iterator[Settings]:
    with redis_databases.emptied(services.redis, REDIS_DATABASE) as url:
        yield make_settings(
            {
                "redis.url": SecretStr(url),
                "streams": {"transactions": {"unique_by": "transactionId", "sequence_by": "version"}},
                "kafka.topic_partitions": 1,
            }
        )


def paid(id_: str, version: int, user: str, amount: float, at_ms: int) -> Raw:
    record = {"transactionId": id_, "version": version, "userId": user, "amount": amount, "timestamp": at_ms}
    return Raw(json.dumps(record).encode(), user.encode())


def deletion(id_: str) -> Raw:
    return Raw(None, id_.encode())


def messages(settings: Settings) -> dict[str, Any]:
    """Return the newest message under each key and window; a tombstone under its key."""
    found: dict[str, Any] = {}
    for record in pipeline.read_topic(
        settings.kafka.bootstrap_servers, settings.topic("aggregated-transactions")
    ):
        if record.value is None:
            found[record.key.decode()] = None
        else:
            value = json.loads(record.value)
            found[f"{value['userId']}:{value['windowStart']}"] = (value["totalAmount"], value["count"])
    return found


def in_redis(settings: Settings) -> Mapping[str, Any]:
    client: Any = redis.Redis.from_url(settings.redis.url.get_secret_value(), decode_responses=True)
    with client:
        names = client.keys("lakehouse:user_transactions_5m:row:*")
        rows = {name.split(":row:")[1]: json.loads(client.get(name)) for name in names}
    return {name: (row["totalAmount"], row["count"]) for name, row in rows.items() if "count" in row}


def letters(settings: Settings) -> dict[int, tuple[str, list[str]]]:
    return {
        row["offset"]: (row["status"], [reason["rule"] for reason in row["reasons"]])
        for row in pipeline.rows_of(settings, DEAD_LETTERS)
    }


def run_and_look(spark: SparkSession, settings: Settings, stream: Stream) -> dict[str, Any]:
    """Run every layer; check that gold, Kafka and Redis agree, and return their rows."""
    pipeline.run_layers(spark, settings, "bronze", "silver", "gold", "export", stream=stream)
    rows = {
        f"{row['user_id']}:{row['window_start'] // 1000}": (float(row["total_amount"]), row["count"])
        for row in pipeline.rows_of(settings, "gold.user_transactions_5m")
    }
    told = {key: value for key, value in messages(settings).items() if value is not None}
    assert told == rows
    assert in_redis(settings) == rows
    return rows


@pytest.mark.soak
def test_a_payment_of_a_year_ago_is_corrected_and_deleted(spark: SparkSession, settings: Settings) -> None:
    stream = choose_one("transactions", settings)
    (source,) = stream.sources
    old, today = LONG_AGO_MS, TODAY_MS

    def send(*records: Raw) -> None:
        pipeline.send(settings, records, source)

    # 0 to 3: from the last one on, year-old records are late
    send(paid("a", 1, "ann", 10, old), paid("b", 1, "ann", 5, old), paid("c", 1, "bob", 7, old))
    send(paid("d", 1, "ann", 1, today))
    assert run_and_look(spark, settings, stream) == {
        f"ann:{old}": (15, 2),
        f"bob:{old}": (7, 1),
        f"ann:{today}": (1, 1),
    }
    spark.sql(
        f"ALTER TABLE delta.`{pipeline.path_of(settings, 'silver.transactions')}` ADD COLUMN note STRING"
    )

    # 4 to 8: too late; a correction; the same again; an older version; the same version, another amount
    send(paid("e", 1, "ann", 100, old), paid("a", 2, "ann", 12, old), paid("a", 2, "ann", 12, old))
    send(paid("b", 0, "ann", 4, old), paid("b", 1, "ann", 6, old))
    assert run_and_look(spark, settings, stream) == {
        f"ann:{old}": (17, 2),
        f"bob:{old}": (7, 1),
        f"ann:{today}": (1, 1),
    }
    assert letters(settings) == {
        0: ("superseded", ["superseded"]),
        4: ("open", ["late"]),
        6: ("duplicate", ["duplicate"]),
        7: ("superseded", ["superseded"]),
        8: ("open", ["conflicting_id"]),
    }

    # 9, 10: c moves to another user and to today, so its old window loses its row; b is deleted
    send(paid("c", 2, "eve", 7, today), deletion("b"))
    assert run_and_look(spark, settings, stream) == {
        f"ann:{old}": (12, 1),
        f"ann:{today}": (1, 1),
        f"eve:{today}": (7, 1),
    }
    assert f"bob:{old}" in messages(settings)

    # 11 to 13: a deleted payment comes back only with a greater version; another is too late
    send(paid("b", 1, "ann", 5, today), paid("b", 2, "ann", 6, today), paid("f", 1, "bob", 3, old))
    assert run_and_look(spark, settings, stream)[f"ann:{today}"] == (7, 2)
    assert letters(settings)[11] == ("superseded", ["superseded"])

    replayed = replay(Lake(spark, settings.lake), [stream], Selection(offset=4), utc_now(), allow_late=True)
    assert replayed.passed == 1

    # 14: the late record is sent again with a time that is not late
    assert letters(settings)[13] == ("open", ["late"])
    send(paid("f", 1, "bob", 3, today))
    rows = run_and_look(spark, settings, stream)
    assert (rows[f"ann:{old}"], rows[f"bob:{today}"]) == ((112, 2), (3, 1))
    assert letters(settings)[13] == ("resent", ["late", "resent"])
    report = audit(Lake(spark, settings.lake), [stream], settings, utc_now())
    assert [check for check in report.checks if check.differences] == []


def test_a_field_that_records_may_lack_is_no_id(make_settings: MakeSettings) -> None:
    settings = make_settings({"streams": {"metrics": {"unique_by": "environment"}}})

    with pytest.raises(SettingsError, match="environment: an id or sequence must be a required field"):
        choose_one("metrics", settings)


def test_a_sequence_needs_an_id_and_calls_cannot_be_corrected(make_settings: MakeSettings) -> None:
    with pytest.raises(SettingsError, match="set unique_by"):
        choose_one("sales", make_settings({"streams": {"sales": {"sequence_by": "version"}}}))
    ids = {"unique_by": "id", "sequence_by": "version"}
    with pytest.raises(SettingsError, match="cannot apply corrections"):
        choose_one("calls", make_settings({"streams": {"calls": {"sources": {"call_metrics": ids}}}}))
