"""Gold rows that are written to Delta tables and Redis without Spark, in the declared schemas and layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import redis
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pydantic import SecretStr
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from starlette.testclient import TestClient

from lakehouse.common.events import Event
from lakehouse.common.paths import location
from lakehouse.serving.reading.lookups import group_of
from lakehouse.settings import Settings
from lakehouse.sinks.change import Change
from lakehouse.sinks.redis.rows import RedisSink
from lakehouse.storage.tables.specs import EPOCH, TableSpec, path_of
from lakehouse.streams.definition import MergedTable

MINUTE_MS = 60_000
NOON_MS = 1_777_896_000_000
Row = Mapping[str, Any]
PATIENCE_S = 60.0  # Redis must not seem unavailable on a busy machine
NOWHERE = SecretStr("redis://127.0.0.1:1/0")
MakeClient = Callable[..., TestClient]


@dataclass(frozen=True)
class ServedLake:
    """A lake, and the Redis to which its rows are exported."""

    settings: Settings

    @property
    def root(self) -> Path:
        return Path(self.settings.lake)

    def write(self, table: MergedTable, rows: Sequence[Row], *, mode: Any = "append") -> DeltaTable:
        """Commit rows to a gold table; columns that are not given are null."""
        return self.write_to("gold", table.name, table.schema, rows, mode=mode)

    def write_spec(
        self, spec: TableSpec, rows: Sequence[Row], *, noted: Mapping[str, int] | None = None
    ) -> DeltaTable:
        """Commit rows to another table, with a query's positions."""
        return self.write_to(spec.layer, spec.name, spec.schema, rows, noted=noted)

    def write_to(
        self,
        layer: str,
        name: str,
        schema: StructType,
        rows: Sequence[Row],
        *,
        mode: Any = "append",
        noted: Mapping[str, int] | None = None,
    ) -> DeltaTable:
        path = location(path_of(self.settings.lake, layer, name))
        arrow = to_arrow_schema(schema, timezone="UTC")
        whole = [{field.name: row.get(field.name) for field in arrow} for row in rows]
        moves = [Transaction(application, version) for application, version in (noted or {}).items()]
        properties = CommitProperties(app_transactions=moves or None)
        data = pa.Table.from_pylist(whole, schema=arrow)
        write_deltalake(path, data, mode=mode, commit_properties=properties)
        return DeltaTable(path)

    def generation(self, table: MergedTable) -> int:
        path = location(path_of(self.settings.lake, "gold", table.name))
        return int(DeltaTable(path).metadata().created_time or 0)

    def export(
        self, table: MergedTable, rows: Sequence[Row], *, version: int = 1, generation: int = 1
    ) -> None:
        """Write rows to Redis like the export, and mark Redis as complete."""
        view = table.export.redis
        changes = []
        for given in rows:
            row = dict.fromkeys(table.schema.names) | in_micros(given)
            member, key = view.member.of(row), view.row_key.of(row)
            assert member is not None
            assert key is not None
            message, order = table.export.value.text(row), view.order.of(row)
            changes.append(Change("", message, version, key, group_of(table, row), member, order))
        sink = RedisSink(
            self.settings.redis.url.get_secret_value(),
            table.name,
            self.settings.redis.ttl_s,
            generation=generation,
        )
        with sink.filling():
            sink.write(changes)
        sink.close()

    def redis(self) -> redis.Redis:
        return redis.Redis.from_url(self.settings.redis.url.get_secret_value())


def in_micros(row: Row) -> dict[str, Any]:
    """Return a row with its times as microseconds since the epoch."""
    return {
        name: round((value - EPOCH).total_seconds() * 1_000_000) if isinstance(value, datetime) else value
        for name, value in row.items()
    }


def at(millis: int) -> datetime:
    return datetime.fromtimestamp(millis / 1000, UTC)


def minute(
    service: str = "auth",
    metric: str = "cpu",
    *,
    start_ms: int = NOON_MS,
    avg: float = 2.5,
    is_final: bool = True,
) -> Row:
    """Return a row of gold.metrics_1m with two values."""
    return {
        "service_id": service,
        "metric_name": metric,
        "window_start": at(start_ms),
        "window_end": at(start_ms + MINUTE_MS),
        "count": 2,
        "sum": 2 * avg,
        "min": avg - 1.5,
        "max": avg + 1.5,
        "avg": avg,
        "variance": 4.5,
        "stddev": 4.5**0.5,
        "p50": avg - 1.5,
        "p90": avg + 1.5,
        "p95": avg + 1.5,
        "p99": avg + 1.5,
        "last_event_time": at(start_ms + 30_000),
        "is_final": is_final,
        "m2": 4.5,
        "sketch": b"",
    }


def product(name: str, total: str | None, count: int = 1) -> Row:
    """Return a row of gold.product_sales."""
    exact = None if total is None else Decimal(total)
    return {"product": name, "total": exact, "count": count, "last_event_time": at(NOON_MS)}


def call(user1: str, user2: str, start_ms: int = NOON_MS, **values: Any) -> Row:
    """Return a row of gold.call_records, which is closed by default."""
    row = {"user1": user1, "user2": user2, "ts": at(start_ms), "last_event_time": at(start_ms + 1000)}
    return row | {"status": "closed", "was_closed": True} | values


def transactions(user: str, start_ms: int, amount: str, count: int = 1) -> Row:
    """Return a row of gold.user_transactions_5m."""
    times = {"window_start": at(start_ms), "window_end": at(start_ms + 5 * MINUTE_MS)}
    return {"user_id": user, **times, "total_amount": Decimal(amount), "count": count}


def event(second: int, kind: str, message: str, **values: Any) -> Event:
    """Return an event of this second after NOON_MS; `values` replace the other fields."""
    said: dict[str, Any] = {"stream": None, "actor": "lakehouse run", "pid": 7, "details": None}
    return Event(
        id=f"id-{second}",
        at=at(NOON_MS + second * 1000),
        kind=kind,
        layer=None,
        table=None,
        host="here",
        code_version="0.1.0",
        message=message,
        **{**said, **values},
    )


def letter(number: int, *rules: str, value: bytes | None = b"{}", **values: Any) -> Row:
    """Return a dead letter with the given broken rules; `values` override its columns."""
    return {
        "id": f"{number:064x}",
        "stream": "metrics",
        "stage": "silver",
        "topic": "metrics-events",
        "partition": 0,
        "offset": number,
        "kafka_timestamp": at(NOON_MS),
        "key": b"\xff",
        "value": value,
        "headers": [{"key": "h", "value": b"v"}, {"key": "n", "value": None}],
        "reasons": [{"rule": rule, "column": None, "message": f"it is {rule}"} for rule in rules],
        "status": "open",
        "attempts": 1,
        "first_seen": at(NOON_MS + number * 1000),
        "last_attempt": at(NOON_MS + number * 1000),
        "job": "silver.metrics",
        "batch": 0,
        "code_version": "0.1.0",
    } | values
