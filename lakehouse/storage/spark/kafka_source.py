"""Read committed Kafka records between two offsets.

Spark's Kafka source converts a record's timestamp to microseconds. It fails for timestamps after the year
294,246, and converts timestamps before 1582 to a different calendar. Reading such a record raises an error
(`misdated`). Kafka's own client then reads the record in the driver (`read_apart`), with its timestamp
unchanged. `WholeTopic` returns all records of a topic, including records with such timestamps.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, reduce
from itertools import zip_longest
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.refusals import denied
from lakehouse.storage.spark import internals
from lakehouse.storage.spark.columns import Columns
from lakehouse.storage.spark.kafka_times import HEADERS, is_kafka_time
from lakehouse.storage.spark.offset_ranges import OffsetRange

_CLIENTS = "org.apache.kafka.clients.consumer.KafkaConsumer"
_BYTES = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
_TYPES = {"NO_TIMESTAMP_TYPE": -1, "CREATE_TIME": 0, "LOG_APPEND_TIME": 1}
_POLL_MS = 1_000
_PATIENCE_S = 30.0


class FoundRecord(NamedTuple):
    """A record as stored in Kafka. `timestamp` is in epoch ms if the producer follows Kafka's protocol."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int


def records_between(
    spark: SparkSession,
    options: Mapping[str, str],
    topic: str,
    partition: int,
    span: tuple[int, int],
    *,
    most_bytes: int,
) -> tuple[list[FoundRecord], int]:
    """Return a partition's records between two offsets (the second is exclusive), and the offset reached.

    Reading stops after about `most_bytes`, but at least one record is returned if there is one. Offsets
    without a visible record are skipped. Raises errors from Kafka's client, and TimeoutError if no record
    arrives.
    """
    config = internals.static(spark, "java.util.HashMap")()
    for name, value in {
        **options,
        "key.deserializer": _BYTES,
        "value.deserializer": _BYTES,
        "enable.auto.commit": "false",
        "auto.offset.reset": "none",
        "max.poll.records": "100",
    }.items():
        config.put(name, value)
    consumer = internals.static(spark, _CLIENTS)(config)
    try:
        place = internals.static(spark, "org.apache.kafka.common.TopicPartition")(topic, partition)
        consumer.assign(internals.static(spark, "java.util.List").of(place))
        consumer.seek(place, span[0])
        wait = internals.static(spark, "java.time.Duration").ofMillis(_POLL_MS)
        return _polled(consumer, place, wait, span[1], most_bytes)
    finally:
        with suppress(Py4JError):
            consumer.close()


def _polled(consumer: Any, place: Any, wait: Any, end: int, most_bytes: int) -> tuple[list[FoundRecord], int]:
    found, size, deadline = list[FoundRecord](), 0, time.monotonic() + _PATIENCE_S
    while (reached := int(consumer.position(place))) < end:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no record arrived within {_PATIENCE_S:g} s")
        for record in consumer.poll(wait).records(place):
            one = _found(record)
            if one.offset >= end:
                return found, end
            found.append(one)
            size += len(one.key or b"") + len(one.value or b"")
            if size >= most_bytes:
                return found, one.offset + 1
            deadline = time.monotonic() + _PATIENCE_S
    return found, min(reached, end)


def _found(record: Any) -> FoundRecord:
    headers = [(str(one.key()), one.value()) for one in record.headers().toArray()]
    return FoundRecord(
        record.key(),
        record.value(),
        headers or None,
        str(record.topic()),
        int(record.partition()),
        int(record.offset()),
        int(record.timestamp()),
        _TYPES[str(record.timestampType().name())],
    )


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
"""The schema of Kafka records. An invalid timestamp is in `raw_timestamp`, and `timestamp` is then null."""

APART = 1_000
"""From a record that Spark's source cannot read, Kafka's client reads at most this many records."""

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
)  # a frame made from a list would start Python in each query
_MISDATED = re.compile(r"Record at topic (\S+) partition (\d+) offset (\d+) has timestamp")
_INVALID = re.compile(
    r"Record (?:batch )?for partition (\S+)-(\d+) at offset (\d+) is invalid"
    r"|corrupt message when fetching offset (\d+) for topic-partition (\S+)-(\d+)"
)


