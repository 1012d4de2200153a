"""How far the export of a gold table to a topic has come, noted in the lake as well as in Kafka.

Kafka drops the progress of a consumer group that has been idle for a week. The note is a small file in the
table's directory, one per topic. It is written after Kafka has committed, so it may be one micro-batch
behind.
"""

from __future__ import annotations

import json

from pyspark.sql import SparkSession

from lakehouse.spark import storage
from lakehouse.tables import Transaction

_DIRECTORY = "_lakehouse_export"  # VACUUM skips what begins with an underscore


def note(spark: SparkSession, path: str, topic: str, sent: Transaction) -> None:
    """Note that the rows of a micro-batch have been sent from the table at the path to the topic."""
    text = json.dumps({"application": sent.application, "batch": sent.version})
    storage.write_text(spark, file_of(path, topic), text)


def noted(spark: SparkSession, path: str, topic: str) -> Transaction | None:
    """Return the last micro-batch that is noted; null for none."""
    if not storage.exists(spark, file_of(path, topic)):
        return None
    found = json.loads(storage.read_text(spark, file_of(path, topic)))
    return Transaction(str(found["application"]), int(found["batch"]))


def file_of(path: str, topic: str) -> str:
    """Return the path of the note for a table and a topic."""
    return f"{path}/{_DIRECTORY}/{topic}.json"
