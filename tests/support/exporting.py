"""An export of gold.metrics_1m with rows written by tests, and the rows that arrive in Kafka and Redis."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import redis
from delta.tables import DeltaTable
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.engine.layers import Allow, gold
from lakehouse.engine.layers import export as export_layer
from lakehouse.engine.layers.step import Permitted, Step
from lakehouse.engine.runtime.runner import BatchDone, RunOptions, run, utc_now
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.operations.audit import Check
from lakehouse.operations.audit.stores import check_lead, check_store
from lakehouse.settings import Settings
from lakehouse.sinks.redis import sink as to_redis
from lakehouse.storage import tables
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.tables import DELETED, Lake
from tests.support.pipeline import read_topic
from tests.support.streams import METRICS, METRICS_1M

START = datetime(2026, 3, 29, 0, 59, tzinfo=UTC)  # a minute before Europe's clocks change
EVERY_COMMIT = 1  # so small that each commit is its own micro-batch
ALL_AT_ONCE = 1 << 30
Message = tuple[str, dict[str, Any] | None]


@dataclass(frozen=True)
class State:
    """A gold row: minute `window` after START, `count` events (1: no variance yet)."""

    service: str
    window: int
    count: int = 1

    @property
    def start_ms(self) -> int:
        return int(START.timestamp() * 1000) + 60_000 * self.window

    @property
    def row_key(self) -> str:
        return f"lakehouse:metrics_1m:row:{self.service}:latency:{self.start_ms}"

    def row(self) -> dict[str, Any]:
        start = START + timedelta(minutes=self.window)
        spread = None if self.count == 1 else 0.25
        return {
            "service_id": self.service,
            "metric_name": "latency",
            "window_start": start,
            "window_end": start + timedelta(minutes=1),
            "count": self.count,
            "sum": 2.5 * self.count,
            **dict.fromkeys(("min", "max", "avg", "p50", "p90", "p95", "p99"), 2.5),
            "variance": spread,
            "stddev": spread,
            "last_event_time": start + timedelta(microseconds=59_999_999),
            "is_final": False,
            "m2": 0.0,
            "sketch": bytearray(b"sketch"),
        }

    def message(self) -> dict[str, Any]:
        """Return the row as it should be exported."""
        spread = None if self.count == 1 else 0.25
        return {
            "serviceId": self.service,
            "metricName": "latency",
            "windowStart": self.start_ms,
            "windowEnd": self.start_ms + 60_000,
            "count": self.count,
            "sum": 2.5 * self.count,
            **dict.fromkeys(("min", "max", "avg"), 2.5),
            "variance": spread,
            "stddev": spread,
            **dict.fromkeys(("p50", "p90", "p95", "p99"), 2.5),
            "lastEventTime": self.start_ms + 59_999,
            "isFinal": False,
        }


ONE_TABLE = replace(METRICS, gold=(METRICS_1M,))


class Export:
    """A lake's gold.metrics_1m, and the two stores to which its changes are exported."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self.spark = spark
        self.lake = Lake(spark, settings.lake)
        self.settings = settings
        self.topic = settings.topic("metrics-aggregated-1m")
        self.path = self.lake.ensure(gold.spec(METRICS_1M))
        self.note = Path(self.path, "_lakehouse_export", f"{self.topic}.json")
        self.notices = list[str]()

    def put(self, *states: State) -> None:
        """Insert or update rows in one commit, like gold."""
        rows = local_frame(self.spark, (state.row() for state in states), METRICS_1M.schema).coalesce(1)
        tables.replace(rows, self.path, METRICS_1M.keys, within=F.lit(True))

    def take_away(self, state: State) -> None:
        """Delete a row in one commit, like gold."""
        row = local_frame(self.spark, [state.row()], METRICS_1M.schema).withColumn(DELETED, F.lit(True))
        tables.replace(row, self.path, METRICS_1M.keys, within=F.lit(True))

    def correct(self, values: str, where: str) -> None:
        """Update rows in one commit, like a user."""
        self.spark.sql(f"UPDATE delta.`{self.path}` SET {values} WHERE {where}")

    def audited(self) -> list[Check]:
        """Return the audit's findings about the topic and Redis."""
        redis_ = check_store(
            self.lake, METRICS, METRICS_1M, to_redis.KIND, settings=self.settings, now=utc_now()
        )
        return [*self.audited_topic(), *redis_]

    def audited_topic(self) -> list[Check]:
        """Return the audit's findings about the topic."""
        return check_lead(self.lake, METRICS, METRICS_1M, self.settings)

    def delete(self, state: State) -> None:
        """Delete a row in one commit, like a user."""
        start = (START + timedelta(minutes=state.window)).strftime("%Y-%m-%d %H:%M:%S")
        where = f"service_id = '{state.service}' AND window_start = timestamp'{start}'"
        DeltaTable.forPath(self.spark, self.path).delete(where)

    def run(self, max_bytes: int = ALL_AT_ONCE, allow: Sequence[Allow] = ()) -> list[BatchDone]:
        """Export until caught up, and return the micro-batches' results; `notices` collects the notices."""
        done: list[BatchDone] = []
        self.notices.clear()
        settings = self.settings.changed({"run.max_bytes": max_bytes})
        run(
            self.lake,
            [ONE_TABLE],
            ["export"],
            settings,
            RunOptions(AVAILABLE_NOW, on_batch=done.append, on_notice=self.notices.append, allow=allow),
        )
        return done

    def put_note_back(self, text: str | None) -> None:
        """Replace the lake's note of the export's position with an earlier one, or remove it."""
        self.note.with_name(f".{self.note.name}.crc").unlink(missing_ok=True)
        self.note.unlink() if text is None else self.note.write_text(text)

    @contextmanager
    def stepping(self) -> Iterator[Step]:
        """Yield the export step, for a test that runs it directly."""
        maker = export_layer.steps(self.lake, ONE_TABLE, self.settings, Permitted())[0]
        with closing(maker.make()) as step:
            yield step

    def messages(self) -> list[Message]:
        """Return everything that a read-committed consumer sees, in the order of each partition."""
        found = read_topic(self.settings.kafka.bootstrap_servers, self.topic)
        return [(m.key.decode(), None if m.value is None else json.loads(m.value)) for m in found]

    def counts(self) -> Counter[tuple[str, int | None]]:
        """Return how often each count was sent under each key; the count is None for a deleted row."""
        return Counter((key, None if row is None else row["count"]) for key, row in self.messages())

    def in_redis(self) -> Mapping[str, dict[str, Any]]:
        """Return every row by its key, without its generation, which must be the current table's."""
        with self.redis() as client:
            keys = list(client.scan_iter("lakehouse:metrics_1m:row:*"))
            found = {key: json.loads(str(client.get(key))) for key in keys}
        return {key: self._of_this_table(row) for key, row in found.items()}

    def latest(self) -> Mapping[str, dict[str, Any]]:
        with self.redis() as client:
            found = client.hgetall("lakehouse:metrics_1m:latest:latency")
        return {str(member): self._of_this_table(json.loads(row)) for member, row in found.items()}

    def _of_this_table(self, row: dict[str, Any]) -> dict[str, Any]:
        log = Path(self.path, "_delta_log", f"{0:020}.json").read_text().splitlines()
        (created,) = (json.loads(line)["metaData"]["createdTime"] for line in log if "metaData" in line)
        assert row.pop("_generation") == created
        return row

    def set_topic(self, configuration: dict[str, str]) -> None:
        with closing(KafkaAdminClient(bootstrap_servers=self.settings.kafka.bootstrap_servers)) as admin:
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, self.topic, configuration)])

    def forget_progress(self) -> None:
        """Make Kafka forget the export's position, as it does after a week without exports."""
        with closing(KafkaAdminClient(bootstrap_servers=self.settings.kafka.bootstrap_servers)) as admin:
            admin.delete_groups([f"lakehouse-export-metrics_1m-to-{self.topic}"])

    def make_anew(self) -> None:
        """Delete the gold table, and create a new one under its name."""
        shutil.rmtree(self.path)
        self.forget_logs()
        self.lake.ensure(gold.spec(METRICS_1M))

    def forget_logs(self) -> None:
        """Clear Delta's cache of logs, because files have been replaced."""
        self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]

    def flush(self) -> None:
        with self.redis() as client:
            client.flushdb()

    def checked(self) -> Check:
        """Return the audit's findings about Redis."""
        (check,) = check_store(
            self.lake, ONE_TABLE, METRICS_1M, to_redis.KIND, settings=self.settings, now=utc_now()
        )
        return check

    @contextmanager
    def configured(self, **options: str) -> Iterator[redis.Redis]:
        """Run the block with other options set in the Redis server."""
        with self.redis() as client:
            before = {name: client.config_get(name)[name] for name in options}
            try:
                for name, value in options.items():
                    client.config_set(name, value)
                yield client
            finally:
                for name, value in before.items():
                    client.config_set(name, value)

    def redis(self) -> redis.Redis:
        return redis.Redis.from_url(self.settings.redis.url.get_secret_value(), decode_responses=True)


def of_key(messages: Sequence[Message], service: str) -> list[dict[str, Any] | None]:
    """Return a service's messages; those for deleted windows are under the windows' own keys."""
    series = f"{service}:latency"
    return [value for key, value in messages if key == series or (value is None and key.startswith(series))]
