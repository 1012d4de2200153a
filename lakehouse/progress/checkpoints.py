"""Checkpoints of streaming queries: how far a query has come.

A checkpoint has a file `offsets/<n>` for every planned micro-batch, with the position up to which each source
will be read, and a file `commits/<n>` for every finished one. Beside these lies `lakehouse.json`, which Spark
ignores: it says what the checkpoint belongs to.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lakehouse.errors import CheckpointError
from lakehouse.spark import storage

KafkaPosition = dict[str, dict[int, int]]
"""By topic and partition: the offset after the last record read."""
_IDENTITY = "lakehouse.json"


def exists(spark: SparkSession, checkpoint: str) -> bool:
    """Tell whether a query has ever started with this checkpoint."""
    return storage.exists(spark, f"{checkpoint}/metadata")


def application_of(query: str, query_id: str) -> str:
    """Return the application id that a query's transactions have in Delta."""
    return f"{query}:{query_id}"


def query_id(spark: SparkSession, checkpoint: str) -> str | None:
    """Return the id that the query got at its first start; null where it has never started."""
    if not exists(spark, checkpoint):
        return None
    return str(json.loads(storage.read_text(spark, f"{checkpoint}/metadata"))["id"])


def last_planned(spark: SparkSession, checkpoint: str) -> int | None:
    """Return the number of the last planned micro-batch; null before the first."""
    return max(_numbers(spark, f"{checkpoint}/offsets"), default=None)


def read_plan(spark: SparkSession, checkpoint: str, batch: int) -> list[str]:
    """Return how far a micro-batch reads, in each source's own form; a dash for one that had nothing yet."""
    return storage.read_text(spark, f"{checkpoint}/offsets/{batch}").splitlines()[2:]


def last_done(spark: SparkSession, checkpoint: str) -> int | None:
    """Return the number of the last micro-batch noted as done, null for none."""
    return max(_numbers(spark, f"{checkpoint}/commits"), default=None)


def kafka_position(spark: SparkSession, checkpoint: str, batch: int | None) -> KafkaPosition:
    """Return for each topic and partition the offset after the last one that the micro-batch reads.

    With null, return the position before the first micro-batch; empty where that has not been chosen yet.
    """
    name = "sources/0/0" if batch is None else f"offsets/{batch}"
    if batch is None and not storage.exists(spark, f"{checkpoint}/{name}"):
        return {}
    topics = json.loads(storage.read_text(spark, f"{checkpoint}/{name}").splitlines()[-1])
    return {
        topic: {int(partition): int(offset) for partition, offset in partitions.items()}
        for topic, partitions in topics.items()
    }


@dataclass(frozen=True)
class KafkaPlan:
    """A planned micro-batch of Kafka records: when it was planned (UTC), and the most records it can have."""

    planned_at: datetime
    records: int


def read_kafka_plan(spark: SparkSession, checkpoint: str, batch: int) -> KafkaPlan:
    """Return a micro-batch's plan; a retry has the same plan."""
    _version, header, *_ = storage.read_text(spark, f"{checkpoint}/offsets/{batch}").splitlines()
    planned_ms = int(json.loads(header)["batchTimestampMs"])
    before = kafka_position(spark, checkpoint, batch - 1 if batch else None)
    records = records_between(before, kafka_position(spark, checkpoint, batch))
    return KafkaPlan(datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=planned_ms), records)


def records_between(first: KafkaPosition, end: KafkaPosition) -> int:
    """Return the most records that can lie between two positions in Kafka."""
    return sum(
        offset - first.get(topic, {}).get(partition, 0)
        for topic, offsets in end.items()
        for partition, offset in offsets.items()
    )


def forget_start(spark: SparkSession, checkpoint: str) -> None:
    """Let a query that has planned nothing yet choose again where to begin."""
    storage.delete(spark, f"{checkpoint}/sources")


def plan_nothing(
    spark: SparkSession, checkpoint: str, batch: int, like: int, position: KafkaPosition
) -> None:
    """Write a micro-batch as done that reads nothing but moves to this position in Kafka.

    It takes its settings from `like`, a planned micro-batch. An existing plan of the same number is replaced.
    """
    header = storage.read_text(spark, f"{checkpoint}/offsets/{like}").splitlines()[:-1]
    storage.write_text(spark, f"{checkpoint}/offsets/{batch}", "\n".join([*header, kafka_place(position)]))
    note_done(spark, checkpoint, batch)