@dataclass(frozen=True)
class Place:
    """A record's coordinates in Kafka."""

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
    """Return a topic's records, as RECORDS, between two offsets of each partition (the second is exclusive).

    Use `singly` for records so large that few fit in memory. A task then unpacks one record at a time, over a
    new connection, because a consumer that ran out of memory on a record keeps failing on that record.
    """
    first, end = (
        json.dumps({topic: {str(partition): span[side] for partition, span in ranges.items()}})
        for side in (0, 1)
    )
    client = access.for_spark()
    options = {
        **client,
        "kafka.isolation.level": "read_committed",
        # A task reads only existing records, but its consumer prefetches beyond them. The broker answers no
        # other request from the consumer until that fetch times out, by default after 500 ms.
        "kafka.fetch.max.wait.ms": "10",
        "kafka.max.poll.records": "1" if singly else "1000",
        # Executors cache consumers by group name. By default, each read has a new group and would therefore
        # connect again. Nothing is committed to this group, and it requires no permission.
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
    """Records read by Kafka's client, up to offset `reached` (exclusive).

    `is_misdated` is true if Spark's source cannot read at least one of these records.
    """

    rows: DataFrame
    reached: int
    is_misdated: bool


def read_apart(
    spark: SparkSession, access: KafkaAccess, first: Place, end: int, *, most_bytes: int = _APART_BYTES
) -> ReadApart:
    """Read a partition's records in the driver, from `first` up to offset `end` (exclusive), as RECORDS.

    Reads at least one record and at most APART records, and stops after about `most_bytes`. Raises errors
    from Kafka's client.
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
    """Return the record whose timestamp caused the error in Spark's source, or None for any other error."""
    found = _MISDATED.search(str(error))
    return None if found is None else Place(found[1], int(found[2]), int(found[3]))


def invalid(error: BaseException) -> Place | None:
    """Return the damaged record (or the first in its batch) that the error names; None for other errors."""
    found = _INVALID.search(str(error))
    if found is None:
        return None
    topic, partition, offset = found.group(1, 2, 3) if found[1] else found.group(5, 6, 4)
    return Place(topic, int(partition), int(offset))


def _group(client: Mapping[str, str]) -> str:
    """Return a consumer group name for reads with these client properties, which include secrets.

    If a consumer that is cached under the same name has different properties, Spark fails and prints both
    sets of properties. The name is an HMAC with this process's random key, so it reveals no secret.
    """
    said = json.dumps(client, sort_keys=True).encode()
    return f"lakehouse-{hmac.new(_KEY, said, 'sha256').hexdigest()[:16]}"


@cache
def _records() -> Columns:
    """Return columns that convert rows from Spark's source to RECORDS."""
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
    """Return columns that convert rows from Kafka's client to RECORDS."""
    ms = F.col("ms")
    own = {
        "timestamp": F.when(is_kafka_time(ms), F.timestamp_millis(ms)),
        "raw_timestamp": F.when(~is_kafka_time(ms), ms),
    }
    return Columns({name: own.get(name, F.col(name)) for name in RECORDS.names})


_T = TypeVar("_T")
_Span = tuple[int, int]


class WholeTopic:
    """A reader of all records of a topic, including records that Spark's source cannot read (see `asked`)."""

    def __init__(self, spark: SparkSession, access: KafkaAccess, topic: str) -> None:
        self._spark = spark
        self.name = topic
        self.access = access
        self._ends: Mapping[int, int] = {}
        self._apart: dict[Place, tuple[int, DataFrame]] = {}

    def asked(self, ask: Callable[[WholeTopic], _T]) -> _T:
        """Call `ask`, which reads the topic through `between`, and return its result.

        If Spark's source fails on a record, Kafka's client reads that record, and `ask` is called again.
        """
        while True:
            try:
                return ask(self)
            except Exception as error:
                no = denied(self.access, error, {"topic": f"Read topic {self.name}"})
                if no is not None:
                    raise no from error
                place = misdated(error)
                if place is None or place in self._apart:
                    raise
                self._set_apart(place)

    def between(self, ranges: Mapping[int, _Span], lost: Iterable[OffsetRange] = ()) -> DataFrame:
        """Return the records between two offsets of each partition, except those in the ranges in `lost`."""
        self._ends = {number: end for number, (_, end) in ranges.items()}
        gone = [(one.partition, (one.first, one.last + 1)) for one in lost]
        gone += [(place.partition, (place.offset, end)) for place, (end, _) in self._apart.items()]
        spans = [
            [(number, one) for one in _around(span, sorted(cut for at, cut in gone if at == number))]
            for number, span in ranges.items()
        ]
        by_turn = [dict(one for one in turn if one is not None) for turn in zip_longest(*spans)]
        frames = [read_between(self._spark, self.access, self.name, turn) for turn in by_turn or [{}]]
        return reduce(DataFrame.unionByName, [*frames, *(rows for _, rows in self._apart.values())])

    def _set_apart(self, place: Place) -> None:
        while True:
            end = self._ends[place.partition]
            found = read_apart(self._spark, self.access, place, end)
            self._apart[place] = found.reached, found.rows
            place = Place(place.topic, place.partition, found.reached)
            if not found.is_misdated or found.reached >= end:
                return


def _around(span: _Span, cuts: Iterable[_Span]) -> Iterator[_Span]:
    """Yield the parts of a span outside all `cuts` (sorted spans), or an empty span if nothing is left."""
    first, end = span
    left = False
    for begin, after in cuts:
        if first < min(begin, end):
            yield first, min(begin, end)
            left = True
        first = max(first, after)
    if first < end or not left:
        yield min(first, end), end
