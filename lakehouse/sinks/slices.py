"""A large micro-batch's rows, sent a slice at a time.

The broker aborts a transaction that is open for too long. With all rows of a micro-batch in one, it takes
longer the more rows there are and the busier the machine is; it could be aborted in every retry, for ever. So
a large micro-batch is sent in slices of bounded size, each a transaction with its progress; then Redis gets
the slice. The rows are never all in memory.

A retry skips the slices that were done. For that its rows have to come in the same order. They do: the
micro-batch's plan in the checkpoint says what it reads of the change feed, and its rows are ordered by
version and keys. The micro-batch's own progress is committed after all slices, as for a small one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from kafka.structs import OffsetAndMetadata

from lakehouse.sinks.change import Change
from lakehouse.sinks.kafka import Exporter, progress_group, read_group
from lakehouse.sinks.redis import Put, RedisSink
from lakehouse.sinks.sizes import TooLarge, weigh
from lakehouse.sinks.stopwatch import Stopwatch
from lakehouse.tables import Transaction
from lakehouse.topics import Limits

SLICED_FROM_ROWS = 50_000
SLICE_ROWS = 20_000
_SLICE_CHARACTERS = 32 << 20


@dataclass(frozen=True)
class Sent:
    """What became of rows: their number, and those sent to Kafka, put in Redis, or too large."""

    rows: int = 0
    sent: int = 0
    put: Put = field(default_factory=Put)
    refused: tuple[TooLarge, ...] = ()
    kafka_s: float = 0.0
    redis_s: float = 0.0


@dataclass(frozen=True)
class Slice:
    """Rows that are done with Kafka: how many were sent just now, and which the topic refuses."""

    changes: list[Change]
    sent: int = 0
    refused: tuple[TooLarge, ...] = ()


@dataclass(frozen=True)
class _Progress:
    """How many rows are done, including refused ones, and the smallest limit applied to them."""

    rows: int
    record_bytes: int

    def left(self, done: int) -> int:
        """Return how many rows may come next, so that a slice never mixes rows that are done with others."""
        return self.rows - done if done < self.rows else sys.maxsize


class SlicedSink(Exporter):
    """Writes the rows of a micro-batch to a topic exactly once, at most `slice_rows` in a transaction.

    Progress is the number of rows that are done, as the offset of the group
    `lakehouse-export-<table>-to-<topic>-slices`, with the micro-batch they belong to as its metadata. A retry
    of the micro-batch skips that many rows, so they have to come in the same order. Refused rows stay the
    same, too: rows that are done are judged by the limit that applied then.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        table: str,
        limits: Limits,
        *,
        slice_rows: int,
        transaction_timeout_s: int,
    ) -> None:
        group = f"{progress_group(table, topic)}-slices"
        super().__init__(bootstrap_servers, topic, table, group, transaction_timeout_s)
        self._limits = limits
        self._slice_rows = slice_rows

    def send(self, changes: Iterable[Change], transaction: Transaction) -> Iterator[Slice]:
        """Send the changes in order and yield them, slice by slice, each after its commit.

        Raises ServiceError if the broker refuses or another exporter has taken over.
        """
        remaining = iter(changes)
        first = next(remaining, None)
        if first is None:  # nothing to connect for
            return
        with self._reported():
            producer = self._start(self._limits)
            progress = self._progress_of(transaction)
        remaining, done = chain([first], remaining), 0
        limit = min(self._limits.record_bytes, progress.record_bytes)
        noted = json.dumps(
            {"application": transaction.application, "batch": transaction.version, "record_bytes": limit}
        )
        while part := next_slice(remaining, min(self._slice_rows, progress.left(done))):
            weighed, is_done = weigh(part, limit), done < progress.rows
            done += len(part)
            if not is_done:
                with self._reported():
                    self._commit(producer, weighed.fitting, OffsetAndMetadata(done, noted, -1))
            yield Slice(part, 0 if is_done else len(weighed.fitting), weighed.refused)

    def _progress_of(self, transaction: Transaction) -> _Progress:
        """Return how far the sink has come in a micro-batch."""
        nothing, everything = _Progress(0, sys.maxsize), _Progress(sys.maxsize, sys.maxsize)
        committed = read_group(self._bootstrap_servers, self._group, self.topic)
        if committed is None:
            return nothing
        found = json.loads(str(committed.metadata))
        if found["application"] != transaction.application or found["batch"] < transaction.version:
            return nothing
        if found["batch"] > transaction.version:
            return everything
        return _Progress(int(committed.offset), int(found["record_bytes"]))


def next_slice(remaining: Iterator[Change], rows: int) -> list[Change]:
    """Take the next rows, at most this many, and fewer if they are long."""
    part, characters = list[Change](), 0
    for change in remaining:
        part.append(change)
        characters += len(change.key) + len(change.value or "")
        if len(part) == rows or characters >= _SLICE_CHARACTERS:
            break
    return part


def send_in_slices(
    changes: Iterator[Change],
    kafka: SlicedSink | None,
    redis: RedisSink,
    transaction: Transaction,
    *,
    slice_rows: int,
) -> Sent:
    """Send the changes in order, each slice to Kafka (null: to Redis only) and then to Redis.

    Raises ServiceError if a slice failed; earlier ones have been sent, which a second call detects.
    """
    rows, sent, refused = 0, 0, list[TooLarge]()
    reading, sending, all_ = Stopwatch(), Stopwatch(), Stopwatch()
    changes = reading.over(changes)

    def gone(slices: Iterable[Slice]) -> Iterator[Change]:
        """Yield the rows that are done with Kafka; those of a slice once it is."""
        nonlocal rows, sent
        for one in slices:
            rows += len(one.changes)
            sent += one.sent
            refused.extend(one.refused)
            yield from one.changes

    if kafka is None:
        slices: Iterator[Slice] = map(Slice, iter(lambda: next_slice(changes, slice_rows), []))
    else:
        slices = kafka.send(changes, transaction)
    with all_.running():
        put = redis.write(gone(sending.over(slices)))
    # Rows are read while others are sent, and sent while others are put.
    kafka_s = 0.0 if kafka is None else sending.seconds - reading.seconds
    return Sent(rows, sent, put, tuple(refused), kafka_s, all_.seconds - sending.seconds)
