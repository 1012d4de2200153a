"""Kafka's Java client in the driver, for the few records that Spark's source cannot read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from lakehouse.storage.spark import internals

_CLIENTS = "org.apache.kafka.clients.consumer.KafkaConsumer"
_BYTES = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
_TYPES = {"NO_TIMESTAMP_TYPE": -1, "CREATE_TIME": 0, "LOG_APPEND_TIME": 1}
_POLL_MS = 1_000
_PATIENCE_S = 30.0


class FoundRecord(NamedTuple):
    """A record as stored in Kafka; `timestamp` is in ms if the producer follows the protocol."""

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
    """Return a partition's records from the first offset to before the second, and the offset reached.

    It stops after about `most_bytes`, but not before one record. Offsets without a visible record are
    skipped. Raises the errors of Kafka's client, and TimeoutError if no record arrives.
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
