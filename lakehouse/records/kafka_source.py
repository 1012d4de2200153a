"""How Spark reads records from Kafka: those of committed transactions, between two offsets."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

_GROUP = "lakehouse"


def read_between(
    spark: SparkSession,
    bootstrap_servers: str,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    *,
    singly: bool = False,
) -> DataFrame:
    """Return a topic's records from the first offset of each partition on and before the second.

    `singly`: a task unpacks one at a time, for records of which few fit in memory, and connects anew: a
    consumer that had no memory for a record fails at it ever after.
    """
    first, end = (
        json.dumps({topic: {str(partition): span[side] for partition, span in ranges.items()}})
        for side in (0, 1)
    )
    options = {
        "kafka.bootstrap.servers": bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        # A task reads only what is there. But its consumer prefetches and finds nothing more, and until the
        # broker has answered that, by default after 500 ms, it answers no other request of the consumer.
        "kafka.fetch.max.wait.ms": "10",
        "kafka.max.poll.records": "1" if singly else "1000",
        # Executors keep consumers by the name of their group. By default each read has a group of its own,
        # and would connect anew. Nothing is committed to it, and it needs no right.
        **({} if singly else {"kafka.group.id": _GROUP}),
        "assign": json.dumps({topic: sorted(ranges)}),
        "startingOffsets": first,
        "endingOffsets": end,
        "failOnDataLoss": "true",
        "includeHeaders": "true",
    }
    rows: DataFrame = spark.read.format("kafka").options(**options).load()
    return rows
