"""Bronze tables that meet their suites, and changes that each break one expectation."""

from __future__ import annotations

from tests.expectations.lakes import LIMITS, Case, Row, at, later, text
from tests.support.streams import STREAMS


def record(topic: str, offset: int = 0) -> Row:
    return {
        "topic": text(topic),
        "partition": "1",
        "offset": str(offset),
        "timestamp": at("11:59:00"),
        "timestamp_type": "0",
        "ingested_at": at("11:59:01"),
        "headers": "array(named_struct('key', 'trace', 'value', X'00'))",
    }


def _case(table: str, topic: str) -> Case:
    view = f"bronze_{table}"
    row, other = (
        record(topic),
        {**record(topic, 1), "headers": "NULL", "timestamp": "NULL", "timestamp_type": "-1"},
    )
    return Case(
        good={view: [row, other], "limits": [LIMITS]},
        bad={
            "keys are unique": {view: [row, row]},
            "required columns have values": {view: [row, {**other, "ingested_at": "NULL"}]},
            "partitions and offsets are not negative": {view: [row, {**other, "offset": "-1"}]},
            "timestamps come from the producer (0) or the broker (1), or are missing (-1)": {
                view: [row, {**other, "timestamp_type": "2"}]
            },
            "headers have keys": {
                view: [row, {**other, "headers": "array(named_struct('key', NULL, 'value', X'00'))"}]
            },
            "nothing has landed in the future": {view: [row, {**other, "ingested_at": at("12:00:01")}]},
            "the newest row is recent": later(),
        },
    )


CASES = {
    f"bronze.{source.table}": _case(source.table, source.topic)
    for stream in STREAMS
    for source in stream.sources
}
