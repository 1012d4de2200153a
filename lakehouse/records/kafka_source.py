"""Reads records from Kafka: those of committed transactions, between two offsets.

Spark's source converts a record's timestamp to microseconds. It fails for timestamps after the year 294,246,
and moves those before 1582 into another calendar. Both kinds of records are found while rows are read
(`misdated`), and then read by Kafka's own client in the driver (`read_apart`), which returns the unchanged
number.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from lakehouse.records.event_times import is_kafka_time
from lakehouse.records.validation import HEADERS
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.spark.columns import Columns
from lakehouse.spark.kafka_client import records_between

RECORDS = (
    StructType()
    .add("key", "binary")
    .add("value", "binary")
    .add("headers", HEADERS)
    .add("topic", "string")
    .add("partition", "integer")
    .add("offset", "long")
    .add("timestamp", "timestamp")
    .add("timestamp_type", "integer")
    .add("raw_timestamp", "long")
)
"""What is read. `raw_timestamp` is Kafka's number where that is no time; then `timestamp` is null."""

APART = 1_000
"""So many records are read apart at most, from one that Spark's source does not take."""

_APART_BYTES = 16 << 20
_KEY = secrets.token_bytes(16)
_FIRST_GREGORIAN_MS = -12_219_292_800_000  # 1582-10-15
_LAST_OF_SPARK_MS = (2**63 - 1) // 1000
_FOUND = StructType([*RECORDS.fields[:6], StructField("ms", LongType()), RECORDS["timestamp_type"]])
_ARROW = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "ms": pa.int64(),
        "timestamp_type": pa.int32(),
    }
)  # a frame of a list would be asked of Python in every query
_MISDATED = re.compile(r"Record at topic (\S+) partition (\d+) offset (\d+) has timestamp")
_INVALID = re.compile(
    r"Record (?:batch )?for partition (\S+)-(\d+) at offset (\d+) is invalid"
    r"|corrupt message when fetching offset (\d+) for topic-partition (\S+)-(\d+)"
)


@dataclass(frozen=True)
class Place:
    """The coordinates of a record in Kafka."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


def read_between(
    spark: SparkSession,
    access: KafkaAccess,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    *,
    singly: bool = False,
) -> DataFrame:
    """Return a topic's records, as RECORDS, from the first offset of each partition on, before the second.

    `singly`: a task unpacks one at a time, for records of which few fit in memory, and connects anew: a
    consumer that had no memory for a record fails at it ever after.
    """
    first, end = (
        json.dumps({topic: {str(partition): span[side] for partition, span in ranges.items()}})
        for side in (0, 1)
    )
    client = access.for_spark()
    options = {
        **client,
        "kafka.isolation.level": "read_committed",
        # A task reads only what is there. But its consumer prefetches and finds nothing more, and until the
        # broker has answered that, by default after 500 ms, it answers no other request of the consumer.
        "kafka.fetch.max.wait.ms": "10",
        "kafka.max.poll.records": "1" if singly else "1000",
        # Executors keep consumers by the name of their group. By default each read has a group of its own,
        # and would connect anew. Nothing is committed to it, and it needs no right.
        **({} if singly else {"kafka.group.id": _group(client)}),
        "assign": json.dumps({topic: sorted(ranges)}),
        "startingOffsets": first,
        "endingOffsets": end,
        "failOnDataLoss": "true",
        "includeHeaders": "true",
    }
    return _records().of(spark.read.format("kafka").options(**options).load())


@dataclass(frozen=True)
class ReadApart:
    """Rows up to an offset, and whether Spark's source would not have taken one of them."""

    rows: DataFrame
    reached: int
    is_misdated: bool


def read_apart(
    spark: SparkSession, access: KafkaAccess, first: Place, end: int, *, most_bytes: int = _APART_BYTES
) -> ReadApart:
    """Read a partition's records, as RECORDS, from a place on and before an offset, in the driver.

    At most APART of them and about `most_bytes`, but one at least. Raises what Kafka's client raises.
    """
    span = first.offset, min(end, first.offset + APART)
    found, reached = records_between(
        spark,
        access.for_java() | {"isolation.level": "read_committed"},
        first.topic,
        first.partition,
        span,
        most_bytes=most_bytes,
    )
    named = [dict(zip(_FOUND.names, one, strict=True)) for one in found]
    rows = spark.createDataFrame(pa.Table.from_pylist(named, _ARROW), _FOUND)
    is_misdated = any(not _FIRST_GREGORIAN_MS <= one.timestamp <= _LAST_OF_SPARK_MS for one in found)
    return ReadApart(_apart().of(rows), reached, is_misdated)


def misdated(error: BaseException) -> Place | None:
    """Return the record that Spark's source did not take because of its timestamp; null for another error."""
    found = _MISDATED.search(str(error))
    return None if found is None else Place(found[1], int(found[2]), int(found[3]))


def invalid(error: BaseException) -> Place | None:
    """Return the record that Kafka's client calls damaged, or the first of its batch; null if it does not."""
    found = _INVALID.search(str(error))
    if found is None:
        return None
    topic, partition, offset = found.group(1, 2, 3) if found[1] else found.group(5, 6, 4)
    return Place(topic, int(partition), int(offset))


def _group(client: Mapping[str, str]) -> str:
    """Return a name for what is read with these properties of a client, and their secrets.

    Spark fails, and prints both, if a consumer that was kept under a name has other properties. The name
    gives no secret away: it is different in every process.
    """
    said = json.dumps(client, sort_keys=True).encode()
    return f"lakehouse-{hmac.new(_KEY, said, 'sha256').hexdigest()[:16]}"


@cache
def _records() -> Columns:
    """Return RECORDS, of rows of Spark's source."""
    ms = F.unix_millis("timestamp")
    is_time = is_kafka_time(ms)
    place = (
        F.lit("Record at topic "),
        "topic",
        F.lit(" partition "),
        "partition",
        F.lit(" offset "),
        "offset",
    )
    moved = F.raise_error(F.concat(*place, F.lit(" has timestamp before 1582, which Spark moves")))
    own = {
        "timestamp": F.when(is_time, F.col("timestamp")),
        "timestamp_type": F.col("timestampType"),
        "raw_timestamp": F.when(ms < _FIRST_GREGORIAN_MS, moved.cast("long")).when(~is_time, ms),
    }
    return Columns({name: own.get(name, F.col(name)) for name in RECORDS.names})


@cache
def _apart() -> Columns:
    """Return RECORDS, of rows of Kafka's client."""
    ms = F.col("ms")
    own = {
        "timestamp": F.when(is_kafka_time(ms), F.timestamp_millis(ms)),
        "raw_timestamp": F.when(~is_kafka_time(ms), ms),
    }
    return Columns({name: own.get(name, F.col(name)) for name in RECORDS.names})
