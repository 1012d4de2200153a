"""Rows too large for their topic: the others are sent, these are noted, and the audit knows of them.

Closed calls are put into gold.call_records by hand, in one Delta commit per `put`; version 0 made the table.
The broker accepts records of up to 2 MiB unless a test sets another limit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import redis
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from pydantic import SecretStr
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.common.errors import ServiceError
from lakehouse.dev.services.services import Endpoints
from lakehouse.engine.layers import export as export_layer
from lakehouse.engine.layers import gold
from lakehouse.engine.runtime.runner import BatchDone, RunOptions, run
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.operations.audit import Check
from lakehouse.operations.audit.stores import check_lead
from lakehouse.operations.catalog.spark_sql import ask, define_views
from lakehouse.settings import Settings
from lakehouse.sinks.change import Span
from lakehouse.sinks.kafka.rows import KafkaSink, read_progress
from lakehouse.storage import tables
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.tables import Lake, Position
from lakehouse.streams.definition import MergedTable, Stream
from tests.support import pipeline, redis_databases
from tests.support.settings import MakeSettings
from tests.support.streams import CALL_RECORDS, CALLS, PRODUCT_SALES, SALES, STREAMS

pytestmark = pytest.mark.soak

TS = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
TS_MS = 1_777_896_000_000
LIMIT = 2 * 1024 * 1024
REDIS_DATABASE = 12  # no other test file uses it
UNSENT = "ops.unsent_rows"


@dataclass(frozen=True)
class Call:
    """A closed call between ann and somebody."""

    other: str
    analytics: str = "a"
    metrics: str = "m"

    @property
    def key(self) -> str:
        return f"ann-{self.other}:{TS_MS}"

    @property
    def message(self) -> str:
        sides = f'"analytics":"{self.analytics}","metrics":"{self.metrics}"'
        return f'{{"user1":"ann","user2":"{self.other}","ts":{TS_MS},{sides}}}'

    def row(self) -> dict[str, Any]:
        return {
            "user1": "ann",
            "user2": self.other,
            "ts": TS,
            "analytics": self.analytics,
            "metrics": self.metrics,
            "analytics_events": 1,
            "metrics_events": 1,
            "last_event_time": TS,
            "status": "closed",
            "closed_at": TS + timedelta(minutes=5),
            "was_closed": True,
        }


# Either payload alone would fit, and each came in a record that the broker accepted.
LARGE = Call("eve", "x" * 1_200_000, "y" * 1_200_000)


class Exported:
    """One lake's calls, or another table, and the topic to which they are sent."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        stream: Stream = CALLS,
        table: MergedTable = CALL_RECORDS,
    ) -> None:
        self.spark, self.settings, self.stream, self.table = spark, settings, stream, table
        self.lake, self.topic = Lake(spark, settings.lake), settings.topic(str(table.export.topic))
        self.path = self.lake.ensure(gold.spec(table))
        self.note = Path(self.path, "_lakehouse_export", f"{self.topic}.json")

    def put(self, *rows: dict[str, Any]) -> None:
        """Insert or update rows in one commit, as gold does."""
        frame = local_frame(
            self.spark, [{**dict.fromkeys(self.table.schema.names), **row} for row in rows], self.table.schema
        )
        tables.replace(frame.coalesce(1), self.path, self.table.keys, within=F.lit(True))

    def put_calls(self, *calls: Call) -> None:
        self.put(*(call.row() for call in calls))

    def run(self) -> list[BatchDone]:
        done: list[BatchDone] = []
        stream, settings = self.stream, self.settings
        run(self.lake, [stream], ["export"], settings, RunOptions(AVAILABLE_NOW, on_batch=done.append))
        return [batch for batch in done if batch.query == f"export.{self.table.name}"]

    def written(self) -> dict[str, int]:
        """Export one micro-batch, and return its row counts by destination, with `topic` for the topic."""
        (batch,) = self.run()
        return {"topic" if name == self.topic else name: n for name, n in batch.result.written.items()}

    def messages(self) -> dict[str, list[str | None]]:
        found: dict[str, list[str | None]] = {}
        for one in pipeline.read_topic(self.settings.kafka.bootstrap_servers, self.topic):
            value = None if one.value is None else one.value.decode()
            found.setdefault(one.key.decode(), []).append(value)
        return found

    def noted(self) -> list[tuple[Any, ...]]:
        """Return the rows of ops.unsent_rows without the time, which must be recent."""
        columns = "table", "topic", "row_key", "version", "key", "size_bytes", "limit_bytes", "reason"
        rows = pipeline.rows_of(self.settings, UNSENT)
        now = pipeline.micros(datetime.now(UTC))
        assert all(now - 600_000_000 < row["noted_at"] <= now for row in rows)
        return sorted(tuple(row[name] for name in columns) for row in rows)

    def audited(self) -> Check:
        (check,) = check_lead(self.lake, self.stream, self.table, self.settings)
        return check

    def set_limit(self, max_message_bytes: int) -> None:
        configuration = {"max.message.bytes": str(max_message_bytes)}
        with closing(KafkaAdminClient(bootstrap_servers=self.settings.kafka.bootstrap_servers)) as admin:
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, self.topic, configuration)])


@pytest.fixture
def settings(make_settings: MakeSettings, services: Endpoints) -> Iterator[Settings]:
    with redis_databases.emptied(services.redis, REDIS_DATABASE) as url:
        yield make_settings({"redis.url": SecretStr(url)})


