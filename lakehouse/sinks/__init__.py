"""Where gold rows are sent: the stores of `registry`, behind the port that `port` describes.

A change is a row's newest state in a micro-batch of gold's change feed. A sink takes a micro-batch's changes
as a whole, and may be given the same micro-batch again.
"""

from lakehouse.sinks.change import Change, Span
from lakehouse.sinks.kafka import KafkaSink, progress_group, read_progress
from lakehouse.sinks.redis import (
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
from lakehouse.sinks.redis_errors import RedisTroubleError
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
