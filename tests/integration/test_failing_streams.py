"""A failing step holds up neither the steps before it nor another stream: it is reported, and retried.

All in one lake, over a real Kafka: sales always work, and something is wrong with the transactions.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from lakehouse.common.errors import HeapError, PositionError, StreamError, TableError
from lakehouse.engine.layers import LayerName
from lakehouse.engine.ops_tables.event_table import newest, recorded
from lakehouse.engine.runtime import troubles
from lakehouse.engine.runtime.runner import BatchDone, RunOptions, run
from lakehouse.engine.runtime.signals import Stop
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import GoldTable, Stream
from lakehouse.streams.window_lengths import Seconds
from lakehouse.testing.kills import CrashError
from tests.support import pipeline
from tests.support.crashing import Fault
from tests.support.pipeline import Raw, await_
from tests.support.streams import CALL_RECORDS, CALLS, SALES, TRANSACTIONS, USER_TRANSACTIONS_5M

pytestmark = pytest.mark.soak

NOON = pipeline.utc("2026-03-01T12:00:00")
LAYERS: tuple[LayerName, ...] = ("bronze", "silver", "gold")
GOLD = "gold.user_transactions_5m"
WHY = "CrashError: no message"
AGAIN = [
    f"{GOLD} failed; retrying in 1 s: {WHY}",
    f"{GOLD} failed; retrying in 2 s: {WHY}",
    f"{GOLD} failed; retrying in 4 s: {WHY}",
    f"{GOLD} failed; retrying in 8 s: {WHY}",
    f"{GOLD} failed; retrying in 16 s: {WHY}",
    f"{GOLD} failed; retrying in 32 s: {WHY}",
]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the first pause 0.1 s."""
    monkeypatch.setattr(troubles, "FIRST_PAUSE_S", 0.1)


def with_table(**changes: Any) -> Stream:
    """Return the stream of transactions with a changed gold table."""
    return replace(TRANSACTIONS, gold=(replace(USER_TRANSACTIONS_5M, **changes),))


def needing_two_gigabytes(beyond: int) -> Stream:
    """Return a stream of transactions of which the heap cannot merge more than `beyond` at a time."""

    def preaggregate(rows: DataFrame) -> DataFrame:
        count = F.count(F.lit(1)).over(Window.partitionBy(F.lit(1)))
        text = F.repeat(F.concat("user_id", F.lit("x" * 999)), 2_000_000)
        fits = F.when(F.col("_count") > beyond, F.length(text) == 0).otherwise(F.lit(True))
        return USER_TRANSACTIONS_5M.preaggregate(rows.withColumn("_count", count).where(fits))

    return with_table(preaggregate=preaggregate)


def broken(fault: Fault) -> Stream:
    """Return a stream of transactions that gold cannot merge."""
    return with_table(preaggregate=fault.breaking(USER_TRANSACTIONS_5M.preaggregate))


@dataclass
class FaultyLake:
    """A lake that has been sent `events` sales and as many transactions, each of 1."""

    spark: SparkSession
    settings: Settings
    events: int = 0

    def produce(self) -> None:
        self.events += 1
        at_ms = int(NOON.timestamp() * 1000)
        for stream, record in (
            (SALES, {"product": "p", "value": 1, "timestamp": at_ms}),
            (TRANSACTIONS, {"userId": "u", "amount": 1, "timestamp": at_ms}),
        ):
            pipeline.send(self.settings, [Raw(json.dumps(record).encode(), key=b"k")], stream.sources[0])

    def catch_up(self, streams: Sequence[Stream], *layers: LayerName, **options: Any) -> None:
        run(
            Lake(self.spark, self.settings.lake),
            streams,
            layers or LAYERS,
            self.settings,
            RunOptions(AVAILABLE_NOW, **options),
        )

    @property
    def sold(self) -> int:
        return sum(int(row["total"]) for row in self._rows("gold.product_sales"))

    @property
    def spent(self) -> int:
        return sum(int(row["total_amount"]) for row in self._rows(GOLD))

    @property
    def accepted(self) -> int:
        return len(self._rows("silver.transactions"))

    def _rows(self, table: str) -> list[pipeline.Row]:
        return pipeline.rows_of(self.settings, table)


