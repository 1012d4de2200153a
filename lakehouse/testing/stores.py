"""Check that a store keeps the promises of the export (docs/sinks.md), for tests of the package that adds it.

Each promise is a test, on an empty store and a new lake:

    @pytest.mark.parametrize("promise", PROMISES)
    def test_the_store_keeps_its_promises(promise, assert_kept, tmp_path):
        assert_kept(promise, StoreUnderTest(KIND, settings, there=..., lose=..., damage=..., outage=...))

A test writes rows to a gold table, and sends its changes as the export does, but only to this store. A crash
is simulated by abandoning the sink: a new sink continues, as in a new process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse.common.errors import SinkTroubleError
from lakehouse.engine.layers import gold
from lakehouse.settings import Settings
from lakehouse.sinks.change import Change, Span
from lakehouse.sinks.outgoing import changes_of, outgoing
from lakehouse.sinks.port import Audited, Exported, Findings, Sending, Sink, SinkKind
from lakehouse.storage import tables
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.spark.execution import executing_a_handful
from lakehouse.storage.tables import DELETED, Lake, Position
from lakehouse.streams.definition import GoldTable
from lakehouse.testing.declared import declared

_STREAM = """
[streams.proof]
kind = "windowed_sums"
topic = "proof"
by = "userId"
value = "amount"
length = "1h"
"""
_NEW = 7
_HOUR = datetime(2026, 3, 1, 12, tzinfo=UTC)
Totals = Mapping[str, int]
"""Each user's total, keyed by user; all users have one window."""


@dataclass(frozen=True)
class StoreUnderTest:
    """A store, and how a test looks into it and harms it.

    kind      the store's SinkKind
    settings  settings in which the store is configured
    there     returns each user's total (`totalAmount`, `total_amount` in gold) as the store contains it
    lose      makes the store lose everything that it contains of gold.proof_1h
    damage    changes a user's total in the store, without the export
    outage    makes the store unreachable during a block
    """

    kind: SinkKind
    settings: Settings
    there: Callable[[], Totals]
    lose: Callable[[], object]
    damage: Callable[[str], object]
    outage: Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class AssertKept:
    """An assertion that a store keeps a promise, whose name is one of PROMISES.

    Raises AssertionError with what the store contains and should contain. `directory` is for the lake.
    """

    spark: SparkSession
    directory: Path

    def __call__(self, promise: str, store: StoreUnderTest) -> None:
        """Test the promise. The store must be empty. Raises KeyError for an unknown promise."""
        with executing_a_handful(self.spark):
            _PROMISES[promise](_Table(self.spark, self.directory, store))


