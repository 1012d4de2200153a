"""Send dead letters to a topic, exactly once for read-committed consumers, in a format that Kafka tools show.

A message contains the original record's key, value and headers. It also has the headers of a Kafka Streams
dead letter (KIP-1034), so consoles that support these headers can show it. Additional headers contain the
dead letter's id, stream, status and reasons. A replayed or discarded dead letter is sent again with its new
status.

A mirror or a person could send a message back to the stream's topic, so that it becomes a dead letter again.
In this case, the new headers replace those of the earlier dead letter, and one header counts how often this
has happened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.sinks.change import Span
from lakehouse.sinks.kafka.rows import TRANSACTION_TIMEOUT_S, Exporter, progress_group, read_progress
from lakehouse.storage.kafka.topics import Limits, limits_of
from lakehouse.storage.kafka.transactions import Record, Transactions, reported
from lakehouse.storage.tables import Progress

_STREAMS = "__streams.errors."
_OURS = "lakehouse.letter."
_ROUND = f"{_OURS}round"
MOST_ROUNDS = 3
"""How many times a record can return from a dead-letter topic and still be sent there again."""
_OVERHEAD_BYTES = 256  # upper bound for a record and its batch without key, value and headers
_A_HEADER_BYTES = 12

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Letter:
    """A dead letter to send: the original record, its Kafka coordinates, and the dead letter's metadata."""

    id: str
    stream: str
    status: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    reasons: Sequence[Mapping[str, str | None]]

    @property
    def rounds(self) -> int:
        """How many times the record has already been sent as a dead letter."""
        said = dict(self.headers)
        if f"{_OURS}id" not in said:
            return 0
        count = said.get(_ROUND) or b"0"
        return 1 + (int(count) if re.fullmatch(rb"[0-9]{1,9}", count) else 0)

    @property
    def own_headers(self) -> Headers:
        """The record's headers, without those that were added when it was sent as a dead letter earlier."""
        if not self.rounds:
            return self.headers
        return [(name, value) for name, value in self.headers if not name.startswith((_STREAMS, _OURS))]


class LetterSink(Exporter):
    """A sink for dead letters in a topic. Each micro-batch and its progress form one Kafka transaction."""

    def __init__(self, access: KafkaAccess, topic: str, stream: str) -> None:
        table = f"dead_letters.{stream}"
        super().__init__(access, topic, table, progress_group(table, topic), TRANSACTION_TIMEOUT_S)
        self._stream = stream
        self._limits = Limits()
        self._sent_as: str | None = None

    def sent(self) -> Progress | None:
        """Return the position up to which dead letters were sent, or None. Raises ServiceError on failure."""
        found = read_progress(self._access, self._group, self.topic, "read_uncommitted")
        self._sent_as = None if found is None else found.table
        return found

    def write(self, letters: Iterable[Letter], span: Span) -> int:
        """Send dead letters in order, and return how many were sent (0 if all of them had been sent before).

        If there are no dead letters, the position is stored only if it replaces another table's position.
        Raises ServiceError if the broker refuses the dead letters, or if another exporter of the same
        stream's dead letters has taken over.
        """
        remaining = iter(letters)
        first = list(islice(remaining, 1))
        if not first and self._sent_as in {None, span.table}:
            return 0
        with reported(
            f"export of dead letters to topic {self.topic}",
            self.close,
            f"export of {self._stream}'s dead letters to topic {self.topic} was taken over by another export",
        ):
            producer = self._connected()
            before = read_progress(self._access, self._group, self.topic)
            if (
                before is not None
                and before.table == span.table
                and not before.position.is_before(span.after)
            ):
                return 0
            count = 0

            def records() -> Iterator[Record]:
                nonlocal count
                for letter in chain(first, remaining):
                    count += 1
                    yield record_of(letter, self.topic, self._limits.record_bytes)

            producer.commit(records(), (self.topic, span.reached))
            self._sent_as = span.table
            return count

    def _connected(self) -> Transactions:
        if self._producer is not None:
            return self._producer
        self._limits = limits_of(self._access, self.topic)
        return self._start(self._limits)


def record_of(letter: Letter, topic: str, limit_bytes: int) -> Record:
    """Return the message for a dead letter, without some parts if it would be too large for the topic.

    The value is omitted first. If that is not enough, the key, the record's headers and the reasons are
    omitted too. The header `lakehouse.letter.left_out` lists the omitted parts.
    """
    own, known = letter.own_headers, headers_of(letter)
    if _size(letter.key, letter.value, (*own, *known)) <= limit_bytes:
        return Record(topic, letter.key, letter.value, headers=(*own, *known))
    value_bytes = len(letter.value or b"")
    left_out = (f"{_OURS}left_out", f"a value of {value_bytes} bytes".encode())
    if _size(letter.key, None, (*own, *known, left_out)) <= limit_bytes:
        return Record(topic, letter.key, None, headers=(*own, *known, left_out))
    left_out = (f"{_OURS}left_out", f"key, headers, and a value of {value_bytes} bytes".encode())
    short = [(name, value) for name, value in known if name != f"{_OURS}reasons"]
    return Record(topic, None, None, headers=(*short, left_out))


def headers_of(letter: Letter) -> list[tuple[str, bytes | None]]:
    """Return the headers (all text) that are added to the record's own headers.

    `exception` and `message` contain the first reason; `reasons` contains all reasons as JSON.
    """
    first: Mapping[str, str | None] = letter.reasons[0] if letter.reasons else {}
    said = {
        f"{_STREAMS}exception": first.get("rule") or "unknown",
        f"{_STREAMS}message": first.get("message") or "",
        f"{_STREAMS}topic": letter.topic,
        f"{_STREAMS}partition": str(letter.partition),
        f"{_STREAMS}offset": str(letter.offset),
        f"{_OURS}id": letter.id,
        f"{_OURS}stream": letter.stream,
        f"{_OURS}status": letter.status,
        f"{_OURS}reasons": json.dumps([dict(one) for one in letter.reasons], ensure_ascii=False),
    }
    if letter.rounds:
        said[_ROUND] = str(letter.rounds)
    return [(name, text.encode()) for name, text in said.items()]


def _size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    of_headers = sum(len(name.encode()) + len(one or b"") + _A_HEADER_BYTES for name, one in headers)
    return len(key or b"") + len(value or b"") + of_headers + _OVERHEAD_BYTES
