"""What holds for every stream's samples; test_samples_<stream>.py tests what is specific to a stream."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from typing import Any

import pytest

from lakehouse.common.errors import SettingsError
from lakehouse.dev.samples import Sample, paced_times, spread_times
from tests.support.sampling import CONTRACTS, HOUR_MS, NOW_MS, WEEK_S, Contract, class_of, event_time_ms


@pytest.fixture(params=CONTRACTS)
def stream(request: pytest.FixtureRequest) -> Contract:
    return CONTRACTS[request.param]


def test_same_arguments_give_the_same_samples_and_another_seed_gives_others(stream: Contract) -> None:
    shares = {"malformed": 0.1, "late": 0.1, "duplicates": 0.1}

    assert stream.generate(3000, seed=5, **shares) == stream.generate(3000, seed=5, **shares)
    assert stream.generate(3000, seed=5, **shares) != stream.generate(3000, seed=6, **shares)


def test_everything_but_the_malformed_keeps_the_contract(stream: Contract) -> None:
    produced = stream.generate(5000, malformed=0.05, late=0.1, duplicates=0.1)

    sound = [sample for sample in produced if class_of(sample) != "malformed"]
    assert [sample for sample in sound if stream.breach(sample) is not None] == []
    assert any(not (sample.key or b"").isascii() for sample in sound)


def test_messages_are_what_json_dumps_writes(stream: Contract) -> None:
    for sample in stream.generate(2000):
        text = (sample.value or b"").decode()
        record = json.loads(text, parse_float=lambda literal: f"<{literal}>")
        dumped = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
        assert dumped.replace('"<', "").replace('>"', "") == text


def test_times_come_in_both_notations(stream: Contract) -> None:
    stamps = [json.loads(sample.value or b"")["timestamp"] for sample in stream.generate(10_000)]

    iso = [stamp for stamp in stamps if isinstance(stamp, str)]
    assert 100 < len(iso) < 300
    assert {stamp[-6:] for stamp in iso} == {"+00:00", "+02:00", "-05:00", "+05:30"}


def test_shares_are_exact_to_rounding(stream: Contract) -> None:
    for count in (1, 7, 999, 1000, 1001, 2345):
        produced = stream.generate(count, malformed=0.013, late=0.2, duplicates=0.3)

        counted = Counter(map(class_of, produced))
        assert len(produced) == count
        assert counted["malformed"] == round(count * 0.013), count
        assert counted["late"] == round(count * 0.2), count
        assert counted["duplicate"] == round(count * 0.3), count


def test_special_samples_are_spread_over_the_run(stream: Contract) -> None:
    produced = stream.generate(5000, malformed=0.01, late=0.01, duplicates=0.01)

    for start in range(0, 5000, 1000):
        counted = Counter(map(class_of, produced[start : start + 1000]))
        assert counted == {"valid": 970, "malformed": 10, "late": 10, "duplicate": 10}


def test_shares_may_fill_the_whole(stream: Contract) -> None:
    every_event_twice = Counter(sample.kind for sample in stream.generate(4000, duplicates=0.5))

    assert every_event_twice == {"valid": 2000, "duplicate": 2000}
    assert {s.kind for s in stream.generate(1000, malformed=1.0)} == set(stream.malformed_kinds)
    assert len(stream.generate(1000, malformed=0.1, late=0.3, duplicates=0.3)) == 1000


def test_shares_that_do_not_fit_are_refused(stream: Contract) -> None:
    unfit: tuple[dict[str, Any], ...] = (
        {"malformed": 0.7, "late": 0.4},
        {"duplicates": 0.6},
        {"late": -0.1},
        {"malformed": float("nan")},
    )
    for shares in unfit:
        with pytest.raises(SettingsError, match=r"malformed \+ late \+ 2 × duplicates at most 1"):
            stream.generate(10, **shares)


def test_duplicates_repeat_an_earlier_valid_sample_once(stream: Contract) -> None:
    originals: Counter[Sample] = Counter()
    for sample in stream.generate(10_000, duplicates=0.3, malformed=0.05):
        if sample.kind == "valid":
            originals[sample] += 1
        elif sample.kind == "duplicate":
            originals[sample._replace(kind="valid")] -= 1
            assert originals[sample._replace(kind="valid")] >= 0


def test_malformed_kinds_take_turns_and_each_breaks_the_contract(stream: Contract) -> None:
    turns = 10
    malformed = stream.generate(turns * len(stream.malformed_kinds), malformed=1.0)

    assert Counter(sample.kind for sample in malformed) == dict.fromkeys(stream.malformed_kinds, turns)
    assert [sample.kind for sample in malformed if stream.breach(sample) is None] == []


def test_a_sample_from_the_future_is_breaking_nothing_else(stream: Contract) -> None:
    malformed = stream.generate(1000, malformed=1.0, ahead_s=7200)

    future = [sample for sample in malformed if sample.kind.endswith("timestamp_in_the_future")]
    assert future
    for sample in future:
        assert stream.breach(sample, latest_ms=NOW_MS + 3 * HOUR_MS) is None
        assert event_time_ms(sample) > NOW_MS + HOUR_MS


@pytest.mark.parametrize("allowed_lateness_s", [1, WEEK_S])
def test_late_samples_are_behind_the_time_that_was_due(stream: Contract, allowed_lateness_s: int) -> None:
    produced = stream.generate(4000, late=0.25, allowed_lateness_s=allowed_lateness_s)
    times = spread_times(4000, end_ms=NOW_MS, span_s=600)

    behind: dict[str, list[int]] = {"valid": [], "late_within": [], "late_beyond": []}
    for sample, due in zip(produced, times, strict=True):
        behind[sample.kind].append(due - event_time_ms(sample))
    assert min(behind["valid"]) == 0
    assert len(behind["late_within"]) == 750
    assert len(behind["late_beyond"]) == 250
    assert min(behind["late_within"]) > 0
    assert max(behind["late_within"]) < min(7 * HOUR_MS, allowed_lateness_s * 1000)
    assert min(behind["late_beyond"]) >= allowed_lateness_s * 1000 + 24 * HOUR_MS
    assert max(behind["late_beyond"]) <= allowed_lateness_s * 1000 + 72 * HOUR_MS


def test_valid_samples_come_in_the_order_of_their_times(stream: Contract) -> None:
    times = [event_time_ms(sample) for sample in stream.generate(5000)]

    assert times == sorted(times)


def test_without_allowed_lateness_every_late_sample_is_beyond_it(stream: Contract) -> None:
    kinds = Counter(sample.kind for sample in stream.generate(100, late=0.2, allowed_lateness_s=0))

    assert kinds == {"valid": 80, "late_beyond": 20}


def test_spread_times_rise_evenly_and_end_now() -> None:
    assert list(spread_times(4, end_ms=10_000, span_s=2)) == [8500, 9000, 9500, 10_000]


def test_paced_times_start_when_first_drawn() -> None:
    now = 50.0
    times = paced_times(4, clock=lambda: now)
    now = 100.0

    assert list(islice(times, 5)) == [100_250, 100_500, 100_750, 101_000, 101_250]
