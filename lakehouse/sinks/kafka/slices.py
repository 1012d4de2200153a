"""Send a large micro-batch's rows in slices.

The broker aborts a transaction that stays open too long, so a single transaction for a large micro-batch
could time out on every retry. The micro-batch is therefore sent in slices of bounded size, and its rows are
never all in memory at once. Each slice's transaction includes the progress. Once a slice is committed, it is
written to the other stores.

A retry skips committed slices, so it must send the rows in the same order. The order is stable because the
slices' progress records the micro-batch's span of the change feed, and rows are ordered by version and keys.
The micro-batch's own progress is committed after the last slice.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from lakehouse.common.errors import PositionError
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.sinks.change import Change, Span, next_chunk
from lakehouse.sinks.kafka.rows import Exporter, progress_group, read_group, weigh
from lakehouse.sinks.port import Slice
from lakehouse.storage.kafka.topics import Limits
from lakehouse.storage.kafka.transactions import Reached
from lakehouse.storage.tables import Position

SLICE_ROWS = 20_000


@dataclass(frozen=True)
class _Progress:
    """How many rows were processed, including refused rows, and the smallest size limit applied to them."""

    rows: int
    record_bytes: int

    def left(self, done: int) -> int:
        """Return the next slice's maximum number of rows. A slice never mixes processed and new rows."""
        return self.rows - done if done < self.rows else sys.maxsize


class SlicedSink(Exporter):
    """An exporter that writes rows to a topic exactly once, with at most `slice_rows` rows per transaction.

    The progress is the number of processed rows. It is stored as the offset of the group
    `lakehouse-export-<table>-to-<topic>-slices`, whose metadata contains the micro-batch's span. A retry
    skips this number of rows, so it must receive the rows in the same order. The retry applies the earlier
    attempt's size limit to the skipped rows, so the same rows are refused. With `begins_anew`, no rows are
    skipped, because the rows differ.
    """

    def __init__(
        self,
        access: KafkaAccess,
        topic: str,
        table: str,
        limits: Limits,
        *,
        slice_rows: int,
        transaction_timeout_s: int,
        begins_anew: bool = False,
    ) -> None:
        group = slices_group(table, topic)
        super().__init__(access, topic, table, group, transaction_timeout_s)
        self._limits = limits
        self._slice_rows = slice_rows
        self._begins_anew = begins_anew

    def send(self, changes: Iterable[Change], span: Span) -> Iterator[Slice]:
        """Send the changes in order, and yield each slice after its commit.

        Raises ServiceError if the broker refuses the changes or another exporter has taken over, and
        PositionError if another micro-batch has been sent only in part.
        """
        remaining = iter(changes)
        first = next(remaining, None)
        if first is None:  # no rows, so no connection is needed
            return
        with self._reported():
            producer = self._start(self._limits)
            progress = self._progress_of(span)
        remaining, done = chain([first], remaining), 0
        limit = min(self._limits.record_bytes, progress.record_bytes)
        noted = json.dumps({"span": _as_json(span), "record_bytes": limit})
        while part := next_chunk(remaining, min(self._slice_rows, progress.left(done))):
            weighed, is_done = weigh(part, limit), done < progress.rows
            done += len(part)
            if not is_done:
                with self._reported():
                    self._commit(producer, weighed.fitting, Reached(done, noted))
            yield Slice(part, 0 if is_done else len(weighed.fitting), weighed.refused)

    def _progress_of(self, span: Span) -> _Progress:
        """Return the progress that an earlier attempt made in this micro-batch; 0 rows if there was none."""
        committed = read_group(self._access, self._group, self.topic)
        if committed is None or self._begins_anew:
            return _Progress(0, sys.maxsize)
        said = json.loads(committed.note)
        found = _from_json(said["span"])
        if found == span:
            return _Progress(committed.offset, int(said["record_bytes"]))
        if found.table == span.table and span.before.is_before(found.after):
            # The slices of another micro-batch were committed after this micro-batch was planned.
            raise PositionError(
                f"topic {self.topic} has slices of {self._table} from version {found.before} to "
                f"{found.after}, but this export's micro-batch is from {span.before} to {span.after}. The "
                "rest of those slices must be sent first"
            )
        return _Progress(0, sys.maxsize)


def slices_group(table: str, topic: str) -> str:
    """Return the consumer group that stores the slice progress of a table's export to a topic."""
    return f"{progress_group(table, topic)}-slices"


def last_sliced(access: KafkaAccess, table: str, topic: str) -> Span | None:
    """Return the span of the last micro-batch sent in slices, or None if there was none.

    Raises ServiceError if the broker does not answer.
    """
    committed = read_group(access, slices_group(table, topic), topic, "read_uncommitted")
    return None if committed is None else _from_json(json.loads(committed.note)["span"])


def _as_json(span: Span) -> dict[str, Any]:
    ends = ([one.version, one.files] for one in (span.before, span.after))
    return {"table": span.table, **dict(zip(("before", "after"), ends, strict=True))}


def _from_json(said: Mapping[str, Any]) -> Span:
    return Span(said["table"], Position(*said["before"]), Position(*said["after"]))
