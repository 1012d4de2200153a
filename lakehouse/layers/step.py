"""A layer's query without Spark's stream: its position in its checkpoint, what it plans and notes there.

A step is planned in the layer's own checkpoint before it begins, and noted as done afterwards, as if a stream
of Spark's had read the same versions. What a step reads is handed over by a trip, or found by the commits of
the tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from lakehouse import tables
from lakehouse.layers.query import LayerQuery, Passed
from lakehouse.progress import backlogs, checkpoints, snapshots
from lakehouse.progress.backlogs import Backlog
from lakehouse.progress.snapshots import Appended
from lakehouse.tables import Lake, Transaction

_KEPT = 100  # plans that a checkpoint keeps, as in Spark
_FORGOTTEN_EVERY = 25


class Step:
    """A layer's query as a part of trips, or by itself.

    While `joined`, it takes part. `failure` holds its error until somebody has handled it. While it `waits`,
    rows that trips have skipped lie in the tables it reads.
    """

    def __init__(self, lake: Lake, query: LayerQuery) -> None:
        self.query = query
        self.joined = False
        self.failure: Exception | None = None
        self.waits = False
        self.checkpoint = lake.checkpoint(query.name)
        self._lake = lake
        self._application = ""
        self._last: int | None = None
        self._read: dict[str, int] = {}  # by table id: the first version that has not been read
        self._ids = {name: tables.table_id(lake.spark, query.tables[name]) for name in self._sources}

    @property
    def _sources(self) -> tuple[str, ...]:
        """The tables that it reads. An export reads its own table, which may be a side table."""
        return tuple(self.query.tables) if self.query.layer == "export" else self.query.reads

    def join(self) -> bool:
        """Take part from now on, unless its own query has begun something or has something to read."""
        self.joined = (
            self._planned_beyond() is None
            and self._read_places()
            and self._next({}) is not None
            and not self._has_much_to_send()
        )
        if self.joined:
            self._identify()
        return self.joined

    def resume(self) -> int | None:
        """Continue after the last finished micro-batch; return one that is planned but not done, if any."""
        self._identify()
        return self._planned_beyond()

    def follow(self) -> bool:
        """Continue after the last finished micro-batch, by the commits of the tables it reads.

        False where only Delta's source can: a micro-batch is planned and not done, a version is read in part,
        or none of a table's rows has been read, and its commits do not tell what they are.
        """
        if self._planned_beyond() is not None or not self._read_places():
            return False
        for name in self._sources:
            if self._ids[name] in self._read:
                continue
            path = self.query.tables[name]
            newest = tables.version_of(self._lake.spark, path)  # first: what comes after it is not skipped
            if tables.size_bytes(self._lake.spark, path) == 0:
                self._read[self._ids[name]] = newest + 1
            elif tables.is_in_its_commits(self._lake.spark, path):
                self._read[self._ids[name]] = 0
            else:
                return False
        self._identify()
        return True

    def ends(self) -> dict[str, int] | None:
        """Return which versions come next in the tables it reads, by name; null if one is another table."""
        found = {name: tables.snapshot(self._lake.spark, self.query.tables[name]) for name in self._sources}
        if any(str(one.metadata().id()) != self._ids[name] for name, one in found.items()):
            return None
        return {name: int(one.version()) + 1 for name, one in found.items()}

    def has_read_less(self, ends: Mapping[str, int]) -> bool:
        """Tell whether there are versions before these that it has not read."""
        return any(self._read[self._ids[name]] < end for name, end in ends.items())

    def backlog(self, ends: Mapping[str, int], *, max_bytes: int) -> dict[str, Backlog] | None:
        """Return what waits before these versions, of each table about `max_bytes` at most.

        Null where only Delta's source can take it: a single version is larger, or there are many changes to
        send. Raises TableError where log retention has removed a commit.
        """
        is_export = self.query.layer == "export"
        if is_export and self._has_much_to_send():
            return None
        find, spark = (backlogs.changes if is_export else backlogs.appends), self._lake.spark
        found = {
            name: find(spark, self.query.tables[name], self._read[self._ids[name]], end, max_bytes=max_bytes)
            for name, end in ends.items()
        }
        known = {name: one for name, one in found.items() if one is not None}
        return known if len(known) == len(found) else None

    def take(self, found: Mapping[str, Backlog], header: Mapping[str, Any]) -> Appended | None:
        """Plan a micro-batch of what waits and return it; null if it has no row: then it counts as read."""
        spark, ends = self._lake.spark, {name: one.end for name, one in found.items()}
        if not any(one.files for one in found.values()):
            self._read |= {self._ids[name]: end for name, end in ends.items()}
            return None
        self._plan_up_to(header, ends)
        if self.query.layer == "export":
            ((name, one),) = found.items()
            feed = tables.read_changes(spark, self.query.tables[name], one.first, one.end - 1)
            return Appended(feed, None)
        parts = {
            name: snapshots.appended_of(spark, self.query.tables[name], one.files)
            for name, one in found.items()
        }
        return self.combined(spark, parts)

    def combined(self, spark: SparkSession, parts: Mapping[str, Passed | Appended]) -> Appended:
        """Return rows of the tables it reads, by the tables' names, as one micro-batch; others bring none."""
        frames = {
            name.partition(".")[2]: parts[name].rows
            if name in parts
            else tables.read(spark, self.query.tables[name]).limit(0)
            for name in self.query.reads
        }
        counts = [part.count for part in parts.values()]
        return Appended(self.query.combine(frames), None if None in counts else sum(n or 0 for n in counts))

    def _identify(self) -> None:
        self._application = self.query.application(checkpoints.begin(self._lake.spark, self.checkpoint))

    def _planned_beyond(self) -> int | None:
        planned = checkpoints.last_planned(self._lake.spark, self.checkpoint)
        self._last = checkpoints.last_done(self._lake.spark, self.checkpoint)
        return None if planned == self._last else planned

    def _has_much_to_send(self) -> bool:
        """Tell whether so many versions wait that sending them in bounded micro-batches is better."""
        span = self.changes() if self.query.layer == "export" else None
        return span is not None and span[1] - span[0] >= tables.FEW_VERSIONS

    def _read_places(self) -> bool:
        """Read the position of the last micro-batch; false where it stopped within a version."""
        found = snapshots.positions(self._lake, self.query.name, self._last)
        for name in self._sources:
            place, path = found.get(self._ids[name]), self.query.tables[name]
            if place is not None:
                behind = snapshots.place_behind(
                    self._lake.spark, path, place, feed=self.query.layer == "export"
                )
                if behind is None:
                    return False
                self._read[self._ids[name]] = behind
        return True

    def is_behind(self) -> bool:
        """Tell whether something waits to be read."""
        return self._next({}) is None or (self.query.layer == "export" and self.changes() is not None)

    def leave(self) -> None:
        """Stop taking part: its own query reads what comes next from the tables."""
        self.joined = False

    def transaction(self) -> Transaction:
        """Return the transaction of the micro-batch that comes next."""
        return Transaction(self._application, self.number)

    @property
    def number(self) -> int:
        """The micro-batch that comes next."""
        return 0 if self._last is None else self._last + 1

    def plan(self, header: Mapping[str, Any], written: Mapping[str, Transaction]) -> bool:
        """Plan the next micro-batch: what the transactions wrote to the tables that it reads.

        False if there is something else to read as well. Then the step leaves.
        """
        places = self._next(written)
        if places is None:
            self.leave()
            return False
        self._plan_up_to(header, places)
        return True

    def plan_all(self, header: Mapping[str, Any]) -> dict[str, Appended]:
        """Plan the next micro-batch with all that waits in the tables it reads; return it by table name."""
        spark, paths = self._lake.spark, {name: self.query.tables[name] for name in self._sources}
        ends = {name: tables.version_of(spark, path) + 1 for name, path in paths.items()}
        found = {
            name: snapshots.read_appended(spark, path, self._read.get(self._ids[name]), ends[name])
            for name, path in paths.items()
        }
        self._plan_up_to(header, ends)
        return found

    def _plan_up_to(self, header: Mapping[str, Any], ends: Mapping[str, int]) -> None:
        """Plan the next micro-batch with all versions before these, by the tables' names."""
        self._read |= {self._ids[name]: end for name, end in ends.items()}
        self.plan_as(header, [checkpoints.delta_place(self._ids[name], end) for name, end in ends.items()])

    def plan_as(self, header: Mapping[str, Any], lines: Sequence[str]) -> None:
        """Plan the next micro-batch with these lines."""
        checkpoints.plan(self._lake.spark, self.checkpoint, self.number, header, lines)

    def done(self) -> None:
        """Note that the micro-batch planned last is done."""
        number = self.number
        checkpoints.note_done(self._lake.spark, self.checkpoint, number)
        self._last = number
        if number % _FORGOTTEN_EVERY == 0 and number > _KEPT:
            checkpoints.forget_before(self._lake.spark, self.checkpoint, number - _KEPT)

    def changes(self) -> tuple[int, int] | None:
        """Return the first and last version that wait to be read in the one table it reads; null for none."""
        (name,) = self._sources
        newest = tables.version_of(self._lake.spark, self.query.tables[name])
        first = self._read.get(self._ids[name], 0)
        return None if first > newest else (first, newest)

    def plan_changes(self, header: Mapping[str, Any], last: int) -> None:
        """Plan a micro-batch of all versions up to this one."""
        (name,) = self._sources
        self._plan_up_to(header, {name: last + 1})

    def _next(self, written: Mapping[str, Transaction]) -> dict[str, int] | None:
        places: dict[str, int] = {}
        for name in self._sources:
            found = snapshots.next_place(
                self._lake.spark, self.query.tables[name], self._read.get(self._ids[name]), written.get(name)
            )
            if found is None:
                return None
            places[name] = found
        return places
