"""The progress of exporting a gold table, recorded as a note in the lake.

An export sends rows to a topic, in a transaction that also records the position, and then to other stores. It
writes the note last, and the next micro-batch begins at the position in the note. If the position in the
topic is ahead, a micro-batch was killed in between. The note outlives the offsets of a consumer group, which
a broker drops after a week without use. For a table without a topic, only the note records the progress. If a
store lacks rows that the topic contains, because it was unavailable or full, the note records this, and the
store is filled again. The note is a small file in the table's directory, one per topic, and is deleted with
the table.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from pyspark.sql import SparkSession

from lakehouse.storage.spark import files as storage
from lakehouse.storage.tables.specs import Position, Progress

_DIRECTORY = "_lakehouse_export"  # VACUUM skips names that begin with an underscore
_NO_TOPIC = "redis"  # the name if there is no topic; existing lakes contain notes with this name
_IS_BEHIND = "_is_behind"


def note(
    spark: SparkSession, path: str, topic: str | None, progress: Progress, *, behind: Collection[str] = ()
) -> None:
    """Record how far the table at `path` has been sent, and which sinks lack rows.

    The new note replaces the previous one.
    """
    position, lacking = progress.position, {f"{sink}{_IS_BEHIND}": True for sink in sorted(behind)}
    text = {"table": progress.table, "version": position.version, "files": position.files, **lacking}
    storage.write_text(spark, file_of(path, topic), json.dumps(text))


def noted(spark: SparkSession, path: str, topic: str | None) -> Progress | None:
    """Return how far the table has been sent, or None if nothing is recorded or the note is unreadable."""
    file = file_of(path, topic)
    return progress_in(storage.read_text(spark, file)) if storage.exists(spark, file) else None


def behind(spark: SparkSession, path: str, topic: str | None) -> frozenset[str]:
    """Return the names of the sinks that lack rows, according to the note."""
    file = file_of(path, topic)
    return behind_in(storage.read_text(spark, file)) if storage.exists(spark, file) else frozenset()


def behind_in(text: str) -> frozenset[str]:
    """Return the names of the sinks that lack rows, according to the content of a note."""
    try:
        found = json.loads(text)
    except ValueError:  # truncated, for example by a power failure
        return frozenset()
    if not isinstance(found, dict):
        return frozenset()
    return frozenset(name.removesuffix(_IS_BEHIND) for name in found if name.endswith(_IS_BEHIND))


def progress_in(text: str) -> Progress | None:
    """Return the progress in the content of a note, or None if it was truncated, as by a power failure."""
    try:
        found: dict[str, Any] = json.loads(text)
        return Progress(str(found["table"]), Position(int(found["version"]), found["files"]))
    except (ValueError, LookupError, TypeError):
        return None


def directory_of(path: str) -> str:
    """Return the directory for a table's notes."""
    return f"{path}/{_DIRECTORY}"


def file_of(path: str, topic: str | None) -> str:
    """Return the path of the note about sending a table to a topic."""
    return f"{path}/{name_of(topic)}"


def name_of(topic: str | None) -> str:
    """Return the path of the note, relative to the path of the table."""
    return f"{_DIRECTORY}/{topic or _NO_TOPIC}.json"
