"""After a conflict, a write is tried again, with pauses that grow and vary."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lakehouse.storage import tables
from lakehouse.storage.tables import writing


class ConflictError(Exception):
    """Stands in for Delta's, which come from the JVM."""


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the pauses instead of making them."""
    made = list[float]()
    monkeypatch.setattr(writing, "_CONFLICTS", (ConflictError,))
    monkeypatch.setattr(writing, "time", SimpleNamespace(sleep=made.append))  # py4j's threads sleep, too
    return made


def always() -> int:
    raise ConflictError


def test_a_write_that_meets_no_other_makes_no_pause(pauses: list[float]) -> None:
    assert tables.retry_on_conflict(lambda: 7) == 7
    assert pauses == []


def test_the_pauses_grow_to_about_half_a_minute_and_then_the_conflict_is_told(pauses: list[float]) -> None:
    with pytest.raises(ConflictError):
        tables.retry_on_conflict(always)

    assert len(pauses) == 11
    assert 15 < sum(pauses) < 47
    assert max(pauses[:3]) < 0.61
    assert all(2.5 <= pause <= 7.5 for pause in pauses[6:])


def test_two_writers_do_not_pause_alike(pauses: list[float]) -> None:
    for _ in range(2):
        with pytest.raises(ConflictError):
            tables.retry_on_conflict(always)

    assert pauses[:11] != pauses[11:]


def test_it_ends_with_the_first_attempt_that_succeeds(pauses: list[float]) -> None:
    left = [ConflictError(), ConflictError()]

    def write() -> str:
        if left:
            raise left.pop()
        return "written"

    assert tables.retry_on_conflict(write) == "written"
    assert len(pauses) == 2


def test_any_other_failure_is_not_tried_again(pauses: list[float]) -> None:
    def write() -> int:
        raise ValueError("no conflict")

    with pytest.raises(ValueError, match="no conflict"):
        tables.retry_on_conflict(write)
    assert pauses == []
