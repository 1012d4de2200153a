"""When failures in a run are retried, who is told, and how the run ends."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from lakehouse.common.errors import LakehouseError, PositionError, SettingsError, StreamError
from lakehouse.common.events import Event, EventLog, noting
from lakehouse.engine.runtime import troubles
from lakehouse.engine.runtime.troubles import Failure, Troubles, pause_s
from lakehouse.engine.runtime.watch import Watch, Watches, unraised

STEPS = ("bronze.a", "silver.a", "gold.a", "bronze.b")
BROKEN = Failure("gold.a", "a", ValueError("no such thing\nand its stack trace"))


def failure(name: str, cause: BaseException, where: str = "") -> Failure:
    """Return a failure in the stream that the last letter of `name` gives."""
    return Failure(name, name[-1], cause, where)


def test_a_pause_doubles_from_a_second_to_a_minute() -> None:
    assert [pause_s(failures) for failures in range(1, 10)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert pause_s(100_000) == 60


def test_each_failure_in_a_row_is_told_with_its_pause_and_one_after_success_is_the_first_again() -> None:
    said: list[str] = []
    found = Troubles(STEPS, said.append)

    found.add(BROKEN)
    found.add(failure("gold.a", PositionError("put it back")))
    found.end("gold.a")
    found.add(BROKEN)
    found.end("gold.a")
    found.end("gold.a")

    assert said == [
        "gold.a failed; retrying in 1 s: ValueError: no such thing",
        "gold.a failed; retrying in 2 s: put it back",
        "gold.a works again",
        "gold.a failed; retrying in 1 s: ValueError: no such thing",
        "gold.a works again",
    ]
    found.raise_any()


def test_what_fails_is_due_after_its_pause_and_what_works_always(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Troubles(STEPS, print)

    found.add(BROKEN)
    monkeypatch.setattr(troubles, "FIRST_PAUSE_S", 0)
    found.add(failure("silver.a", ValueError()))
    found.add_last(failure("gate of a", ValueError()))

    names = ("gold.a", "silver.a", "gate of a", "bronze.b")
    assert [found.is_due(name) for name in names] == [False, True, False, True]
    assert [found.will_be_tried(name) for name in names] == [True, True, False, False]
    assert [name in found for name in names] == [True, True, True, False]


def test_a_bounded_one_is_left_after_its_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(troubles, "FIRST_PAUSE_S", 0.25)
    said: list[str] = []
    found = Troubles(STEPS, said.append, retries=2)

    for _ in range(3):
        assert found.will_be_tried("gold.a") is bool(said)
        found.add(BROKEN)

    assert not found.will_be_tried("gold.a")
    assert not found.is_due("gold.a")
    assert said == [
        "gold.a failed; retrying in 0.25 s: ValueError: no such thing",
        "gold.a failed; retrying in 0.5 s: ValueError: no such thing",
        "gold.a has failed 3 times and is left for the next run: ValueError: no such thing",
    ]
    with pytest.raises(StreamError, match=r"^gold\.a failed: ValueError: no such thing$") as raised:
        found.raise_any()
    assert isinstance(raised.value.__cause__, ValueError)


def test_a_run_of_one_step_ends_with_its_first_failure_as_it_is() -> None:
    said: list[str] = []
    refusal = SettingsError("set it as it was")

    with pytest.raises(LakehouseError) as raised:
        Troubles(["gold.a"], said.append).add(failure("gold.a", refusal))

    assert raised.value is refusal
    assert said == []


def test_a_run_ends_only_if_every_step_fails_with_the_first_failure_and_the_others_names() -> None:
    """A stream whose steps all fail does not end a run in which another step works."""
    said: list[str] = []
    found = Troubles(STEPS, said.append)
    found.add(failure("gold.a", SettingsError("set it as it was")))
    found.add(failure("silver.a", ValueError()))
    found.add(failure("bronze.a", ValueError()))
    found.add(failure("gold.a", SettingsError("set it as it was, please")))

    with pytest.raises(SettingsError) as raised:
        found.add(failure("bronze.b", ValueError()))

    assert str(raised.value) == "set it as it was, please; also failed: silver.a, bronze.a, bronze.b"
    assert raised.value.exit_code == 2
    assert len(said) == 4


def test_a_step_that_has_recovered_keeps_the_run_going() -> None:
    found = Troubles(["gold.a", "gold.b"], lambda _text: None)
    found.add(failure("gold.a", ValueError()))
    found.end("gold.a")
    found.add(failure("gold.b", ValueError()))  # does not raise
    with pytest.raises(StreamError):
        found.add(failure("gold.a", ValueError()))


def test_what_a_step_does_by_the_clock_and_a_gate_are_not_steps() -> None:
    found = Troubles(["gold.a", "gold.b"], lambda _text: None)
    found.add(failure("gold.a", ValueError()))
    found.add(failure("gold.b by the clock", ValueError()))
    found.add(failure("gate of b", ValueError()))
    assert "gold.b" not in found
    with pytest.raises(StreamError, match=r"also failed: gold\.b by the clock, gate of b, gold\.b$"):
        found.add(failure("gold.b", ValueError()))


def test_a_run_that_has_no_steps_survives_any_failure() -> None:
    found = Troubles([], lambda _text: None)
    found.add(failure("gate of a", ValueError()))
    assert found.will_be_tried("gate of a")


def test_a_watch_is_told_of_each_failure_and_once_of_its_end() -> None:
    told: list[tuple[str, ...]] = []

    class Noting(Watch):
        def on_failure(self, name: str, reason: str) -> None:
            told.append(("failed", name, reason))

        def on_recovery(self, name: str) -> None:
            told.append(("works", name))

    found = Troubles(STEPS, lambda _text: None, watch=Noting())
    found.add(BROKEN)
    found.add_last(failure("gate of a", PositionError("put it back")))
    found.end("gold.a")
    found.end("gold.a")

    assert told == [
        ("failed", "gold.a", "ValueError: no such thing"),
        ("failed", "gate of a", "put it back"),
        ("works", "gold.a"),
    ]


def raised_in(function: str) -> ValueError:
    """Return an error whose traceback names the function that raised it."""
    scope: dict[str, object] = {}
    exec(f"def {function}():\n    raise ValueError('no such thing')\n", scope)  # noqa: S102
    try:
        scope[function]()  # type: ignore[operator]
    except ValueError as error:
        return error
    raise AssertionError


def details_of(events: Sequence[Event]) -> list[dict[str, object]]:
    return [json.loads(event.details or "{}") for event in events if event.kind != "recovery"]


def test_only_the_first_failure_in_a_row_has_its_whole_traceback_in_its_event_and_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events: list[Event] = []
    found = Troubles(STEPS, lambda _text: None)
    where = "micro-batch 7, which reads silver.a 5 to 6"
    with (
        noting(EventLog("a test", lambda batch, _again: events.extend(batch), print)),
        caplog.at_level(logging.ERROR),
    ):
        found.add(Failure("gold.a", "a", raised_in("merging"), where))
        found.add(Failure("gold.a", "a", raised_in("merging"), where))
        found.end("gold.a")
        found.add_last(Failure("gold.a", "a", raised_in("sending")))

    first, second, again = details_of(events)
    trace = first.pop("traceback")
    assert isinstance(trace, str)
    lines = trace.splitlines()
    assert lines[:2] == [f"gold.a of a failed in {where}", "Traceback (most recent call last):"]
    assert lines[-1] == "ValueError: no such thing"
    assert any(line.endswith(", in merging") for line in lines)
    assert first == {"name": "gold.a", "error": "ValueError", "failures": 1, "where": where}
    assert second == {"name": "gold.a", "error": "ValueError", "failures": 2}
    last = again.pop("traceback")
    assert isinstance(last, str)
    assert last.startswith("gold.a of a failed\nTraceback")
    assert again == {"name": "gold.a", "error": "ValueError", "failures": 1, "where": ""}
    assert [record.message for record in caplog.records] == [trace, last]


def test_the_failure_that_ends_a_run_has_its_traceback_too() -> None:
    events: list[Event] = []
    with (
        noting(EventLog("a test", lambda batch, _again: events.extend(batch), print)),
        pytest.raises(StreamError),
    ):
        Troubles(["gold.a"], lambda _text: None).add(Failure("gold.a", "a", raised_in("merging")))
    (details,) = details_of(events)
    assert ", in merging\n" in str(details["traceback"])
    assert details["failures"] == 1


class Counts(Watch):
    """A watch that counts failures and recoveries; several threads may call it."""

    def __init__(self) -> None:
        self.failed: Counter[str] = Counter()
        self.recovered: Counter[str] = Counter()
        self._lock = threading.Lock()

    def on_failure(self, name: str, reason: str) -> None:
        del reason
        with self._lock:
            self.failed[name] += 1

    def on_recovery(self, name: str) -> None:
        with self._lock:
            self.recovered[name] += 1


def at_once(work: Callable[[str], None], names: Sequence[str]) -> list[BaseException]:
    """Do the work for each name in its own thread, all starting together; return the errors."""
    start, raised = threading.Barrier(len(names)), list[BaseException]()

    def begin(name: str) -> None:
        start.wait(30)
        try:
            work(name)
        except BaseException as error:  # noqa: BLE001 - returned to the test
            raised.append(error)

    threads = [threading.Thread(target=begin, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return raised


def test_threads_that_fail_and_recover_at_once_are_each_counted() -> None:
    names, rounds = [f"gold.t{number}" for number in range(8)], 200
    watch, said = Counts(), list[str]()
    found = Troubles([*names, "gold.well"], said.append, watch=watch)

    def fail_and_recover(name: str) -> None:
        for _ in range(rounds):
            found.add(failure(name, OSError("disk")))
            found.add(failure(name, OSError("disk")))
            assert name in found
            found.end(name)
            assert found.is_due(name)

    assert at_once(fail_and_recover, names) == []
    assert watch.failed == dict.fromkeys(names, 2 * rounds)
    assert watch.recovered == dict.fromkeys(names, rounds)
    whats = (
        "failed; retrying in 1 s: OSError: disk",
        "failed; retrying in 2 s: OSError: disk",
        "works again",
    )
    assert Counter(said) == {f"{name} {what}": rounds for name in names for what in whats}
    found.raise_any()


def test_of_steps_that_all_fail_at_once_one_ends_the_run_and_names_the_others() -> None:
    class Slow(Watch):
        def on_failure(self, name: str, reason: str) -> None:
            del name, reason
            time.sleep(0.02)  # while other threads fail

    names = [f"gold.t{number}" for number in range(8)]
    found = Troubles(names, lambda _text: None, watch=Slow())
    (error,) = at_once(lambda name: found.add(failure(name, OSError("disk"))), names)
    assert isinstance(error, StreamError)
    first, others = str(error).split("; also failed: ")
    assert {first.partition(" ")[0], *others.split(", ")} == set(names)


def test_what_an_observer_raises_goes_to_the_log_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Watch):
        def on_failure(self, name: str, reason: str) -> None:
            raise BrokenPipeError(name, reason)

    class Counting(Watch):
        def on_failure(self, name: str, reason: str) -> None:
            seen.append(f"{name}: {reason}")

    seen = list[str]()
    found = Troubles(STEPS, unraised(lambda _text: print(1 // 0)), watch=Watches([Broken(), Counting()]))
    found.add(BROKEN)
    assert seen == ["gold.a: ValueError: no such thing"]
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [
        BrokenPipeError,
        ZeroDivisionError,
    ]
