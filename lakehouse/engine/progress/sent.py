"""The progress of exporting a gold table, recorded as a note in the lake.

An export sends rows to a topic, in a transaction that also records the position, and then to other stores. It
writes the note last, and the next micro-batch begins at the position in the note. If the position in the
topic is ahead, a micro-batch was killed in between. The note outlives the offsets of a consumer group, which
a broker drops after a week without use. For a table without a topic, only the note records the progress. If a
store lacks rows, the note says why and since when, and the store is filled again. The note is a small file in
the table's directory, one per topic, and is deleted with the table.

    {"table": "3f…", "version": 12, "files": null, "at": "2026-11-22T09:00:00+00:00",
     "redis_is_behind": {"word": "away", "reason": "Redis is unreachable: …", "since": "2026-11-22T08:47:…"}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession

from lakehouse.common.errors import ServiceError, StoreWord
from lakehouse.storage.spark import files as storage
from lakehouse.storage.tables.specs import Position, Progress

_DIRECTORY = "_lakehouse_export"  # VACUUM skips names that begin with an underscore
_NO_TOPIC = "redis"  # the name if there is no topic; existing lakes contain notes with this name
_IS_BEHIND = "_is_behind"
_MOST_CHARACTERS = 1_000  # of a reason


@dataclass(frozen=True)
class Lacking:
    """Why a store lacks rows: in one word, in a sentence, and since when (UTC; None if unknown)."""

    word: StoreWord
    reason: str
    since: datetime | None

    @classmethod
    def of(cls, error: ServiceError, known: Lacking | None, now: datetime) -> Lacking:
        """Return what an error at `now` means for a store of which `known` was known before."""
        is_new = known is None or known.word is not error.word
        return cls(error.word, str(error)[:_MOST_CHARACTERS], now if known is None or is_new else known.since)


def note(
    spark: SparkSession,
    path: str,
    topic: str | None,
    progress: Progress,
    *,
    at: datetime | None = None,
    lacking: Mapping[str, Lacking] | None = None,
) -> None:
    """Record how far the table at `path` has been sent, when (UTC), and why which stores lack rows.

    The new note replaces the previous one.
    """
    when = {} if at is None else {"at": at.isoformat()}
    text = json.dumps({**_said(progress), **when, **_told(lacking or {})})
    storage.write_text(spark, file_of(path, topic), text)


def note_lacking(
    spark: SparkSession,
    path: str,
    topic: str | None,
    lacking: Mapping[str, Lacking],
    progress: Progress | None = None,
) -> None:
    """Record why which stores lack rows. The rest of the note changes only if there is progress to record."""
    known = _object(_text(spark, path, topic))
    kept = {name: value for name, value in known.items() if not name.endswith(_IS_BEHIND)}
    said = {} if progress is None else _said(progress)
    storage.write_text(spark, file_of(path, topic), json.dumps({**kept, **said, **_told(lacking)}))


def _said(progress: Progress) -> dict[str, Any]:
    position = progress.position
    return {"table": progress.table, "version": position.version, "files": position.files}


def _told(lacking: Mapping[str, Lacking]) -> dict[str, Any]:
    return {
        f"{store}{_IS_BEHIND}": {
            "word": one.word,
            "reason": one.reason,
            "since": None if one.since is None else one.since.isoformat(),
        }
        for store, one in sorted(lacking.items())
    }


def noted(spark: SparkSession, path: str, topic: str | None) -> Progress | None:
    """Return how far the table has been sent, or None if nothing is recorded or the note is unreadable."""
    return progress_in(_text(spark, path, topic))


def lacking(spark: SparkSession, path: str, topic: str | None) -> dict[str, Lacking]:
    """Return why which stores lack rows, according to the note."""
    return lacking_in(_text(spark, path, topic))


def lacking_in(text: str) -> dict[str, Lacking]:
    """Return why which stores lack rows, according to the content of a note."""
    entries = {name: value for name, value in _object(text).items() if name.endswith(_IS_BEHIND)}
    return {name.removesuffix(_IS_BEHIND): _lacking(value) for name, value in entries.items()}


def at_in(text: str) -> datetime | None:
    """Return the time of the last micro-batch (UTC), or None if the content of a note does not say it."""
    return _moment(_object(text).get("at"))


def _text(spark: SparkSession, path: str, topic: str | None) -> str:
    """Return the content of the note, which is empty if there is none."""
    file = file_of(path, topic)
    return storage.read_text(spark, file) if storage.exists(spark, file) else ""


def _lacking(value: object) -> Lacking:
    try:
        said: Mapping[str, Any] = value if isinstance(value, dict) else {}
        return Lacking(StoreWord(said["word"]), str(said["reason"]), _moment(said["since"]))
    except (LookupError, ValueError):  # an earlier version noted only that the store lacks rows
        return Lacking(StoreWord.BEHIND, "it was unavailable or full", None)


def _moment(value: object) -> datetime | None:
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:  # truncated, for example by a power failure
        return {}
    return found if isinstance(found, dict) else {}


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
