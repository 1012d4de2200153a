"""Search the records of topics: keys, values and headers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from lakehouse.operations.erasure.report import MOST_EXAMPLES, Book, Until
from lakehouse.operations.erasure.searching import Found, Hits, Search, Values, chunked
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.contents import contents
from lakehouse.storage.kafka.topics import properties_of

KAFKA = "kafka"
_POLICY, _RETENTION, _SEGMENT, _LAG = "cleanup.policy", "retention.ms", "segment.ms", "max.compaction.lag.ms"
_NEVER = 2**63 - 1
_LAST_MS = 253_370_764_800_000  # the beginning of the year 9999


@dataclass
class _Part:
    """The finds in a part of a partition's records: a key, a value, or a header."""

    hits: Hits = field(default_factory=Hits)
    places: list[str] = field(default_factory=list)
    newest_ms: int = -1


@dataclass(frozen=True)
class _Read:
    """A record, its parts that have bytes, and their size."""

    record: Any
    values: Sequence[tuple[str, bytes]]
    size_bytes: int

    @classmethod
    def of(cls, record: Any) -> _Read:
        values = list(_values(record))
        return cls(record, values, sum(len(value) for _, value in values))


def search_topic(access: KafkaAccess, topic: str, kind: str, search: Search, book: Book) -> None:
    """Search a topic. What cannot be read is recorded in the book."""
    with book.searching(KAFKA, topic) as amount:
        parts, properties = defaultdict[tuple[int, str], _Part](_Part), dict[str, str]()
        with book.missing(KAFKA, topic):
            records = contents(access, topic)
            if records is None:
                book.note(f"there is no topic {topic} ({kind})")
                return
            properties = properties_of(access, topic, (_POLICY, _RETENTION, _SEGMENT, _LAG))
            for chunk in chunked(map(_Read.of, records), lambda one: one.size_bytes):
                amount.items += len(chunk)
                amount.bytes += sum(one.size_bytes for one in chunk)
                _search(chunk, search, parts)
        for (partition, name), part in sorted(parts.items()):
            where = KAFKA, f"{topic}/{partition}", kind
            book.find(where, name, part.hits, _until(properties, part.newest_ms), part.places)


def _search(chunk: list[_Read], search: Search, parts: dict[tuple[int, str], _Part]) -> None:
    values = [(one.record, name, value) for one in chunk for name, value in one.values]
    found = search.in_values(Values.of([value for _, _, value in values]))
    for (at, line), is_certain in sorted(found.items()):
        record, name, _ = values[at]
        part = parts[record.partition, name]
        part.hits.add(Found({(at, line): is_certain}))
        part.places.append(f"{record.topic}/{record.partition}/{record.offset}")
        del part.places[MOST_EXAMPLES:]
        part.newest_ms = max(part.newest_ms, record.timestamp)


def _values(record: Any) -> Iterator[tuple[str, bytes]]:
    """Yield the parts of a record that have bytes. Each header's name is a part's name and also a value."""
    for name, value in (("key", record.key), ("value", record.value)):
        if value is not None:
            yield name, bytes(value)
    for header, value in record.headers:
        yield "name of a header", header.encode()
        if value is not None:
            yield f"header {header}", bytes(value)


def _until(properties: Mapping[str, str], newest_ms: int) -> Until:
    """Return until when a topic keeps a record with this timestamp."""
    policies = properties.get(_POLICY, "").split(",")
    if _POLICY not in properties:
        return Until(None, "the broker does not say how long it keeps records (DescribeConfigs is denied)")
    said = list[str]()
    if "compact" in policies:
        lag_ms = int(properties.get(_LAG, _NEVER))
        within = "" if lag_ms >= _NEVER else f" (max.compaction.lag.ms is {lag_ms:,})"
        said.append(
            "until a newer record or a tombstone with the same key, and then compaction, which never touches "
            f"the active segment (segment.ms is {int(properties.get(_SEGMENT, 0)):,}){within}"
        )
    retention_ms = int(properties.get(_RETENTION, -1))
    if "delete" not in policies:
        return Until(None, "; ".join(said))
    until_ms = newest_ms + retention_ms
    if retention_ms < 0 or newest_ms < 0 or until_ms > _LAST_MS:
        return Until(None, "; ".join([*said, f"retention.ms is {retention_ms:,}"]))
    at = datetime.fromtimestamp(until_ms / 1000, UTC)
    said.append("then the broker deletes the segment, once it is no longer the active one")
    return Until(at, "; ".join(said))