def note_done(spark: SparkSession, checkpoint: str, batch: int) -> None:
    """Note that a micro-batch has been written."""
    storage.write_text(spark, f"{checkpoint}/commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}')


def begin(spark: SparkSession, checkpoint: str) -> str:
    """Return the query's id. If it has none yet, create one as Spark does at its first start."""
    found = query_id(spark, checkpoint)
    if found is None:
        found = str(uuid.uuid4())
        storage.write_text(spark, f"{checkpoint}/metadata", json.dumps({"id": found}))
    return found


def header_of(spark: SparkSession, checkpoint: str, batch: int) -> dict[str, Any]:
    """Return the header of a micro-batch's plan: its time, and some of Spark's settings."""
    header: dict[str, Any] = json.loads(
        storage.read_text(spark, f"{checkpoint}/offsets/{batch}").splitlines()[1]
    )
    return header


def new_header(spark: SparkSession, planned_at: datetime) -> dict[str, Any]:
    """Return the header that Spark would write for a micro-batch planned at a time."""
    jvm: Any = spark._jvm
    metadata = jvm.org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata
    planned_ms = int(planned_at.timestamp() * 1000)
    header: dict[str, Any] = json.loads(metadata.apply(0, planned_ms, spark._jsparkSession.conf()).json())
    # Spark takes the number of shuffle partitions from a setting that only a stream's own session has.
    header["conf"] = {
        name: spark.conf.get(name) if value is None else value for name, value in header["conf"].items()
    }
    return header


def plan(
    spark: SparkSession, checkpoint: str, batch: int, header: Mapping[str, Any], places: Sequence[str]
) -> None:
    """Plan a micro-batch as Spark does, before work on it begins: how far it reads each source.

    Raises CheckpointError if another process has planned it.
    """
    lines = ["v1", json.dumps(header, separators=(",", ":")), *places]
    try:
        storage.write_text(spark, f"{checkpoint}/offsets/{batch}", "\n".join(lines), anew=True)
    except FileExistsError as error:
        raise CheckpointError(
            f"micro-batch {batch} of {checkpoint} was planned by another process at the same moment: two of "
            f"them run the same layer. Stop one"
        ) from error


def note_start(spark: SparkSession, checkpoint: str, place: str) -> None:
    """Note where in Kafka a query begins, before it has planned anything.

    Spark's Kafka source skips the first byte, which its own notes carry for older readers.
    """
    storage.write_text(spark, f"{checkpoint}/sources/0/0", f"\0v1\n{place}")


def forget_before(spark: SparkSession, checkpoint: str, batch: int) -> None:
    """Remove plans and notes of micro-batches before this one; Spark itself keeps a hundred."""
    for directory in ("offsets", "commits"):
        for number in _numbers(spark, f"{checkpoint}/{directory}"):
            if number < batch:
                storage.delete(spark, f"{checkpoint}/{directory}/{number}")


def delta_place(table: str, version: int) -> str:
    """Return the line of a plan that says: all versions of this Delta table before this one are read."""
    return json.dumps(
        {
            "sourceVersion": 1,
            "reservoirId": table,
            "reservoirVersion": version,
            "index": -1,
            "isStartingVersion": False,
        },
        separators=(",", ":"),
    )


def kafka_place(position: Mapping[str, Mapping[int, int]]) -> str:
    """Return the line of a plan that says up to which offsets topics are read."""
    places = {topic: {str(n): offset for n, offset in offsets.items()} for topic, offsets in position.items()}
    return json.dumps(places, separators=(",", ":"))


def read_identity(spark: SparkSession, checkpoint: str) -> dict[str, Any] | None:
    """Return what the checkpoint belongs to, as `write_identity` noted it; null where it has not."""
    path = f"{checkpoint}/{_IDENTITY}"
    if not storage.exists(spark, path):
        return None
    try:
        identity: dict[str, Any] = json.loads(storage.read_text(spark, path))
        identity["tables"].keys()
    except (ValueError, LookupError, TypeError, AttributeError, Py4JJavaError) as error:
        raise CheckpointError(
            f"{path} says what its checkpoint belongs to, and cannot be read; put it back from a backup of "
            f"the checkpoint, or delete it once you know that the checkpoint and the tables belong together"
        ) from error
    return identity


def write_identity(spark: SparkSession, checkpoint: str, identity: Mapping[str, Any]) -> None:
    """Note what the checkpoint belongs to. The file is replaced atomically."""
    storage.write_text(spark, f"{checkpoint}/{_IDENTITY}", json.dumps(identity, indent=2))


def _numbers(spark: SparkSession, directory: str) -> list[int]:
    return [int(name) for name in storage.names(spark, directory) if name.isdecimal()]