@pytest.fixture(params=[pytest.param("in one transaction", marks=pytest.mark.soak), "in slices"])
def exported(
    spark: SparkSession, settings: Settings, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Exported:
    if request.param == "in slices":
        monkeypatch.setattr(export_layer, "LARGE_FROM_ROWS", 4)
        monkeypatch.setattr("lakehouse.sinks.kafka.sink.SLICE_ROWS", 2)
    return Exported(spark, settings)


@pytest.mark.usefixtures("nameless")
def test_a_call_that_is_too_large_is_noted_once_and_the_others_leave(exported: Exported) -> None:
    first, others = Call("ada"), [Call(name) for name in ("bob", "cem", "dan", "fay", "gil")]
    exported.put_calls(first)
    assert exported.written() == {"topic": 1, "redis": 1}
    earlier = exported.note.read_text()
    exported.put_calls(*others, LARGE)

    assert exported.written() == {"topic": 5, "redis": 6, "unsent": 1}

    messages = {call.key: [call.message] for call in (first, *others)}
    assert exported.messages() == messages
    # 61 bytes for a batch, 21 for a record, one for no headers, one and four for the lengths.
    size = 88 + len(LARGE.key) + len(LARGE.message)
    row = ("call_records", exported.topic, LARGE.key, 2, LARGE.key, size, LIMIT, "too_large")
    assert exported.noted() == [row]
    with redis.Redis.from_url(exported.settings.redis.url.get_secret_value()) as client:
        stored = json.loads(client.get(f"lakehouse:call_records:row:{LARGE.key}") or "{}")
    assert (stored["analytics"], stored["metrics"]) == (LARGE.analytics, LARGE.metrics)

    # As after a crash before the note in the lake: the micro-batch is repeated.
    exported.note.with_name(f".{exported.note.name}.crc").unlink(missing_ok=True)
    exported.note.write_text(earlier)
    version = pipeline.version_of(exported.settings, UNSENT)
    assert exported.written() == {"topic": 0, "redis": 0, "unsent": 1}
    assert exported.messages() == messages
    assert (exported.noted(), pipeline.version_of(exported.settings, UNSENT)) == ([row], version)

    audited = exported.audited()
    assert (audited.compared, audited.differences) == (7, 0)
    assert audited.notes[1:] == ("1 rows are too large for the topic; see ops.unsent_rows",)
    assert UNSENT in define_views(exported.lake, STREAMS)
    found = ask(exported.spark, "SELECT value_sha256 FROM ops.unsent_rows", limit=2)
    assert [tuple(row) for row in found.rows] == [(hashlib.sha256(LARGE.message.encode()).hexdigest(),)]


@pytest.mark.usefixtures("nameless")
def test_a_row_leaves_once_the_topic_takes_it_and_it_is_updated(
    spark: SparkSession, settings: Settings
) -> None:
    calls, small = Exported(spark, settings), replace(LARGE, analytics="x", metrics="y")
    calls.put_calls(small, Call("bob"))
    assert calls.written() == {"topic": 2, "redis": 2}
    assert not pipeline.path_of(settings, UNSENT).exists()
    calls.put_calls(LARGE)

    assert calls.written() == {"topic": 0, "redis": 1, "unsent": 1}
    assert calls.messages() == {small.key: [small.message], Call("bob").key: [Call("bob").message]}
    assert calls.audited().differences == 0  # though the topic has an older state

    calls.set_limit(4_000_000)
    define_views(Lake(spark, settings.lake), STREAMS)
    ask(spark, "UPDATE gold.call_records SET status = status WHERE user2 = 'eve'", limit=1, write=True)
    assert calls.written() == {"topic": 1, "redis": 1}
    assert calls.messages()[LARGE.key] == [small.message, LARGE.message]
    assert (calls.audited().differences, len(calls.audited().notes)) == (0, 1)


def test_the_audit_reports_a_state_that_is_lost_though_an_earlier_one_was_too_large(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Exported(spark, settings)
    calls.put_calls(LARGE)
    calls.run()
    calls.put_calls(replace(LARGE, metrics="y"))
    with monkeypatch.context() as patch:
        patch.setattr(KafkaSink, "write", crash)
        with pytest.raises(ServiceError, match="pulled out"):
            calls.run()
    # Somebody tells Kafka that the micro-batch has been sent, so its row never is.
    group = f"lakehouse-export-call_records-to-{calls.topic}"
    progress = read_progress(settings.kafka.access, group, calls.topic)
    assert progress is not None
    with closing(KafkaSink(settings.kafka.access, calls.topic, "call_records")) as other:
        after = Position(progress.position.version + 1)
        other.write([], Span(progress.table, progress.position, after))

    assert calls.written() == {"topic": 0, "redis": 1}

    (example,) = calls.audited().examples
    assert (example.key, example.what) == ({"key": LARGE.key}, "in gold, but not in the topic")


def crash(*_arguments: object) -> int:
    raise ServiceError("Kafka was pulled out")


def test_what_is_counted_may_be_too_large_too(spark: SparkSession, settings: Settings) -> None:
    (table,) = PRODUCT_SALES.sides
    sales = Exported(spark, settings, SALES, table)
    sales.run()
    sales.set_limit(500)
    kept = {"value": Decimal(2500), "crossing": 1, "event_time": TS, "partition": 0}
    sales.put({**kept, "product": "tea", "offset": 1}, {**kept, "product": "p" * 300, "offset": 2})

    assert sales.written() == {"topic": 1, "redis": 2, "unsent": 1}

    assert sales.messages() == {"tea": ['{"product":"tea","value":2500}']}
    audited = sales.audited()
    assert (audited.compared, audited.differences) == (2, 0)
    assert audited.notes[1:] == ("1 rows are too large for the topic; see ops.unsent_rows",)
