"""Beside a busy stream, repairs and maintenance of tables get through, and every record is there once.

Each tick of the stream lands three records, which silver judges: one is clean, one is dated in the future,
and one is not JSON. So bronze, silver and the dead letters are appended to twice a second. In the short tests
a tick falls between each commit's reads and the commit itself, and nothing is retried.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.engine.layers import bronze, gold
from lakehouse.engine.records.dead_letters import Selection
from lakehouse.engine.runtime.runner import utc_now
from lakehouse.operations.catalog.spark_sql import ask, define_views, holding_gold
from lakehouse.operations.maintenance.fold_state import clear_state
from lakehouse.operations.maintenance.upkeep import Keeper, tasks
from lakehouse.operations.repair.rebuild_gold import WindowSpan, rebuild_gold
from lakehouse.operations.repair.rebuild_silver import Landed, rebuild_silver
from lakehouse.operations.repair.replay import discard, replay
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.tables import Lake, leases, upkeep, writing
from tests.oracles.metrics import Metric
from tests.support import pipeline, verdicts
from tests.support.batches import gold_of, silver_of, take_next
from tests.support.beside import beside
from tests.support.pipeline import BRONZE, DEAD_LETTERS, GOLD, SILVER, STREAM, Raw
from tests.support.streams import METRICS, METRICS_1M, PRODUCT_SALES, SALES, tolerant

DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
PATIENT = tolerant(STREAM, 3600)
YOUNGEST = 10
"""How many days ago the newest day with three records is: the records of later days may change."""


def three(at: datetime) -> list[Raw]:
    """Return a clean record, one dated in the future and one that is not JSON, to land at a given time."""
    return [event(at), event(at + 10 * MINUTE), Raw(b"not JSON", timestamp_ms=_ms(at))]


def event(at: datetime) -> Raw:
    record = {"serviceId": "s", "metricName": "m", "value": 1.0, "timestamp": _ms(at)}
    return Raw(json.dumps(record).encode(), timestamp_ms=_ms(at))


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


class Busy:
    """A stream that lands three records per tick and takes them as far as silver, or gold.

    It has its own session and steps, as a separate process would. `landed` counts its records.
    """

    def __init__(self, spark: SparkSession, settings: Settings, *, with_gold: bool = False) -> None:
        self._spark = spark.newSession()
        self._settings = settings
        self._silver = silver_of(self._spark, settings)
        self._gold = gold_of(self._spark, settings) if with_gold else None
        self.landed = 0
        self.ticks = 0

    def land_days(self, oldest: int) -> None:
        """Land the records of each day from `oldest` days ago on, in one commit, and take them."""
        noon, rows = midnight() + timedelta(hours=12), list[tuple[Any, ...]]()
        for days in range(oldest, YOUNGEST - 1, -1):
            at = noon - days * DAY
            rows += pipeline.landed(self._settings, three(at), landed_at=at, first_offset=len(rows))
        path = Lake(self._spark, self._settings.lake).ensure(bronze.spec(pipeline.SOURCE))
        tables.append(local_frame(self._spark, rows, bronze.SCHEMA).coalesce(1), path)
        self.landed = len(rows)
        self.take()

    def tick(self) -> None:
        cut, at = three(utc_now()), utc_now()
        pipeline.land(self._spark, self._settings, [cut], landed_at=at, first_offset=self.landed)
        self.landed += len(cut)
        self.take()
        self.ticks += 1

    def take(self) -> None:
        """Have the steps take what is waiting; as in a live run, a step whose table is held is skipped."""
        take_next(self._silver, now=utc_now())
        if self._gold is not None and not self._gold.is_held():
            take_next(self._gold, now=utc_now())

    def await_tick(self) -> None:
        """Wait until the stream has ticked once from beginning to end."""
        begun = self.ticks
        pipeline.await_(lambda: self.ticks > begun + 1)

    def run(self, over: threading.Event) -> None:
        """Tick twice a second; if a tick takes longer, the next one follows at once."""
        due = time.monotonic()
        while not over.wait(max(0.0, due - time.monotonic())):
            due = max(due + 0.5, time.monotonic())
            self.tick()


def midnight() -> datetime:
    return utc_now().replace(hour=0, minute=0, second=0, microsecond=0)


def books(settings: Settings, landed: int, first: int = 0) -> dict[int, str]:
    """Check that each record from offset `first` on is where it must be; return the letters' statuses."""
    records = range(first, landed)
    rows = pipeline.rows_of(settings, DEAD_LETTERS)
    statuses = {row["offset"]: row["status"] for row in rows}
    accepted = [offset for offset in records if offset % 3 == 0 or statuses.get(offset) == "replayed"]
    assert offsets(settings, BRONZE) == list(records)
    assert offsets(settings, DEAD_LETTERS) == [offset for offset in records if offset % 3]
    assert offsets(settings, SILVER) == accepted
    return statuses