class _Table:
    """A gold table whose changes are sent to a single store."""

    def __init__(self, spark: SparkSession, directory: Path, store: StoreUnderTest) -> None:
        stream = declared(_STREAM)["proof"]
        (made,) = stream.gold
        self.table: GoldTable = replace(made, export=replace(made.export, topic=None))
        self.store, self._spark, self._directory = store, spark, directory
        self._own = {} if store.kind.own is None else {store.kind.name: store.kind.own(self.table)}
        self.create()

    def create(self) -> None:
        """Create the table; called again, create a table with the same name and a different identity."""
        lakes = len(list(self._directory.glob("lake-*")))
        self._lake = Lake(self._spark, str(self._directory / f"lake-{lakes}"))
        self._path = self._lake.ensure(gold.spec(self.table))
        self._reached = 0

    @property
    def version(self) -> int:
        """The table's newest version."""
        return tables.version_of(self._spark, self._path)

    def put(self, **totals: int) -> None:
        """Insert or update users' rows in one commit."""
        self._commit([_row(user, total) for user, total in totals.items()], is_deleted=False)

    def delete(self, *users: str) -> None:
        """Delete users' rows in one commit."""
        self._commit([_row(user, 0) for user in users], is_deleted=True)

    def sink(self) -> Sink:
        """Return a new sink, as a new process makes it."""
        return self.store.kind.make(self._exported())

    def changes(self, first: int, end: int) -> list[Change]:
        """Return the changes in versions `first` to `end` - 1 as a micro-batch would contain them."""
        feed = self._exported().changed_between(max(first, 1), end)
        with outgoing(feed, changes_of(self.table, self._own)) as rows:
            return rows.all_at_once()

    def begin(self, sink: Sink, first: int, end: int) -> None:
        """Begin the micro-batch of the versions `first` to `end` - 1."""
        table = tables.sent_as(self._spark, self._path)
        span = Span(table, Position(first), Position(end))
        sink.begin(Sending(span, datetime.now(UTC), is_first=first == 0))

    def send(self) -> None:
        """Send all pending changes, and fill the store if it lacks rows, as the export does."""
        sink, end, is_behind = self.sink(), self.version + 1, False
        if end > self._reached:
            changes = self.changes(self._reached, end)
            try:
                self.begin(sink, self._reached, end)
                sink.write(changes)
                sink.end()
            except SinkTroubleError:
                is_behind = True
            self._reached = end
        if is_behind or sink.lacks_rows():
            self.fill(sink)
        sink.close()

    def fill(self, sink: Sink) -> None:
        """Fill the store up to the position that has been sent."""
        sink.require()
        sink.fill(Position(self._reached), datetime.now(UTC))

    def audit(self) -> Findings:
        """Return what the store's audit finds at the position that has been sent."""

        def rows_at(version: int) -> DataFrame:
            return tables.read_version(self._spark, self._path, version)

        audited = Audited(self._exported(), self._reached - 1, datetime.now(UTC), rows_at)
        return self.store.kind.audit(audited)

    def assert_there(self, **totals: int) -> None:
        """Assert that the store contains exactly these totals, and that its audit is clean."""
        there = dict(self.store.there())
        _expect(there == totals, f"{self.store.kind.label} contains {there}, expected {totals}")
        found = self.audit()
        is_clean = not found.differences and not found.not_compared
        _expect(is_clean, f"the audit of {self.store.kind.label} is not clean: {found}")
        _expect(
            found.compared >= len(totals), f"the audit compared only {found.compared} of {len(totals)} rows"
        )

    def _exported(self) -> Exported:
        settings = self.store.settings.changed({"lake": self._lake.root})
        return Exported(self._lake, self._path, self.table, settings)

    def _commit(self, rows: list[dict[str, Any]], *, is_deleted: bool) -> None:
        frame = local_frame(self._spark, rows, self.table.schema).coalesce(1)
        frame = frame.withColumn(DELETED, F.lit(True)) if is_deleted else frame
        tables.replace(frame, self._path, self.table.keys, within=F.lit(True))


def _row(user: str, total: int) -> dict[str, Any]:
    end = _HOUR.replace(hour=_HOUR.hour + 1)
    times = {"window_start": _HOUR, "window_end": end}
    return {"user_id": user, **times, "total_amount": Decimal(total), "count": 1}


def _has_what_gold_has(one: _Table) -> None:
    one.put(ann=1, bob=2, eve=3)
    one.send()
    one.assert_there(ann=1, bob=2, eve=3)
    one.put(bob=20, joe=4)
    one.delete("eve")
    one.put(ann=10)
    one.send()
    one.assert_there(ann=10, bob=20, joe=4)
    one.put(eve=5)
    one.send()
    one.assert_there(ann=10, bob=20, joe=4, eve=5)


def _is_filled_at_first(one: _Table) -> None:
    one.put(ann=1, bob=2)
    one.put(ann=10)
    one.delete("bob")
    one.send()
    one.assert_there(ann=10)


def _survives_a_kill(one: _Table, *, after_rows: int | None) -> None:
    """Abandon a sink after some of a micro-batch's rows, or (None) after its end, before it was recorded."""
    one.put(ann=1, bob=2)
    one.send()
    before = one.version + 1
    one.put(ann=10, bob=20, eve=30)
    end, killed = one.version + 1, one.sink()
    changes = one.changes(before, end)
    one.begin(killed, before, end)
    killed.write(changes[:after_rows])
    if after_rows is None:
        killed.end()
    killed.close()  # as the operating system closes a killed process's connections
    one.delete("bob")
    one.send()
    one.assert_there(ann=10, eve=30)


def _killed_before_rows(one: _Table) -> None:
    _survives_a_kill(one, after_rows=0)