@pytest.fixture(scope="module")
def lake(spark: SparkSession, module_settings: Settings) -> FaultyLake:
    """Return the lake after a first transaction and sale."""
    made = FaultyLake(spark, module_settings.changed({"kafka.topic_partitions": 1}))
    made.produce()
    made.catch_up([TRANSACTIONS, SALES])
    assert (made.spent, made.sold) == (1, 1)
    return made


@dataclass
class Live:
    """A run in another thread: its micro-batches, its notices, and the failures it ended with."""

    done: list[BatchDone] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    @property
    def failure(self) -> BaseException | None:
        return self.failures[0] if self.failures else None


@contextmanager
def live(
    lake: FaultyLake, streams: Sequence[Stream], layers: Sequence[LayerName], **options: Any
) -> Iterator[Live]:
    """Run with an interval inside the block, which ends with a request to stop."""
    found = Live()
    told = RunOptions("100 ms", on_batch=found.done.append, on_notice=found.said.append, **options)
    here = Lake(lake.spark, lake.settings.lake)
    with pipeline.running(here, streams, layers, lake.settings, told) as found.failures:
        yield found


def await_while_running(running: Live, condition: Callable[[], object]) -> None:
    def holds() -> object:
        assert running.failure is None, running.failure
        return condition()

    await_(holds)


@pytest.mark.slow
def test_all_other_steps_go_on_while_one_is_tried_again_and_its_last_failure_ends_the_run(
    lake: FaultyLake,
) -> None:
    fault = Fault()
    with live(lake, [broken(fault), SALES], LAYERS) as running:
        lake.produce()
        await_while_running(running, lambda: running.said)
        lake.produce()
        await_while_running(running, lambda: (lake.sold, lake.accepted) == (lake.events, lake.events))
        assert lake.spent == lake.events - 2
        fault.mend()
        await_while_running(running, lambda: lake.spent == lake.events)
        await_while_running(running, lambda: running.said[-1] == f"{GOLD} works again")
        *failed, _ = first = list(running.said)
        assert 1 <= len(failed) < len(AGAIN)
        assert failed == AGAIN[: len(failed)]

        fault.is_there = True
        lake.produce()
        await_while_running(running, lambda: lake.sold == lake.events and len(running.said) > len(first))

    assert running.said[len(first) :] == AGAIN[: len(running.said) - len(first)]  # from one second again
    assert isinstance(running.failure, StreamError)
    assert str(running.failure) == f"{GOLD} failed: {WHY}"
    assert isinstance(running.failure.__cause__, CrashError)
    lake.catch_up([TRANSACTIONS, SALES])
    assert (lake.spent, lake.sold) == (lake.events, lake.events)


