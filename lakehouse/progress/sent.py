"""How far the export of a gold table has come, noted in the lake.

An export's rows go to Kafka in a transaction that notes the position as well, and then to Redis. This note is
written after both: the next micro-batch begins there. Where Kafka's is ahead of it, a micro-batch was killed
between the two. The note is also what is left when Kafka has dropped the progress of a consumer group that
was idle for a week, and all there is of a table without a topic. If Redis was away or full and did not get
what Kafka has, the note says so, and Redis is filled again. It is a small file in the table's directory, one
per topic, which is gone with the table.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession

from lakehouse.spark import storage
from lakehouse.tables.specs import Position, Progress

_DIRECTORY = "_lakehouse_export"  # VACUUM skips what begins with an underscore
_NO_TOPIC = "redis"
_BEHIND = "redis_is_behind"


def note(
    spark: SparkSession, path: str, topic: str | None, progress: Progress, *, is_redis_behind: bool = False
) -> None:
    """Note how far the table at the path has been sent, and whether Redis lacks rows of that.

    Replaces the note before.
    """
    text = {"table": progress.table, "version": progress.position.version, "files": progress.position.files}
    text |= {_BEHIND: True} if is_redis_behind else {}
    storage.write_text(spark, file_of(path, topic), json.dumps(text))


def noted(spark: SparkSession, path: str, topic: str | None) -> Progress | None:
    """Return how far it has been sent; null for nothing, or where the note cannot be read."""
    file = file_of(path, topic)
    return progress_in(storage.read_text(spark, file)) if storage.exists(spark, file) else None


def is_redis_behind(spark: SparkSession, path: str, topic: str | None) -> bool:
    """Tell whether the note says that Redis lacks rows."""
    file = file_of(path, topic)
    return storage.exists(spark, file) and f'"{_BEHIND}": true' in storage.read_text(spark, file)


def progress_in(text: str) -> Progress | None:
    """Return what a note says, null for one that was cut off, as by a power failure."""
    try:
        found: dict[str, Any] = json.loads(text)
        return Progress(str(found["table"]), Position(int(found["version"]), found["files"]))
    except (ValueError, LookupError, TypeError):
        return None


def directory_of(path: str) -> str:
    """Return where the notes for a table are."""
    return f"{path}/{_DIRECTORY}"


def file_of(path: str, topic: str | None) -> str:
    """Return the path of the note for a table and a topic."""
    return f"{path}/{name_of(topic)}"


def name_of(topic: str | None) -> str:
    """Return the note's path below the table's."""
    return f"{_DIRECTORY}/{topic or _NO_TOPIC}.json"