def offsets(settings: Settings, table: str) -> list[int]:
    return sorted(row["offset"] for row in pipeline.rows_of(settings, table))


@dataclass(frozen=True)
class Statuses:
    """The final statuses of letters: of records dated in the future, and of those that are not JSON."""

    ahead: str
    not_json: str


@dataclass(frozen=True)
class Operation:
    """An operation to run beside the stream, and the letters' statuses after a final run at rest.

    `run` returns how many records it has handled.
    """

    name: str
    run: Callable[[Lake], int]
    leaves: Statuses


def replaying(lake: Lake) -> int:
    done = replay(lake, [PATIENT], Selection(rule="future"), utc_now())
    assert done.failed == done.gone == done.there_already == 0
    return done.passed


def discarding(lake: Lake) -> int:
    return discard(lake, [STREAM], Selection(rule="not_json"), utc_now()).count


def rebuilding(lake: Lake) -> int:
    done = rebuild_silver(lake, PATIENT, Landed(), utc_now(), allow_late=True)
    assert done.removed == done.changed == done.newly_refused == 0
    assert done.inserted == done.newly_accepted
    return done.inserted


REBUILD = Operation("rebuild silver", rebuilding, Statuses("replayed", "open"))
OPERATIONS = (
    Operation("replay", replaying, Statuses("replayed", "open")),
    Operation("discard", discarding, Statuses("open", "discarded")),
    REBUILD,
)


def at_rest(operation: Operation, lake: Lake, settings: Settings, landed: int) -> None:
    """Run the operation again, and check that every record is where it must be."""
    operation.run(lake)
    assert operation.run(lake) == 0
    wanted = {1: operation.leaves.ahead, 2: operation.leaves.not_json}
    assert books(settings, landed) == {offset: wanted[offset % 3] for offset in range(landed) if offset % 3}