def _killed_among_rows(one: _Table) -> None:
    _survives_a_kill(one, after_rows=2)


def _killed_after_the_end(one: _Table) -> None:
    _survives_a_kill(one, after_rows=None)


def _never_goes_back(one: _Table) -> None:
    one.put(ann=1, bob=2)
    one.send()
    before = one.version + 1
    one.put(ann=10)
    end, slow = one.version + 1, one.sink()
    changes = one.changes(before, end)
    one.put(ann=100)
    one.delete("bob")
    one.send()
    with suppress(SinkTroubleError):
        one.begin(slow, before, end)
        slow.write(changes)
        slow.end()
    slow.close()
    one.send()
    one.assert_there(ann=100)


def _fills_what_it_lost(one: _Table) -> None:
    one.put(ann=1, bob=2, eve=3)
    one.delete("eve")
    one.send()
    one.store.lose()
    sink = one.sink()
    _expect(sink.lacks_rows(), f"{one.store.kind.label} has lost its rows, and lacks_rows returns false")
    one.fill(sink)
    _expect(not sink.lacks_rows(), "lacks_rows returns true after fill")
    sink.close()
    one.assert_there(ann=1, bob=2)
    one.put(bob=20)
    one.send()
    one.assert_there(ann=1, bob=20)


def _outlasts_an_outage(one: _Table) -> None:
    one.put(ann=1, bob=2)
    one.send()
    one.put(ann=10)
    one.delete("bob")
    with one.store.outage():
        sink = one.sink()  # while a store is away, the export goes on for the others
        _assert_trouble("require", sink.require)
        _assert_false_while_away(sink)
        _assert_trouble("a micro-batch", one.send)
        sink.close()
    one.fill(one.sink())
    one.assert_there(ann=10)


def _expect(is_so: bool, message: str) -> None:  # noqa: FBT001
    if not is_so:
        raise AssertionError(message)


def _assert_trouble(what: str, act: Callable[[], None]) -> None:
    try:
        act()
    except SinkTroubleError as error:
        text = str(error)
        _expect(bool(text.strip()), f"{what}: the message is empty")
        _expect("\n" not in text, f"{what}: the message has more than one line: {text}")
    else:
        raise AssertionError(f"{what} raised no SinkTroubleError although the store was unreachable")


def _assert_false_while_away(sink: Sink) -> None:
    try:
        lacks_rows = sink.lacks_rows()
    except SinkTroubleError as error:
        raise AssertionError("lacks_rows raised an error although the store was unreachable") from error
    _expect(not lacks_rows, "lacks_rows returns true although the store is unreachable")


def _follows_a_new_table(one: _Table) -> None:
    one.put(ann=1, bob=2)
    one.send()
    one.create()
    one.put(ann=_NEW)
    one.send()
    there = dict(one.store.there())
    _expect(there.get("ann") == _NEW, f"the table was recreated, and {one.store.kind.label} contains {there}")
    one.put(ann=1, eve=2)
    one.send()
    there = {user: total for user, total in one.store.there().items() if user != "bob"}
    _expect(there == {"ann": 1, "eve": 2}, f"{one.store.kind.label} contains {there}")


def _audit_sees_damage(one: _Table) -> None:
    one.put(ann=1, bob=2)
    one.send()
    one.assert_there(ann=1, bob=2)
    one.store.damage("ann")
    found = one.audit()
    _expect(found.differences == 1, f"one row is damaged, and the audit found {found}")
    _expect(len(found.examples) == 1, f"the audit gives no example of the damaged row: {found}")


_PROMISES: Mapping[str, Callable[[_Table], None]] = {
    "has what gold has": _has_what_gold_has,
    "is filled at first": _is_filled_at_first,
    "killed before rows": _killed_before_rows,
    "killed among rows": _killed_among_rows,
    "killed after the end": _killed_after_the_end,
    "never goes back": _never_goes_back,
    "fills what it lost": _fills_what_it_lost,
    "outlasts an outage": _outlasts_an_outage,
    "follows a new table": _follows_a_new_table,
    "audit sees damage": _audit_sees_damage,
}
PROMISES = tuple(_PROMISES)
"""The names of the promises that `AssertKept` tests."""
