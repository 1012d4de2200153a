"""Turns: how many run at once, in which order, and what becomes of a turn that was booked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pyspark.sql import SparkSession

from lakehouse.runtime.turns import Turns

_LONG_S = 20.0


def _never() -> bool:
    return False


def _started(target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LONG_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_booked_turns_are_granted_in_the_order_of_requests_and_used_without_a_second_wait(
    spark: SparkSession,
) -> None:
    turns, order = Turns(spark, 1), list[str]()

    def next_batch(name: str) -> None:
        turns.book(name, _never)
        with turns.one(name):
            order.append(name)

    with turns.one("running"):
        threads = []
        for name in ("a", "b", "c"):
            threads.append(_started(lambda name=name: next_batch(name)))  # type: ignore[misc]
            time.sleep(0.1)
        assert order == []
    for thread in threads:
        thread.join(_LONG_S)

    assert order == ["a", "b", "c"]


def test_a_booked_turn_keeps_others_out_until_it_lapses(spark: SparkSession) -> None:
    turns, begun = Turns(spark, 1), threading.Event()

    def other() -> None:
        with turns.one("other"):
            begun.set()

    turns.book("idle", _never)
    waiting = _started(other)
    turns.lapse(after_s=60)
    assert not begun.wait(0.3)

    turns.lapse(after_s=0)
    assert begun.wait(_LONG_S)
    waiting.join(_LONG_S)

    with turns.one("idle"):  # it lapsed, so this waits for a turn like any other
        pass


def test_who_wants_all_turns_gets_them_although_one_is_booked_and_others_are_asked_for(
    spark: SparkSession,
) -> None:
    turns, over = Turns(spark, 2), threading.Event()
    turns.book("idle", _never)

    with turns.all():
        booking = _started(lambda: turns.book("later", over.is_set))
        time.sleep(0.2)
        assert booking.is_alive()
    booking.join(_LONG_S)
    assert not booking.is_alive()
    with turns.one("later"), turns.one("third"):
        pass


def test_a_query_that_is_to_stop_gives_up_its_place(spark: SparkSession) -> None:
    turns, stop = Turns(spark, 1), threading.Event()
    with turns.one("running"):
        first = _started(lambda: turns.book("first", stop.is_set))
        time.sleep(0.1)
        second = _started(lambda: turns.book("second", _never))
        stop.set()
        first.join(_LONG_S)
        assert not first.is_alive()
        assert second.is_alive()
    _until(lambda: not second.is_alive())
    with turns.one("second"):
        pass
