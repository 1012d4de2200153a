"""Expectations for all bronze tables: unchanged Kafka records without duplicates."""

from __future__ import annotations

from great_expectations.expectations import Expectation

from lakehouse.streams.contract import COORDINATES
from lakehouse.streams.suites import fresh, no_rows, required, rows, unique


def landed() -> list[Expectation]:
    """Expect Kafka records to have valid metadata. Keys and values are not checked."""
    return [
        unique(COORDINATES),
        required(COORDINATES, (*COORDINATES, "timestamp_type", "ingested_at")),
        rows(COORDINATES, "partitions and offsets are not negative", "partition >= 0 AND offset >= 0"),
        rows(
            COORDINATES,
            "timestamps come from the producer (0) or the broker (1), or are missing (-1)",
            "timestamp_type IN (-1, 0, 1)",
        ),
        rows(COORDINATES, "headers have keys", "NOT exists(headers, header -> header.key IS NULL)"),
        no_rows(
            "nothing has landed in the future",
            "SELECT topic, partition, offset, ingested_at FROM {batch} "
            "WHERE ingested_at > (SELECT now FROM limits)",
        ),
        fresh("ingested_at", within="24h"),
    ]
