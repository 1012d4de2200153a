"""How a loop runs a step: micro-batches that do not fit in the heap, and work that falls due."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.common.errors import HeapError
from lakehouse.engine.layers.step import Batch, BatchResult, Blamed, Passed, Step, StepMaker, Ticker
from lakehouse.engine.progress.reading import InMemory
from lakehouse.engine.runtime import troubles
from lakehouse.engine.runtime.loop import Common, StreamLoop, utc_now
from lakehouse.engine.runtime.troubles import Troubles
from lakehouse.engine.runtime.watch import Watch
from lakehouse.storage.tables import Lake

NAME = "gold.some"
NOON, SECOND = datetime(2026, 1, 1, 12, tzinfo=UTC), timedelta(seconds=1)


class Needy(Step):
    """A step that takes commits of `unit` bytes: as many as its limit allows, but at least one.

    A micro-batch of more than `room` bytes does not fit in the heap.
    """

    layer = "gold"
    name = NAME

    def __init__(self, spark: SparkSession, waiting: int, *, unit: int, room: int) -> None:
        self._rows = spark.range(1).toDF("id")
        self._unit, self._room = unit, room
        self.waiting = waiting
        self.tried: list[int] = []

    def plan(self, handed: Mapping[str, InMemory]) -> Batch | None:  # noqa: ARG002
        most = self.waiting if self.limit is None else min(self.limit, self.waiting)
        commits = max(1, most // self._unit)
        size = min(self.waiting, commits * self._unit)
        return Batch(self._rows, size, reads=f"{size} bytes", size=size) if size else None

    @contextmanager
    def write(self, batch: Batch, now: datetime) -> Iterator[Passed]:  # noqa: ARG002
        self.tried.append(batch.size)
        if batch.size > self._room:
            raise RuntimeError("java.lang.OutOfMemoryError: Java heap space")
        self.waiting -= batch.size
        yield Passed(BatchResult(batch.size))

    def end_here(self, filled: Collection[str]) -> None:
        pass


def caught_up(spark: SparkSession, tmp_path: Path, step: Needy) -> list[str]:
    """Run the step until it has caught up, then raise any failure or return the notices."""
    said: list[str] = []
    found = Troubles([NAME], said.append, retries=0)
    loop = loop_of(spark, tmp_path, step, found)
    while loop.round():
        pass
    found.raise_any()
    return said


def loop_of(
    spark: SparkSession,
    tmp_path: Path,
    step: Step,
    given: Troubles | None = None,
    *,
    clock: Callable[[], datetime] = utc_now,
    is_live: bool = False,
) -> StreamLoop:
    """Return the loop for a stream with one step."""
    told = given or Troubles([NAME], lambda _text: None, retries=0)
    common = Common(lambda _done: None, clock, told, Watch(), is_live=is_live)
    return StreamLoop(
        "some", Lake(spark, str(tmp_path)), [StepMaker("some", "gold", NAME, lambda: step)], common
    )


def test_it_takes_a_quarter_and_then_a_little_more_each_time(spark: SparkSession, tmp_path: Path) -> None:
    step = Needy(spark, 100, unit=1, room=20)

    said = caught_up(spark, tmp_path, step)

    assert step.tried[:4] == [100, 25, 6, 7]
    assert sum(size for size in step.tried if size <= 20) == 100
    assert step.waiting == 0
    assert "100 bytes: the heap was full (driver memory " in said[0]
    assert said[0].endswith("); retrying with a quarter of the input")


def test_commits_that_are_a_little_larger_than_the_limit_are_tried(
    spark: SparkSession, tmp_path: Path
) -> None:
    step = Needy(spark, 100, unit=10, room=10)

    caught_up(spark, tmp_path, step)

    assert step.tried[:4] == [100, 20, 10, 10]
    assert step.waiting == 0


def test_a_commit_that_is_too_large_is_tried_once_more_and_then_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    step = Needy(spark, 120, unit=40, room=15)

    with pytest.raises(
        HeapError, match=f"^{NAME} failed in .*40 bytes: the heap was full .*cannot be made smaller"
    ):
        caught_up(spark, tmp_path, step)

    assert step.tried == [120, 40, 40]
    assert step.waiting == 120


class Failing(Needy):
    """A step that fails while it is `broken`, and that knows the record to blame."""

    broken = True
    looked = 0

    @contextmanager
    def write(self, batch: Batch, now: datetime) -> Iterator[Passed]:
        if self.broken:
            raise ValueError("no number")
        with super().write(batch, now) as passed:
            yield passed

    def blamed(self, batch: Batch) -> Blamed | None:  # noqa: ARG002
        self.looked += 1
        return Blamed("the record at t/0/5", "`lakehouse run x --skip t/0/5` skips it")


def test_the_record_at_which_a_step_fails_is_looked_for_once_and_named_each_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(troubles, "FIRST_PAUSE_S", 0.0)
    step, said = Failing(spark, 1, unit=1, room=1), list[str]()
    loop = loop_of(spark, tmp_path, step, Troubles([NAME, "another"], said.append))

    for _ in range(2):
        loop.round()
    why = f"{NAME} cannot process the record at t/0/5: ValueError: no number."
    way_out = "`lakehouse run x --skip t/0/5` skips it"
    assert said == [f"{NAME} failed; retrying in 0 s: {why} {way_out}"] * 2
    assert step.looked == 1


def test_a_record_that_the_heap_does_not_hold_is_named(spark: SparkSession, tmp_path: Path) -> None:
    step = Failing(spark, 40, unit=40, room=15)
    step.broken = False

    with pytest.raises(HeapError) as failed:
        caught_up(spark, tmp_path, step)

    way_out = "or skip the record at t/0/5: `lakehouse run x --skip t/0/5` skips it"
    assert str(failed.value).endswith(f"cannot be made smaller; give Spark more memory, {way_out}")


class Due(Ticker):
    """A ticker for which something falls due every second, such as calls that end one after another."""

    def __init__(self, begins: datetime) -> None:
        self._done_until = begins
        self.ticks: list[int] = []

    def is_due(self, now: datetime) -> bool:
        return now - self._done_until >= SECOND

    def tick(self, now: datetime) -> BatchResult:
        seconds = int((now - self._done_until) / SECOND)
        self._done_until += seconds * SECOND
        self.ticks.append(seconds)
        return BatchResult(seconds)


@pytest.mark.parametrize(("is_live", "ticks"), [(False, [5]), (True, [5, 1, 1])])
def test_a_catch_up_does_what_is_due_at_one_moment_and_a_live_run_whenever_it_looks(
    spark: SparkSession, tmp_path: Path, is_live: bool, ticks: list[int]
) -> None:
    clock = (NOON + second * SECOND for second in count(5))
    step = Needy(spark, 0, unit=1, room=1)
    step.ticker = due = Due(NOON)
    loop = loop_of(spark, tmp_path, step, clock=lambda: next(clock), is_live=is_live)

    rounds = [loop.round() for _ in range(3)]

    assert due.ticks == ticks
    assert rounds == [True, is_live, is_live]


def test_a_merge_has_done_what_is_due_so_nothing_is_closed_right_behind_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    clock = (NOON + second * SECOND for second in count(5))
    step = Needy(spark, 1, unit=1, room=1)
    step.ticker = due = Due(NOON)
    loop = loop_of(spark, tmp_path, step, clock=lambda: next(clock), is_live=True)

    loop.round()
    assert (step.tried, due.ticks) == ([1], [])
    loop.round()
    assert (step.tried, due.ticks) == ([1], [6])
