"""Of several runs of the same layers and streams, one works; another takes over when it ends or dies."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.util import InheritableThread

from lakehouse.engine.runtime import standby as turns
from lakehouse.engine.runtime.signals import Stop
from lakehouse.engine.runtime.standby import Doing, take_turns
from lakehouse.storage.tables import Lake
from lakehouse.storage.tables.terms import Terms
from tests.support.pipeline import await_

SCOPE = {"bronze", "silver", "metrics"}
EARLIER, LATER = "00000000000000000001_elsewhere_7", "99999999999999999999_elsewhere_8"


class Worker:
    """A run in a thread. It works until it is told to stop or `done` is set."""

    def __init__(self, lake: Lake, scope: set[str]) -> None:
        self.stop = Stop()
        self.done = threading.Event()
        self.turns: list[str] = []
        self.notices: list[str] = []
        self.warm_ups = 0
        self._thread = InheritableThread(
            target=take_turns,
            args=(lake, scope, self.stop, Doing(self._work, self._warm_up, self.notices.append)),
        )
        self._thread.start()

    def _warm_up(self) -> None:
        self.warm_ups += 1

    def _work(self, stop: Stop) -> None:
        self.turns.append("begins")
        while not stop.requested and not self.done.wait(0.02):
            pass
        self.turns.append("ends")

    @property
    def works(self) -> bool:
        return bool(self.turns) and self.turns[-1] == "begins"

    def end(self) -> None:
        self.stop.request()
        self._thread.join()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TERM_S", 1.0)
    monkeypatch.setattr(turns, "_RENEWED_EVERY_S", 0.2)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, str(tmp_path))


@contextmanager
def worker(lake: Lake, scope: set[str] | None = None) -> Iterator[Worker]:
    made = Worker(lake, SCOPE if scope is None else scope)
    try:
        yield made
    finally:
        made.end()


@contextmanager
def somebody(lake: Lake, kind: str, name: str) -> Iterator[threading.Event]:
    """Announce another process until the event is set, as if it were then killed."""
    terms = Terms(lake.spark, f"{lake.root}/{turns.DIRECTORY}/{'+'.join(sorted(SCOPE))}", turns.TERM_S)
    killed = threading.Event()

    def renew() -> None:
        while not killed.is_set():
            terms.renew(kind + name)
            killed.wait(0.1)

    thread = InheritableThread(target=renew)
    thread.start()
    try:
        await_(lambda: kind + name in terms.alive())
        yield killed
    finally:
        killed.set()
        thread.join()


def test_one_works_and_the_other_takes_over_when_it_ends(lake: Lake, tmp_path: Path) -> None:
    with worker(lake) as first:
        await_(lambda: first.works)
        with worker(lake) as second, worker(lake, {*SCOPE, "gold"}) as another:
            await_(lambda: bool(second.notices) and another.works)
            assert second.turns == []
            assert "standing by: process " in second.notices[0]
            assert second.notices[0].endswith(" is active")

            first.done.set()
            await_(lambda: second.works)
            assert first.turns == ["begins", "ends"]
            assert (first.warm_ups, second.warm_ups) == (0, 1)

            second.stop.request()
            await_(lambda: second.turns == ["begins", "ends"])
    assert not [file for file in (tmp_path / turns.DIRECTORY).rglob("*") if file.is_file()]


def test_a_run_that_was_killed_is_replaced_once_its_term_is_over(lake: Lake) -> None:
    with somebody(lake, "active_", EARLIER) as killed, worker(lake) as run:
        await_(lambda: run.notices == ["standing by: process 7 on elsewhere is active"])
        assert run.turns == []

        killed.set()
        await_(lambda: run.works)


def test_who_stands_by_for_longer_comes_first(lake: Lake) -> None:
    with (
        somebody(lake, "standby_", LATER),
        somebody(lake, "standby_", EARLIER) as killed,
        worker(lake) as run,
    ):
        await_(lambda: run.notices == ["standing by: process 7 on elsewhere is next"])
        assert run.turns == []

        killed.set()
        await_(lambda: run.works)


def test_of_two_that_work_the_one_that_came_later_gives_way_and_comes_back(lake: Lake) -> None:
    with worker(lake) as run:
        await_(lambda: run.works)
        with somebody(lake, "active_", LATER), somebody(lake, "active_", EARLIER):
            await_(lambda: run.turns == ["begins", "ends"])
            await_(lambda: "another run is active; standing by" in run.notices)
        await_(lambda: run.turns == ["begins", "ends", "begins"])


def test_a_run_that_was_asleep_gives_way_though_it_came_first(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with worker(lake) as run:
        await_(lambda: run.works)
        with somebody(lake, "active_", LATER):
            monkeypatch.setattr(turns, "TERM_S", -1.0)  # as if it had failed to renew its term in time
            await_(lambda: run.turns == ["begins", "ends"])
        await_(lambda: run.turns == ["begins", "ends", "begins"])