@contextmanager
def overtaken(stream: Busy, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run a tick before each commit that another writer makes within the block; none of them is retried."""
    finish, is_ticking = tables.Commit.finish, False

    def finish_late(commit: tables.Commit, *given: Any, **named: Any) -> int:
        nonlocal is_ticking
        if not is_ticking:
            is_ticking = True
            stream.tick()
            is_ticking = False
        return finish(commit, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(writing, "_ATTEMPTS", 1)
        patch.setattr(tables.Commit, "finish", finish_late)
        yield


@pytest.mark.soak
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_an_append_between_what_is_read_and_the_commit_is_no_conflict(
    lake: Lake, lake_settings: Settings, monkeypatch: pytest.MonkeyPatch, operation: Operation
) -> None:
    stream = Busy(lake.spark, lake_settings)
    stream.tick()

    with overtaken(stream, monkeypatch):
        assert operation.run(lake) == 1

    assert stream.ticks > 1
    at_rest(operation, lake, lake_settings, stream.landed)


def keep(lake: Lake, settings: Settings, days: int, *names: str) -> dict[str, int]:
    """Remove rows older than `days` from tables, and tidy these; return how many rows each has lost."""
    keeping = settings.changed({"maintenance.keep_rows_s": dict.fromkeys(names, 86_400 * days)})
    todo = [task for task in tasks([STREAM], keeping) if task.cut is not None]
    done = [Keeper(lake, keeping).keep(task, utc_now()) for task in todo]
    return {one.table: one.rows for one in done if one is not None}


def settled_days(spark: SparkSession, settings: Settings, oldest: int) -> Busy:
    """Return a stream that has taken its days, with all letters discarded and first seen when sent."""
    stream = Busy(spark, settings, with_gold=True)
    stream.land_days(oldest)
    stream.tick()
    discard(Lake(spark, settings.lake), [STREAM], Selection(), utc_now())
    letters = f"delta.`{pipeline.path_of(settings, DEAD_LETTERS)}`"
    spark.sql(f"UPDATE {letters} SET first_seen = kafka_timestamp")
    return stream


OF_A_DAY = {BRONZE: 3, SILVER: 1, DEAD_LETTERS: 2}


@pytest.mark.soak
def test_old_rows_leave_although_young_ones_come(
    lake: Lake, lake_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = settled_days(lake.spark, lake_settings, YOUNGEST + 1)

    with overtaken(stream, monkeypatch):
        assert keep(lake, lake_settings, YOUNGEST, *OF_A_DAY) == OF_A_DAY

    books(lake_settings, stream.landed, first=3)


STATEMENTS = {
    "UPDATE": "UPDATE {silver} SET environment = slowly(service_id) WHERE offset = 0",
    "DELETE": "DELETE FROM {silver} WHERE slowly(service_id) = 's' AND offset = 0",
    "MERGE": "MERGE INTO {silver} AS t USING (SELECT 0 AS offset, slowly('s') AS environment) AS s "
    "ON t.offset = s.offset WHEN MATCHED THEN UPDATE SET environment = s.environment",
}


@pytest.mark.parametrize("kind", STATEMENTS)
@pytest.mark.soak
def test_a_statement_is_not_overtaken_by_rows_that_come_while_it_runs(
    lake: Lake, lake_settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    """The statement's function waits until the stream has ticked."""
    stream, waits = Busy(lake.spark, lake_settings), tmp_path / "waits"
    stream.tick()
    monkeypatch.setattr(writing, "_ATTEMPTS", 1)

    def slowly(value: str) -> str:
        waits.touch()
        while waits.exists():
            time.sleep(0.02)
        return value

    def tick_once(over: threading.Event) -> None:
        pipeline.await_(lambda: waits.exists() or over.is_set(), 60)
        stream.tick()
        while not over.wait(0.02):
            waits.unlink(missing_ok=True)

    lake.spark.udf.register("slowly", slowly)
    with beside(tick_once):
        statement = STATEMENTS[kind].format(silver=f"delta.`{pipeline.path_of(lake_settings, SILVER)}`")
        ask(lake.spark, statement, limit=1, write=True)

    assert stream.ticks == 2
    found = {row["offset"]: row["environment"] for row in pipeline.rows_of(lake_settings, SILVER)}
    assert found == ({3: None} if kind == "DELETE" else {0: "s", 3: None})


def gold_row(settings: Settings, at: datetime) -> pipeline.Row:
    (row,) = [row for row in pipeline.rows_of(settings, GOLD) if row["window_start"] == pipeline.micros(at)]
    return row


def test_a_statement_holds_the_gold_tables_that_it_names(lake: Lake, lake_settings: Settings) -> None:
    Busy(lake.spark, lake_settings, with_gold=True).tick()
    path = str(pipeline.path_of(lake_settings, GOLD))

    with holding_gold(lake, [METRICS], "SELECT * FROM gold.metrics_summary_10m"):
        assert not leases.is_held(lake.spark, path)
    with holding_gold(lake, [METRICS], "UPDATE GOLD.METRICS_1M SET count = 2"):
        assert leases.is_held(lake.spark, path)
    assert not leases.is_held(lake.spark, path)


def test_a_side_table_is_held_with_the_table_that_it_is_beside(
    lake: Lake, lake_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sales = Lake(lake.spark, lake_settings.lake)
    paths = [sales.ensure(gold.spec(table)) for table in (PRODUCT_SALES, *PRODUCT_SALES.sides)]
    held = list[bool]()

    def looking(*_: object) -> bool:
        held.append(leases.is_held(lake.spark, paths[0]))
        return True

    monkeypatch.setattr(upkeep, "has_many_small_files", lambda _small: True)
    monkeypatch.setattr(upkeep, "optimize", looking)
    for task in tasks([SALES], lake_settings):
        if task.spec.qualified_name == "gold.sales_notifications":
            Keeper(lake, lake_settings).keep(task, utc_now())

    assert held == [True]
    with holding_gold(lake, [SALES], "DELETE FROM gold.sales_notifications"):
        assert leases.is_held(lake.spark, paths[0])


@pytest.mark.soak
def test_state_is_cleared_while_micro_batches_wait(
    lake: Lake, lake_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled_days(lake.spark, lake_settings, YOUNGEST + 1)
    clear, path, held = tables.clear, str(pipeline.path_of(lake_settings, GOLD)), list[bool]()

    def looking(*arguments: Any) -> int:
        held.append(leases.is_held(lake.spark, path))
        return clear(*arguments)

    monkeypatch.setattr(tables, "clear", looking)
    (first,), (again,) = (clear_state(lake, [STREAM]) for _ in range(2))

    assert (first.rows, again.rows) == (2, 0)
    assert held == [True]  # with nothing to clear, nobody waits


# Two ticks a second on a quiet machine; on a busy one they take longer, but make as many appends.

TICKS = 40
DAYS = 80
"""How many days ago the oldest records are: enough for each round to remove one day."""


def for_a_while(stream: Busy, work: Callable[[], object]) -> None:
    """Repeat the work beside the ticking stream."""
    began, last, rounds = time.monotonic(), stream.ticks + TICKS, 0
    with beside(stream.run):
        while stream.ticks < last:
            work()
            rounds += 1
    took = time.monotonic() - began
    print(f"{rounds} rounds beside {stream.ticks - last + TICKS} ticks in {took:.0f} s")


@pytest.mark.slow
@pytest.mark.soak
def test_a_while_of_rebuilds_beside_a_busy_stream(lake: Lake, lake_settings: Settings) -> None:
    stream, dealt_with = Busy(lake.spark, lake_settings), list[int]()
    stream.tick()

    for_a_while(stream, lambda: dealt_with.append(REBUILD.run(lake)))

    assert sum(dealt_with) > len(dealt_with)
    at_rest(REBUILD, lake, lake_settings, stream.landed)


@pytest.mark.slow
@pytest.mark.soak
def test_a_while_of_work_on_gold_beside_a_busy_stream(lake: Lake, lake_settings: Settings) -> None:
    """Each round damages a row by a statement, rebuilds and clears it, and removes another day's rows."""
    stream = settled_days(lake.spark, lake_settings, DAYS)
    days, young = iter(range(DAYS - 1, YOUNGEST - 1, -1)), midnight() + timedelta(hours=12) - YOUNGEST * DAY
    damage = (
        f"UPDATE gold.metrics_1m SET count = 100 WHERE unix_micros(window_start) = {pipeline.micros(young)}"
    )
    define_views(lake, [STREAM], statement=damage)
    assert clear_state(lake, [STREAM])[0].rows == DAYS - YOUNGEST + 1

    def round_() -> None:
        with holding_gold(lake, [STREAM], damage):
            ask(lake.spark, damage, limit=1, write=True)
        stream.await_tick()
        (rebuilt,) = rebuild_gold(lake, METRICS_1M, WindowSpan())
        assert (rebuilt.changed, rebuilt.deleted) == (1, 0)
        stream.await_tick()
        assert [one.rows for one in clear_state(lake, [STREAM])] == [1]
        stream.await_tick()
        if (kept := next(days, None)) is not None:
            assert keep(lake, lake_settings, kept, GOLD) == {GOLD: 1}

    for_a_while(stream, round_)

    left = next(days, YOUNGEST - 1)
    first = 3 * (DAYS - 1 - left)
    assert gold_row(lake_settings, young)["sketch"] is None
    judged = verdicts.judge_batches([pipeline.rows_of(lake_settings, BRONZE)], lake_settings)
    kept = [one for one in verdicts.accepted(judged, Metric) if one.offset >= first]
    rows = pipeline.rows_of(lake_settings, GOLD)
    assert verdicts.window_differences(rows, kept, lake_settings) == []
    books(lake_settings, stream.landed)
