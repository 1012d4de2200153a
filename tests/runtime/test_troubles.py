"""When what fails in a run is tried again, who is told, and what the run ends with."""

from __future__ import annotations

import pytest

from lakehouse.errors import CheckpointError, LakehouseError, SettingsError, StreamError
from lakehouse.runtime import troubles
from lakehouse.runtime.troubles import Troubles, pause_s
from lakehouse.runtime.watch import Watch

BROKEN = ("gold.a", "a", ValueError("no such thing\nand its stack trace"))


def test_a_pause_doubles_from_a_second_to_a_minute() -> None:
    assert [pause_s(failures) for failures in range(1, 10)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert pause_s(100_000) == 60


def test_each_failure_in_a_row_is_told_with_its_pause_and_one_after_success_is_the_first_again() -> None:
    said: list[str] = []
    found = Troubles(["a", "b"], said.append)

    found.add(*BROKEN)
    found.add("gold.a", "a", CheckpointError("put it back"))
    found.is_over("gold.a")
    found.add(*BROKEN)
    found.is_over("gold.a")
    found.is_over("gold.a")

    assert said == [
        "gold.a failed; retrying in 1 s: ValueError: no such thing",
        "gold.a failed; retrying in 2 s: put it back",
        "gold.a works again",
        "gold.a failed; retrying in 1 s: ValueError: no such thing",
        "gold.a works again",
    ]
    found.raise_any()


def test_what_fails_is_due_after_its_pause_and_what_works_always(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Troubles(["a", "b"], print)

    found.add(*BROKEN)
    monkeypatch.setattr(troubles, "FIRST_PAUSE_S", 0)
    found.add("silver.a", "a", ValueError())
    found.add_last("gate of a", "a", ValueError())

    names = ("gold.a", "silver.a", "gate of a", "gold.b")
    assert [found.is_due(name) for name in names] == [False, True, False, True]
    assert [found.will_be_tried(name) for name in names] == [True, True, False, False]
    assert [name in found for name in names] == [True, True, True, False]


def test_a_bounded_one_is_left_after_its_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(troubles, "FIRST_PAUSE_S", 0.25)
    said: list[str] = []
    found = Troubles(["a", "b"], said.append, retries=2)

    for _ in range(3):
        assert found.will_be_tried("gold.a") is bool(said)
        found.add(*BROKEN)

    assert not found.will_be_tried("gold.a")
    assert said == [
        "gold.a failed; retrying in 0.25 s: ValueError: no such thing",
        "gold.a failed; retrying in 0.5 s: ValueError: no such thing",
        "gold.a has failed 3 times and is left to the next run: ValueError: no such thing",
    ]
    with pytest.raises(StreamError, match=r"^gold\.a failed: ValueError: no such thing$") as raised:
        found.raise_any()
    assert isinstance(raised.value.__cause__, ValueError)


def test_a_run_of_one_stream_ends_with_its_first_failure_as_it_is() -> None:
    said: list[str] = []
    refusal = SettingsError("set it as it was")

    with pytest.raises(LakehouseError) as raised:
        Troubles(["a"], said.append).add("gold.a", "a", refusal)

    assert raised.value is refusal
    assert said == []


def test_a_run_ends_when_no_stream_is_well_with_the_first_failure_and_the_others_names() -> None:
    said: list[str] = []
    found = Troubles(["a", "b"], said.append)
    found.add("gold.a", "a", SettingsError("set it as it was"))
    found.add("silver.a", "a", ValueError())
    found.add("gold.a", "a", SettingsError("set it as it was, please"))

    with pytest.raises(SettingsError) as raised:
        found.add("bronze.b", "b", ValueError())

    assert str(raised.value) == "set it as it was, please; failed too: silver.a, bronze.b"
    assert raised.value.exit_code == 2
    assert len(said) == 3


def test_a_watch_is_told_of_each_failure_and_once_of_its_end() -> None:
    told: list[tuple[str, ...]] = []

    class Noting(Watch):
        def on_failure(self, name: str, reason: str) -> None:
            told.append(("failed", name, reason))

        def on_recovery(self, name: str) -> None:
            told.append(("works", name))

    found = Troubles(["a", "b"], lambda _text: None, watch=Noting())
    found.add(*BROKEN)
    found.add_last("gate of a", "a", CheckpointError("put it back"))
    found.is_over("gold.a")
    found.is_over("gold.a")

    assert told == [
        ("failed", "gold.a", "ValueError: no such thing"),
        ("failed", "gate of a", "put it back"),
        ("works", "gold.a"),
    ]
