"""Read a topic for bronze, starting at the offsets recorded in the bronze table.

If the topic does not match the recorded offsets, the step fails with a message that names the cause and a
remedy. Possible causes are that the topic was deleted and recreated, that its offsets went backwards, or that
Kafka dropped records before they landed. If the user allows such a loss, the lost records are skipped and
recorded in ops.data_losses. The same applies to records that the user wants to skip. Records that Spark's
source cannot read are read by the driver (`lakehouse.storage.spark.kafka_source`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from lakehouse.common.errors import PositionError, StreamError
from lakehouse.common.events import Kind, note
from lakehouse.common.readable import parse_moment
from lakehouse.engine.layers import Allow
from lakehouse.engine.layers.step import Permitted
from lakehouse.engine.ops_tables import data_losses
from lakehouse.engine.ops_tables.data_losses import LostRange
from lakehouse.engine.progress.positions import begins, offset_moves, offsets_in, sources_in, topic_source
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage import tables
from lakehouse.storage.kafka.offsets import OffsetLooker
from lakehouse.storage.kafka.refusals import denied
from lakehouse.storage.kafka.topics import IdLooker, describe_topic
from lakehouse.storage.spark.execution import SOME_ROWS
from lakehouse.storage.spark.kafka_source import Place, ReadApart, invalid, misdated, read_apart, read_between
from lakehouse.storage.spark.query_errors import heap_bytes, what_of
from lakehouse.storage.tables import Lake, Move

EARLIEST, LATEST = "earliest", "latest"
Offsets = Mapping[int, int]
Ranges = Mapping[int, tuple[int, int]]

_AT_LEAST = 100  # records; this number always fits, because brokers limit a record's size
_OVERHEAD_BYTES = 64  # per record, in memory
_LARGE_BYTES = 4096  # from this size on, a record is mostly payload, which the other layers copy
_COPIES = 4
_PARTS_OF_HEAP = 8


@dataclass(frozen=True)
class TakenRecords:
    """The records between two offsets in each partition; there are at most `records`.

    `record` is the topic, partition and offset of the only record, or None if there are several.
    """

    rows: DataFrame
    records: int
    number: int
    moves: tuple[Move, ...]
    reads: str
    record: str | None


class TopicReading:
    """A reader of a topic for the query `query`, which fills the bronze table at `path`."""

    def __init__(
        self,
        lake: Lake,
        query: str,
        path: str,
        topic: str,
        *,
        access: KafkaAccess,
        max_records: int,
        max_bytes: int,
        permitted: Permitted,
        start: str = EARLIEST,
    ) -> None:
        self._lake = lake
        self._query = query
        self._path = path
        self._topic = topic
        self._access = access
        self._max_records = max_records
        self._room = min(max_bytes, heap_bytes(lake.spark) // _PARTS_OF_HEAP)
        self._permitted = permitted
        self._start = start
        self._until: Offsets | None = None
        self._apart = dict[int, int]()  # the offset at which separate reads begin, keyed by partition
        self._looker, self._ids = OffsetLooker(access, topic), IdLooker(access, topic)
        self._source = self._identified()

    def next(self, limit: int | None = None) -> TakenRecords | None:
        """Return the next records, at most `max_records` and at most `limit`, or None if there are none.

        Their estimated size in memory is limited to about `max_bytes` or an eighth of the heap, whichever is
        smaller. Raises PositionError if the topic does not match the recorded offsets or was recreated since
        the last call, and ServiceError if the broker does not answer.
        """
        self._source = self._source or self._identified()
        if self._source is None:
            return None
        snapshot = tables.snapshot(self._lake.spark, self._path)
        noted = offsets_in(tables.transactions_in(self._lake.spark, snapshot), self._query, self._source)
        there = self._looker.look()
        if not noted and there and self._start != EARLIEST:
            noted = self._begin(there)
            snapshot = tables.snapshot(self._lake.spark, self._path)
        first = self._first(noted, there)
        until = self._until
        ends = {n: end if until is None else min(end, until.get(n, 0)) for n, (_, end) in there.items()}
        skipped = self._skip(first, ends)
        waiting = {n: (first[n], end) for n, end in ends.items() if end > first[n] or n in skipped}
        if not waiting:
            return None
        if topic_source(self._topic, self._ids.look()) != self._source:  # the topic was recreated
            self._source = self._identified()
            return self.next(limit)
        rows, ranges = self._read(
            waiting, self._most(waiting, limit or sys.maxsize), singly=limit is not None
        )
        return TakenRecords(
            rows,
            sum(end - start for start, end in ranges.values()),
            tables.version_in(snapshot) + 1,
            offset_moves(self._query, self._source, noted, {n: end for n, (_, end) in ranges.items()}),
            f"{self._topic} {_shown_ranges(ranges)}",
            self._only(ranges),
        )

    def _only(self, ranges: Ranges) -> str | None:
        """Return the coordinates of the only record in the ranges as text, or None if there are several."""
        places = [Place(self._topic, n, first) for n, (first, end) in ranges.items() if end > first]
        is_one = sum(end - first for first, end in ranges.values()) == 1
        return str(places[0]) if is_one else None

    def set_apart(self, error: Exception) -> bool:
        """Mark a failing record to be read separately; return whether Spark's source failed on a record.

        Raises AccessDeniedError if the source failed because reading the topic is not permitted.
        """
        no = denied(self._access, error, {"topic": f"Read topic {self._topic}"})
        if no is not None:
            raise no from error
        place = misdated(error) or invalid(error)
        if place is None or self._apart.get(place.partition, sys.maxsize) <= place.offset:
            return False
        self._apart[place.partition] = place.offset
        return True

    def _read(
        self, waiting: Ranges, most: int, *, singly: bool
    ) -> tuple[DataFrame, dict[int, tuple[int, int]]]:
        """Return about `most` records in the ranges, and the offsets that they cover."""
        apart = {n: span for n, span in waiting.items() if span[0] >= self._apart.get(n, sys.maxsize)}
        ahead = {
            n: (first, min(end, self._apart.get(n, end)))
            for n, (first, end) in waiting.items()
            if n not in apart
        }
        ranges = capped(ahead, most)
        rows = (
            [read_between(self._lake.spark, self._access, self._topic, ranges, singly=singly)]
            if ranges
            else []
        )
        for n, (first, end) in apart.items():
            found = self._read_apart(Place(self._topic, n, first), min(end, first + most))
            rows.append(found.rows)
            ranges[n] = first, found.reached
            if found.is_misdated:  # later records may also be misdated
                self._apart[n] = found.reached
            else:
                del self._apart[n]
        return reduce(DataFrame.unionByName, rows), ranges

    def _read_apart(self, place: Place, end: int) -> ReadApart:
        try:
            return read_apart(self._lake.spark, self._access, place, end)
        except (Py4JError, TimeoutError) as error:
            bad = invalid(error)
            if bad is not None and bad.offset > place.offset:
                return read_apart(self._lake.spark, self._access, place, bad.offset)
            raise StreamError(
                f"{self._query} cannot read the record at {place}, and neither can Kafka's own client: "
                f"{what_of(error)}. If this persists, {skipping(str(place))}"
            ) from error

    def _most(self, waiting: Ranges, limit: int) -> int:
        """Return how many unread records to read at most."""
        most = min(self._max_records, limit)
        every = sum(end - first for first, end in waiting.values())
        if min(most, every) <= _AT_LEAST:
            return most
        longest = max(waiting, key=lambda n: waiting[n][1] - waiting[n][0])
        size = self._looker.record_bytes(longest, waiting[longest][0])
        if size is None:
            return min(most, SOME_ROWS // 5)
        in_memory = _OVERHEAD_BYTES + (size if size < _LARGE_BYTES else _COPIES * size)
        return min(most, max(_AT_LEAST, int(self._room / in_memory)))

    def end_here(self) -> None:
        """Read no records beyond the current end."""
        self._until = {n: end for n, (_, end) in self._looker.look().items()}

    def close(self) -> None:
        """Disconnect from the broker."""
        self._looker.close()
        self._ids.close()

    def _identified(self) -> str | None:
        """Return the topic's name as a source, or None if the topic does not exist yet.

        Raises PositionError if the table was filled from a different topic.
        """
        known = describe_topic(self._access, self._topic)
        source = topic_source(self._topic, None if known is None else known.id)
        self._refuse_other_topic(source, is_there=known is not None)
        return None if known is None else source

    def _refuse_other_topic(self, source: str, *, is_there: bool) -> None:
        noted = tables.transactions(self._lake.spark, self._path)
        others = {one.rpartition("/")[0] for one in sources_in(noted, self._query)} - {source}
        if not others:
            has_read = any(sources_in(noted, self._query))
            if not has_read and tables.has_rows(self._lake.spark, self._path):
                raise PositionError(
                    f"{self._query} has rows, but no recorded offsets for {self._topic}: another program "
                    f"wrote these rows. Use another `lake` (LAKEHOUSE_LAKE), or delete {self._path} (and "
                    "the tables made from it) and run again"
                )
            return
        mine = offsets_in(noted, self._query, source)
        name, _, id_ = sorted(others)[0].rpartition(":")
        if name != self._topic and not mine:
            raise PositionError(
                f"{self._query} has read topic {name}, but the settings say {self._topic}. Change the topic "
                "back, or use another `lake` (LAKEHOUSE_LAKE) for the new topic"
            )
        if not is_there:
            raise self._runs_back(offsets_in(noted, self._query, f"{name}:{id_}"), "is gone")
        if not mine:
            raise PositionError(
                f"topic {self._topic} was deleted and recreated: {self._query} has read the topic with "
                f"id {id_}; the new topic has id {source.rpartition(':')[2]}. {self._new_topic}"
            )

    def _first(self, noted: Offsets, there: Mapping[int, tuple[int, int]]) -> dict[int, int]:
        """Return the offset at which to continue in each partition.

        A new partition is read from offset 0, and a new table begins at the earliest offsets.
        """
        earliest, ends = ({n: span[side] for n, span in there.items()} for side in (0, 1))
        if any(ends.get(n, -1) < offset for n, offset in noted.items()):
            raise self._runs_back(noted, f"ends at {_shown(ends)}")
        if not noted:
            return dict(earliest)
        reached = {n: noted.get(n, 0) for n in earliest}
        lost = [
            LostRange(self._topic, n, offset, earliest[n] - 1)
            for n, offset in sorted(reached.items())
            if earliest[n] > offset
        ]
        if lost:
            self._pass_over(lost)
        return {n: max(offset, earliest[n]) for n, offset in reached.items()}

    def _begin(self, there: Mapping[int, tuple[int, int]]) -> dict[int, int]:
        """Record and return the offsets at which the user chose to begin.

        Called before any record is read. After a restart, reading begins at the same offsets, even if no
        records have arrived since.
        """
        if self._start == LATEST:
            at = {n: end for n, (_, end) in there.items()}
        else:
            at = self._looker.since(parse_moment(self._start, datetime.now(UTC)))
        source = self._source or ""
        moves = (*offset_moves(self._query, source, {}, at), *begins(self._query, source, at))
        tables.note(self._lake.spark, self._path, moves)
        self._permitted.on_notice(
            f"{self._query} begins at offsets {_shown(at)} of {self._topic}, as set by the source's "
            f"key `start` ({self._start}); earlier records are skipped"
        )
        return at

    def _pass_over(self, lost: Sequence[LostRange]) -> None:
        what = f"Kafka no longer has offsets {', '.join(map(str, lost))}, which {self._query} has not read"
        if Allow.DATA_LOSS not in self._permitted.allow:
            raise PositionError(
                f"{what}: they have expired. Run once with --allow {Allow.DATA_LOSS} to record them as "
                f"lost in {data_losses.DATA_LOSSES.qualified_name} and continue after them"
            )
        self._note(lost, f"{what} (allowed)")

    def _skip(self, first: dict[int, int], ends: dict[int, int]) -> set[int]:
        """Skip the records that the user wants to skip; return the partitions in which records were skipped.

        Updates both arguments: `first` moves past the records to skip, and `ends` stops before them.
        """
        passed = set[int]()
        for one in sorted(self._permitted.skip, key=lambda one: one.first_offset):
            n = one.partition
            if one.topic != self._topic or n not in ends or first[n] >= ends[n]:
                continue
            if one.first_offset <= first[n] <= one.last_offset:
                lost = replace(one, first_offset=first[n], last_offset=min(one.last_offset, ends[n] - 1))
                self._note([lost], f"{self._query} skips offsets {lost}")
                first[n] = lost.last_offset + 1
                passed.add(n)
            elif first[n] < one.first_offset:
                ends[n] = min(ends[n], one.first_offset)
        return passed

    def _note(self, lost: Iterable[LostRange], what: str) -> None:
        if data_losses.note(self._lake, lost, self._query, datetime.now(UTC)):
            told = f"{what}; noted in {data_losses.DATA_LOSSES.qualified_name}"
            note(Kind.DATA_LOSS, told, layer="bronze", table=self._query)
            self._permitted.on_notice(told)

    def _runs_back(self, noted: Offsets, now: str) -> PositionError:
        return PositionError(
            f"{self._query} has read topic {self._topic} up to {_shown(noted)}, but it {now}, as if it "
            f"had been deleted and recreated. {self._new_topic}"
        )

    @property
    def _new_topic(self) -> str:
        return (
            "Records in the new topic would have the same coordinates as records already in the tables. Use "
            f"another `lake` (LAKEHOUSE_LAKE) for them, or delete {self._path} and the tables made from it, "
            "and run again"
        )


def capped(waiting: Ranges, records: int) -> dict[int, tuple[int, int]]:
    """Shorten the offset ranges proportionally, to about `records` records in total.

    If `records` is less than the number of partitions, only the partitions with the most unread records are
    read, one record from each.
    """
    every = sum(end - first for first, end in waiting.values())
    if every <= records:
        return dict(waiting)
    if records < len(waiting):
        longest = sorted(waiting, key=lambda n: waiting[n][0] - waiting[n][1])[:records]
        return {n: (waiting[n][0], min(waiting[n][1], waiting[n][0] + 1)) for n in longest}
    return {
        n: (first, min(end, first + max(1, (end - first) * records // every)))
        for n, (first, end) in waiting.items()
    }


def _shown(offsets: Offsets) -> str:
    return ", ".join(f"{n}:{offset}" for n, offset in sorted(offsets.items())) or "nothing"


def skipping(place: str) -> str:
    """Return advice on skipping a record that cannot be read."""
    return (
        f"`lakehouse run bronze --skip {place}` skips the record and notes it in "
        f"{data_losses.DATA_LOSSES.qualified_name}"
    )


def _shown_ranges(ranges: Ranges) -> str:
    return ", ".join(f"{n}:{first}-{end}" for n, (first, end) in sorted(ranges.items()))
