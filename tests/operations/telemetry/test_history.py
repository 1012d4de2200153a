"""The streams' past: what a run records in ops.history, and the series that the API makes of it."""

from __future__ import annotations

import os
import socket
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from lakehouse.engine.ops_tables.history import HISTORY, Sample
from lakehouse.operations.telemetry import (
    Health,
    LayerLag,
    Observation,
    PartitionLag,
    QueryState,
    Run,
    StreamState,
    Word,
)
from lakehouse.operations.telemetry.history import Interval, Slots, intervals, recording, sample_of
from lakehouse.storage.tables import direct
from tests.support import pipeline

AT = pipeline.utc("2026-11-22T09:00:00")
ME = ("here", 7)


def state(
    word: Word = Word.WELL,
    *,
    ends: tuple[int | None, ...] = (120, 30),
    positions: tuple[int | None, ...] = (100, 30),
    waits: float | None = 12.5,
    letters: int | None = 3,
    runs: tuple[Run, ...] = (),
) -> StreamState:
    partitions = tuple(
        PartitionLag("t", number, position, end, 20 if number == 0 else 0, waits if number == 0 else 0.0)
        for number, (position, end) in enumerate(zip(positions, ends, strict=True))
    )
    health = Health(word, "a reason")
    return StreamState("sales", health, partitions=partitions, open_letters=letters, runs=runs)


def run(host: str, pid: int) -> Run:
    return Run(host, pid, ("bronze",), ("sales",), AT, AT, None)


def seen(seconds: float, *states: StreamState) -> Observation:
    return Observation(AT + timedelta(seconds=seconds), states)


def sample(seconds: float, **changes: object) -> Sample:
    first = Sample("sales", AT + timedelta(seconds=seconds), "well", 150, 130, 12.5, 3)
    return replace(first, **changes)  # type: ignore[arg-type]


def test_a_sample_sums_the_partitions_and_has_the_longest_wait() -> None:
    waits = LayerLag("gold", "gold.a", "silver.a", 4, 40.0)
    queries = (QueryState("bronze", "bronze", 1, AT), QueryState("gold.a", "gold", 1, AT))
    assert sample_of(replace(state(), layers=(waits,), queries=queries), AT) == sample(0, waited_s=40.0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (state(ends=(120, None)), sample(0, arrived=None)),
        (state(positions=(None, 30)), sample(0, landed=None)),
        (StreamState("sales", Health(Word.UNKNOWN, "a reason")), Sample("sales", AT, "unknown", *[None] * 4)),
    ],
    ids=["an end", "a position", "everything"],
)
def test_an_unknown_part_makes_a_sum_unknown(given: StreamState, expected: Sample) -> None:
    assert sample_of(given, AT) == expected


def test_a_slot_keeps_its_worst_word_its_longest_wait_and_its_last_counts() -> None:
    slots = Slots(*ME)
    assert slots.take(seen(0, state())) == []
    assert slots.take(seen(30, state(Word.STALLED, waits=70.0))) == []
    assert slots.take(seen(299, state(Word.BEHIND, ends=(190, 30), waits=None, letters=None))) == []
    slot = sample(299, word="stalled", arrived=220, waited_s=70.0, open_letters=None)
    assert slots.take(seen(300, state())) == [slot]
    assert slots.end() == [sample(300)]
    assert slots.end() == []


def test_a_clock_set_back_ends_the_slot() -> None:
    slots = Slots(*ME)
    slots.take(seen(0, state()))
    assert slots.take(seen(-3600, state())) == [sample(0)]


def test_only_the_process_that_has_run_a_stream_the_longest_records_it() -> None:
    slots = Slots(*ME)
    slots.take(seen(0, state(runs=(run("there", 1), run(*ME)))))
    assert slots.end() == []
    slots.take(seen(0, state(runs=(run(*ME), run("there", 1)))))
    assert slots.end() == [sample(0)]


def test_a_series_has_rates_between_near_samples_and_null_where_nothing_is_known() -> None:
    past = [
        sample(-10, arrived=1_000, landed=900),
        sample(290, arrived=1_600, landed=1_500, word="behind", waited_s=9.0, open_letters=5),
        sample(590, arrived=1_600, landed=1_600, waited_s=None),
        sample(1_800, arrived=9_000, landed=9_000),
        sample(2_090, arrived=10, landed=9_290, word="odd", open_letters=None),
    ]
    assert intervals(past[::-1], AT, timedelta(minutes=10), 5) == [
        Interval("behind", 600 / 600, 700 / 600, 9.0, 3),
        Interval(),
        Interval(),
        Interval("well", None, 1.0, 12.5, None),
        Interval(),
    ]


def test_rows_of_two_processes_for_one_slot_count_once() -> None:
    past = [sample(0, landed=100), sample(1, landed=100), sample(300, landed=400), sample(301, landed=400)]
    (first, second) = intervals(past, AT, timedelta(minutes=5), 2)
    assert (first.landed_per_s, second.landed_per_s) == (0.0, 300 / 300)


def test_a_run_records_what_it_has_seen_when_it_ends(tmp_path: Path) -> None:
    mine = run(socket.gethostname(), os.getpid())
    notices = list[str]()
    with recording(str(tmp_path), lambda: seen(0, state(runs=(mine,))), notices.append):
        pass
    at_or_later = ds.field("at") >= AT
    rows = direct.rows_where(str(tmp_path), HISTORY, HISTORY.schema.names, at_or_later)
    assert [Sample(**row) for row in rows] == [sample(0)]
    assert notices == []


def test_a_run_that_has_just_started_is_recorded_at_its_first_look(tmp_path: Path) -> None:
    with recording(str(tmp_path), lambda: seen(0, state()), list[str]().append, look_every_s=0.01):
        while not direct.exists(str(tmp_path), HISTORY):
            time.sleep(0.01)


def test_a_lake_that_cannot_be_written_is_reported_once_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "ops").write_text("a file where a directory should be")
    notices = list[str]()
    with recording(str(tmp_path), lambda: seen(0, state()), notices.append):
        assert threading.active_count() > 1
    assert len(notices) == 1
    assert notices[0].startswith("ops.history cannot be written: ")
