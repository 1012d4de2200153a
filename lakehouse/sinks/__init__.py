"""The stores that gold rows are exported to: listed in `registry`, behind the interface in `port`.

A change is a row's newest state in a micro-batch of gold's change feed. A sink gets all changes of a
micro-batch, and may get the same micro-batch again.
"""

from lakehouse.sinks.change import Change, Span
from lakehouse.sinks.kafka.rows import KafkaSink, progress_group, read_progress
from lakehouse.sinks.redis.errors import RedisTroubleError
from lakehouse.sinks.redis.rows import (
    Put,
    RedisSink,
    as_stored,
    filled_key,
    latest_key,
    read_latest,
    read_rows,
    row_key,
    scan_latest,
    scan_rows,
)
from lakehouse.sinks.sizes import UnsentRow

__all__ = [
    "Change",
    "KafkaSink",
    "Put",
    "RedisSink",
    "RedisTroubleError",
    "Span",
    "UnsentRow",
    "as_stored",
    "filled_key",
    "latest_key",
    "progress_group",
    "read_latest",
    "read_progress",
    "read_rows",
    "row_key",
    "scan_latest",
    "scan_rows",
]
