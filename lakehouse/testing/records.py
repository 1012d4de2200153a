"""Convert the short forms in which tests can write records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeAlias

from lakehouse.common.record_lines import Record
from lakehouse.streams.definition import Source, Stream

Given: TypeAlias = Record | Mapping[str, Any] | str | bytes | None
"""A record, or just its value: an object (with exact Decimals), text, bytes, or None (a tombstone)."""

Batch: TypeAlias = Sequence[Given] | Mapping[str, Sequence[Given]]
"""The records of one micro-batch. If the stream reads several topics, the records can be grouped by topic."""


def records_of(stream: Stream, batch: Batch) -> list[tuple[Source, Record]]:
    """Return a batch's records in the given order, each with its source.

    If records are grouped by topic, a record's group determines its topic. Otherwise, the topic is the one
    named in the record or, by default, the stream's only topic. Raises ValueError if the stream does not read
    the topic.
    """
    return [(_source_of(stream, topic), record) for topic, record in _named(batch)]


def moment(time: datetime | str | None) -> datetime:
    """Convert a datetime or ISO 8601 text to UTC; None means the current time.

    A time without a zone is assumed to be UTC.
    """
    if time is None:
        return datetime.now(UTC)
    found = datetime.fromisoformat(time) if isinstance(time, str) else time
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _named(batch: Batch) -> Iterator[tuple[str | None, Record]]:
    by_topic = batch if isinstance(batch, Mapping) else {None: batch}
    for topic, records in by_topic.items():
        for given in records:
            record = given if isinstance(given, Record) else Record(_value(given))
            yield (record.topic if topic is None else topic), record


def _source_of(stream: Stream, topic: str | None) -> Source:
    found = [source for source in stream.sources if topic in (None, source.topic)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(source.topic for source in stream.sources)
    said = "no topic is named" if topic is None else f"{topic} is not one of its topics"
    raise ValueError(f"{stream.name}: {said}; known: {known}")


def _value(given: Mapping[str, Any] | str | bytes | None) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    return given.encode() if isinstance(given, str) else _json(given).encode()


def _json(value: Any) -> str:
    """Return a value as JSON. Decimals keep all their digits, and datetimes become ISO 8601 strings."""
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{json.dumps(name)}:{_json(one)}' for name, one in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_json, value))}]"
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, datetime):
        return json.dumps(moment(value).isoformat())
    return json.dumps(value, ensure_ascii=False)