@pytest.mark.usefixtures("quick")
def test_in_a_run_of_one_stream_a_step_that_fails_does_not_stop_landing(lake: FaultyLake) -> None:
    """This holds live and in a catch-up: records that do not land are lost once Kafka drops them."""
    fault = Fault()
    with live(lake, [broken(fault)], LAYERS) as running:
        lake.produce()
        await_while_running(running, lambda: len(running.said) > 1)
        lake.produce()
        await_while_running(running, lambda: lake.accepted == lake.events)
        assert lake.spent < lake.events

    lake.produce()
    with pytest.raises(StreamError, match=f"^{GOLD} failed: {WHY}$"):
        lake.catch_up([broken(fault)])
    assert lake.accepted == lake.events

    lake.catch_up([TRANSACTIONS, SALES])
    assert (lake.spent, lake.sold) == (lake.events, lake.events)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_catch_up_leaves_a_step_that_goes_on_failing_and_is_well_if_it_recovers(
    lake: FaultyLake,
) -> None:
    events_before = pipeline.version_of(lake.settings, "silver.transactions") + 1
    lake.produce()
    fault, said = Fault(), list[str]()

    with pytest.raises(StreamError) as raised, recorded(lake.settings.lake, "a test"):
        lake.catch_up([broken(fault), SALES], on_notice=said.append)

    assert str(raised.value) == f"{GOLD} failed: {WHY}"
    events = newest(lake.settings.lake, limit=len(said) + 1)
    assert [event.message for event in events] == [*said, f"a test ended: {GOLD} failed: {WHY}"]
    assert {event.kind for event in events} == {"failure"}
    assert {(event.stream, event.table) for event in events[:-1]} == {("transactions", GOLD)}
    first, second = (json.loads(str(event.details)) for event in events[:2])
    assert first["traceback"].startswith(f"{GOLD} of transactions failed in micro-batch ")
    assert "raise self.error" in first["traceback"]
    assert first["where"].endswith(f"silver.transactions {events_before} to {events_before + 1}")
    assert "traceback" not in second
    assert said == [
        f"{GOLD} failed; retrying in 0.1 s: {WHY}",
        f"{GOLD} failed; retrying in 0.2 s: {WHY}",
        f"{GOLD} failed; retrying in 0.4 s: {WHY}",
        f"{GOLD} has failed 4 times and is left for the next run: {WHY}",
    ]
    assert (lake.sold, lake.accepted, lake.spent) == (lake.events, lake.events, lake.events - 1)

    lake.catch_up([broken(fault), SALES], on_notice=fault.mend)

    assert lake.spent == lake.events


@pytest.mark.usefixtures("quick")
def test_a_step_takes_less_if_the_heap_was_full_and_fails_alone_if_it_cannot(lake: FaultyLake) -> None:
    lake.catch_up([TRANSACTIONS, SALES])
    for _ in range(4):
        lake.produce()
        lake.catch_up([TRANSACTIONS], "bronze", "silver")
    first, said = pipeline.version_of(lake.settings, "silver.transactions") - 3, list[str]()

    lake.catch_up([needing_two_gigabytes(beyond=2)], "gold", on_notice=said.append)

    assert lake.spent == lake.events
    assert said[0].startswith(f"{GOLD} failed in micro-batch ")
    assert said[0].endswith(
        f"which reads silver.transactions {first} to {first + 4}: the heap was full (driver memory 2g); "
        "retrying with a quarter of the input"
    )
    assert len(said) == 1  # it takes all 4 commits, and then one at a time

    lake.produce()
    with pytest.raises(
        HeapError, match=f"^{GOLD} failed in micro-batch .*The micro-batch cannot be made smaller"
    ) as raised:
        lake.catch_up([needing_two_gigabytes(beyond=0), SALES])
    assert "OutOfMemoryError" in str(raised.value.__cause__)
    assert (lake.sold, lake.spent) == (lake.events, lake.events - 1)

    lake.catch_up([TRANSACTIONS, SALES])
    assert lake.spent == lake.events


@pytest.mark.usefixtures("quick")
def test_a_step_that_is_refused_starts_once_it_may_and_holds_nobody_up(lake: FaultyLake) -> None:
    lake.catch_up([TRANSACTIONS, SALES])
    lake.produce()
    lake.catch_up([TRANSACTIONS, SALES], "bronze", "silver")
    silver = pipeline.path_of(lake.settings, "silver.transactions")
    aside = silver.with_name("aside")
    said: list[str] = []

    with pytest.raises(TableError, match=f"^{GOLD} was made with window_s = 300"):
        lake.catch_up([with_table(window=Seconds(60)), SALES], "gold")
    assert (lake.sold, lake.spent) == (lake.events, lake.events - 1)

    silver.rename(aside)
    with pytest.raises(PositionError, match=rf"^{GOLD} was built from a different silver.transactions \(id "):
        lake.catch_up([TRANSACTIONS, SALES], "gold")

    def put_back(notice: str) -> None:
        said.append(notice)
        if aside.exists():
            shutil.rmtree(silver)
            aside.rename(silver)

    lake.catch_up([TRANSACTIONS, SALES], "gold", on_notice=put_back)

    assert said[0].startswith(f"{GOLD} failed; retrying in 0.1 s: {GOLD} was built from a different")
    assert said[1:] == [f"{GOLD} works again"]
    assert lake.spent == lake.events


