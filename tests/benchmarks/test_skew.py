"""What benchmarks.skew computes without a run: heaps from logs, mixed loads, expected results."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest

from benchmarks.heap import Collection, Heap, HeapLog, collections
from benchmarks.skew_burst import Lag
from benchmarks.skew_loads import EVEN, LAGGING_S, cases, mixed, tallied
from lakehouse.dev.samples.loads import GENERATORS, Load
from lakehouse.settings import Settings
from tests.support.sampling import decoded, event_time_ms

LOG = """\
[0.005s][info][gc] Using Parallel
[1.250s][info][gc] GC(0) Pause Young (Allocation Failure) 512M->120M(981M) 12.500ms
[2.000s][info][gc] GC(1) Pause Full (Metadata GC Threshold) 130M->80M(900M) 100.000ms
"""


def test_collections_are_read_from_a_log() -> None:
    assert collections(LOG) == [
        Collection(is_full=False, before_mb=512, after_mb=120, committed_mb=981, pause_s=0.0125),
        Collection(is_full=True, before_mb=130, after_mb=80, committed_mb=900, pause_s=0.1),
    ]


def test_a_heap_log_knows_what_came_since_it_was_opened(tmp_path: Path) -> None:
    file = tmp_path / "gc-1.log"
    file.write_text(LOG)
    log = HeapLog(file)
    assert log.heap() == Heap(before_mb=0, after_mb=0, full=0, pause_s=0.0)
    with file.open("a") as more:
        more.write(LOG)
    assert log.heap() == Heap(before_mb=512, after_mb=120, full=1, pause_s=0.1125)


@pytest.mark.parametrize("stream", GENERATORS)
def test_every_case_has_as_many_events_and_none_of_them_is_faulty(stream: str) -> None:
    for loads in cases(stream, 1000, seed=1).values():
        assert Counter(sample.kind for sample in mixed(loads, Settings())) == {"valid": 1000}


@pytest.mark.parametrize("stream", GENERATORS)
def test_a_key_for_each_event_is_a_gold_row_for_each_event(stream: str) -> None:
    loads = cases(stream, 1000, seed=1)
    assert tallied(loads["a key for each event"], Settings()).rows == 1000
    assert (tallied(loads[EVEN], Settings()).rows or 0) < 900


def test_a_lagging_producer_sends_all_the_while() -> None:
    loads = cases("metrics", 1000, seed=1)["a lagging producer"]
    times = [event_time_ms(sample) for sample in mixed(loads, Settings())]
    is_behind = [time < max(times) - LAGGING_S * 1000 / 2 for time in times]
    assert [sum(is_behind[start : start + 100]) for start in range(0, 1000, 100)] == [25] * 10


@pytest.mark.parametrize("stream", GENERATORS)
def test_a_tally_counts_events_and_adds_their_values_up(stream: str) -> None:
    settings, load = Settings(), Load(stream, 2000, seed=3)
    tally, samples = tallied([load], settings), list(load.samples(settings))
    value = {"metrics": "value", "sales": "value", "transactions": "amount"}.get(stream)
    total = (
        sum(Decimal(str(decoded(sample)[value])) for sample in samples)
        if value
        else sum(sample.source == 0 for sample in samples)
    )
    assert (tally.events, tally.total) == (2000, total)


def test_rows_of_calls_are_calls() -> None:
    settings = Settings()
    assert tallied([Load("calls", 100, span_s=10, shape={"hot_pair": 1.0})], settings).rows == 1
    # Each record is a minute and a half after the previous one: more than the gap of a minute.
    assert tallied([Load("calls", 10, span_s=900, shape={"hot_pair": 1.0})], settings).rows == 10


def test_the_most_lag_is_that_of_a_stretch_of_time() -> None:
    lag = Lag([(0, 10), (1, 12), (2, 500), (3, 90), (4, 11)])
    assert [lag.most(0, 2), lag.most(2), lag.most(3), lag.most(5)] == [12, 500, 90, 0]
    assert lag.last() == 11
