"""A rule on gold.metrics_1m, and a lake whose metrics violate it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
from deltalake import write_deltalake

from lakehouse.settings import Settings

RULES = """
[[alerts.rules]]
name = "cpu"
kind = "metric"
metric = "cpu"
statistic = "p99"
over = 90
windows = 2
"""
METRICS = pa.schema(
    [
        ("service_id", pa.string()),
        ("metric_name", pa.string()),
        ("window_start", pa.timestamp("us", tz="UTC")),
        ("window_end", pa.timestamp("us", tz="UTC")),
        ("p99", pa.float64()),
    ]
)


def fill(settings: Settings, services: dict[str, float]) -> None:
    """Fill gold with two finished minutes of each service, with these values."""
    last = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=1)
    rows = [
        {
            "service_id": service,
            "metric_name": "cpu",
            "window_start": start,
            "window_end": start + timedelta(minutes=1),
            "p99": value,
        }
        for service, value in services.items()
        for start in (last - timedelta(minutes=1), last)
    ]
    table = pa.Table.from_pylist(rows, schema=METRICS)
    write_deltalake(f"{settings.lake}/gold/metrics_1m", table, mode="overwrite")