@pytest.mark.usefixtures("quick")
def test_what_the_wall_clock_makes_due_is_tried_again_by_itself(lake: FaultyLake) -> None:
    rows = {
        "call_analytics": {"user1": "a", "user2": "b", "analytics": 1},
        "call_metrics": {"user1": "a", "user2": "b", "metrics": 2},
    }
    for source in CALLS.sources:
        record = Raw(json.dumps(rows[source.table]).encode(), timestamp_ms=int(NOON.timestamp() * 1000))
        pipeline.land(lake.spark, lake.settings, [[record]], landed_at=NOON, source=source)
    lake.catch_up([CALLS], "silver", "gold", clock=lambda: NOON)
    with pytest.raises(KeyboardInterrupt):  # is not a stream's failure
        lake.catch_up([SALES, closing(Fault(error=KeyboardInterrupt))], "gold", clock=tomorrow)
    fault, said = Fault(), list[str]()

    def mend(notice: str) -> None:
        said.append(notice)
        fault.mend()

    lake.catch_up([SALES, closing(fault)], "gold", clock=tomorrow, on_notice=mend)

    name = "gold.call_records by the clock"
    assert said == [f"{name} failed; retrying in 0.1 s: {WHY}", f"{name} works again"]
    assert [row["status"] for row in pipeline.rows_of(lake.settings, "gold.call_records")] == ["closed"]


def tomorrow() -> datetime:
    return NOON + timedelta(days=1)


def closing(fault: Fault) -> Stream:
    """Return a stream of calls that the wall clock cannot close."""
    clock: Any = CALL_RECORDS.clock
    table: GoldTable = replace(
        CALL_RECORDS, clock=replace(clock, set_columns=fault.breaking(clock.set_columns))
    )
    return replace(CALLS, gold=(table,))


@dataclass
class Gate:
    """A gate that is open, but fails its first look at the transactions."""

    fault: Fault = field(default_factory=Fault)

    def check(self, stream: Stream, _now: datetime) -> bool:
        if stream.name == "transactions" and self.fault.is_there:
            self.fault.mend()
            raise CrashError
        return True


@pytest.mark.slow
def test_behind_a_gate_one_stream_is_exported_while_another_cannot_be(lake: FaultyLake) -> None:
    """The other stream's gate fails first, then its export."""
    fault = Fault()
    export = USER_TRANSACTIONS_5M.export
    stream = with_table(export=replace(export, key=fault.breaking(export.key)))
    name = "export.user_transactions_5m"

    with live(lake, [stream, SALES], ["gold", "export"], gate=Gate(), gate_interval_s=1) as running:
        await_while_running(running, lambda: len(running.said) == 3)
        await_while_running(running, lambda: "export.product_sales" in {one.query for one in running.done})
        assert name not in {one.query for one in running.done}
        fault.mend()
        await_while_running(running, lambda: running.said[-1] == f"{name} works again")

    assert running.failure is None
    assert running.said[:3] == [
        f"gate of transactions failed; retrying in 1 s: {WHY}",
        "gate of transactions works again",
        f"{name} failed; retrying in 1 s: {WHY}",
    ]
    assert name in {one.query for one in running.done}


def test_a_stop_does_not_wait_for_a_pause(lake: FaultyLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(troubles, "FIRST_PAUSE_S", 60)
    lake.catch_up([TRANSACTIONS, SALES])
    lake.produce()
    lake.catch_up([TRANSACTIONS, SALES], "bronze", "silver")
    stop, failed_at = Stop(), list[float]()

    def ask(_notice: str) -> None:
        failed_at.append(time.monotonic())
        stop.request()

    with pytest.raises(StreamError, match=f"^{GOLD} failed: {WHY}$"):
        lake.catch_up([broken(Fault()), SALES], "gold", on_notice=ask, stop=stop)

    assert time.monotonic() - failed_at[0] < 30
