from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import islice, pairwise
from typing import Any

import pytest

from lakehouse.common.errors import SettingsError
from lakehouse.dev.samples import Sample, paced_times
from lakehouse.dev.samples.calls import HOT_CALLER, HOT_PAIR, PAYLOADS, TOPICS, samples
from tests.support.sampling import CONTRACTS, class_of, decoded, event_time_ms

CONTRACT = CONTRACTS["calls"]
GAP_MS = 60_000
Call = list[tuple[int, int]]
"""The records of a call: times and sources, in order."""


def calls_of(accepted: Iterable[Sample], gap_ms: int = GAP_MS) -> dict[tuple[str, str], list[Call]]:
    """Return each pair's calls: series of records with at most the gap between neighbours."""
    records: dict[tuple[str, str], Call] = defaultdict(list)
    for sample in accepted:
        record = decoded(sample)
        records[record["user1"], record["user2"]].append((event_time_ms(sample), sample.source))
    found: dict[tuple[str, str], list[Call]] = {}
    for pair, ordered in records.items():
        calls: list[Call] = []
        for record in sorted(ordered):
            if not calls or record[0] - calls[-1][-1][0] > gap_ms:
                calls.append([])
            calls[-1].append(record)
        found[pair] = calls
    return found


def accepted_of(count: int, **options: Any) -> list[Sample]:
    return [s for s in CONTRACT.generate(count, **options) if class_of(s) in {"valid", "late", "duplicate"}]


def share_of_one_sided(found: dict[tuple[str, str], list[Call]]) -> float:
    sides = [len({source for _, source in call}) for calls in found.values() for call in calls]
    return sides.count(1) / len(sides)


def test_a_record_has_its_payload_in_its_topic_and_the_pair_as_the_key() -> None:
    produced = CONTRACT.generate(10_000, late=0.1, duplicates=0.1)

    for sample in produced:
        record = decoded(sample)
        assert (sample.key or b"").decode() == f"{record['user1']}-{record['user2']}"
        assert record["user1"] != record["user2"]
        assert PAYLOADS[1 - sample.source] not in record
    by_topic = Counter(sample.source for sample in produced)
    assert by_topic.keys() == set(range(len(TOPICS)))
    assert min(by_topic.values()) > 4000


def test_no_two_pairs_have_the_same_key() -> None:
    pairs = {(s.key, decoded(s)["user1"], decoded(s)["user2"]) for s in CONTRACT.generate(30_000)}

    assert len({key for key, _, _ in pairs}) == len(pairs)
    assert all((key or b"").count(b"-") == 1 for key, _, _ in pairs)


def test_payloads_are_mostly_objects_and_also_everything_else_that_json_has() -> None:
    payloads = [decoded(s).get(PAYLOADS[s.source], "absent") for s in CONTRACT.generate(10_000)]

    assert {type(payload) for payload in payloads} == {dict, list, str, int, float, bool, type(None)}
    assert "absent" in payloads
    assert Counter(map(type, payloads))[dict] > 8000


@pytest.mark.parametrize(
    ("count", "span_s", "rate_options"),
    [
        (20_000, 3600, {}),
        (20_000, 600, {"late": 0.1, "duplicates": 0.1, "malformed": 0.05}),
        (20_000, 1, {}),
        (2000, 20_000, {}),
    ],
)
def test_calls_of_a_pair_are_clearly_apart_and_the_one_sided_have_their_share(
    count: int, span_s: float, rate_options: dict[str, Any]
) -> None:
    produced = accepted_of(count, span_s=span_s, one_sided=0.2, **rate_options)
    within = [sample for sample in produced if sample.kind != "late_beyond"]

    found = calls_of(within)
    assert share_of_one_sided(found) == pytest.approx(0.2, abs=0.03)
    for calls in found.values():
        for call in calls:
            steps = [later - earlier for (earlier, _), (later, _) in pairwise(call)]
            assert max(steps, default=0) < GAP_MS
        for call, following in pairwise(calls):
            assert following[0][0] - call[-1][0] >= 3 * GAP_MS


def test_pairs_call_again() -> None:
    found = calls_of(CONTRACT.generate(20_000, span_s=3600))

    assert sum(len(calls) > 1 for calls in found.values()) > 100


def test_calls_have_several_lengths_and_last_for_seconds() -> None:
    calls = [call for calls in calls_of(CONTRACT.generate(20_000)).values() for call in calls]

    assert Counter(map(len, calls)).keys() >= {1, 2, 3, 4, 5}
    assert sum(call[-1][0] - call[0][0] > 5000 for call in calls) > len(calls) / 2


@pytest.mark.parametrize("count", [2, 3, 10, 1000, 5000])
def test_one_call_at_most_is_cut_off_by_the_end_of_the_run(count: int) -> None:
    found = calls_of(CONTRACT.generate(count, span_s=5, one_sided=0.0))

    calls = [call for calls in found.values() for call in calls]
    assert sum(len({source for _, source in call}) == 1 for call in calls) <= 1


def test_all_calls_can_be_one_sided() -> None:
    assert share_of_one_sided(calls_of(CONTRACT.generate(5000, one_sided=1.0))) == 1


def test_late_records_within_the_allowed_lateness_are_calls_of_other_pairs() -> None:
    produced = CONTRACT.generate(10_000, late=0.2, one_sided=0.2)

    late = [sample for sample in produced if sample.kind == "late_within"]
    in_time = {sample.key for sample in produced if sample.kind == "valid"}
    assert in_time.isdisjoint(sample.key for sample in late)
    assert share_of_one_sided(calls_of(late)) == pytest.approx(0.2, abs=0.05)


def test_another_gap_is_kept_too() -> None:
    found = calls_of(CONTRACT.generate(5000, gap_s=5, one_sided=0.0), gap_ms=5000)

    assert share_of_one_sided(found) == 0
    for calls in found.values():
        for call, following in pairwise(calls):
            assert following[0][0] - call[-1][0] >= 15_000


def test_an_endless_run_goes_on() -> None:
    endless = samples(10**9, paced_times(100, clock=lambda: 0.0), seed=1)

    found = calls_of(islice(endless, 50_000))
    over = {pair: [call for call in calls if call[0][0] < 250_000] for pair, calls in found.items()}
    assert share_of_one_sided(over) == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_of_one_sided_calls_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(SettingsError, match=r"one-sided .* a share of all calls must be between 0 and 1"):
        CONTRACT.generate(10, one_sided=share)


@pytest.mark.parametrize("field", ["user1", "user2", "timestamp"])
def test_a_malformed_field_is_the_one_that_its_kind_names(field: str) -> None:
    malformed = CONTRACT.generate(100, malformed=1.0)
    named = [sample for sample in malformed if sample.kind.startswith(f"malformed:{field}_")]

    assert len(named) >= 4
    assert {CONTRACT.breach(sample) for sample in named} == {field}
    assert {sample.source for sample in malformed} == {0, 1}


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_the_hot_pair_has_its_share_of_the_records_in_one_call(share: float) -> None:
    produced = CONTRACT.generate(20_000, hot_pair=share)

    found = calls_of(produced)
    hot = found.pop(HOT_PAIR, [[]])
    assert len(hot) == 1
    assert len(hot[0]) / 20_000 == pytest.approx(share, abs=0.02)
    assert share_of_one_sided(found) == pytest.approx(0.1, abs=0.05)


def test_the_hot_caller_has_its_share_of_the_pairs() -> None:
    found = calls_of(CONTRACT.generate(20_000, hot_caller=0.9, one_sided=0.2))

    callers = Counter(user1 for user1, _ in found)
    assert callers[HOT_CALLER] / len(found) == pytest.approx(0.9, abs=0.02)
    assert share_of_one_sided(found) == pytest.approx(0.2, abs=0.03)


def test_calls_can_have_a_single_record() -> None:
    found = calls_of(CONTRACT.generate(20_000, alone=1.0, span_s=3600))

    assert {len(call) for calls in found.values() for call in calls} == {1}


@pytest.mark.parametrize("name", ["alone", "hot_pair", "hot_caller"])
def test_a_share_that_is_none_is_refused(name: str) -> None:
    options: dict[str, Any] = {name: 1.5}
    with pytest.raises(SettingsError, match=r" is 1.5, but a share of all .* must be between 0 and 1"):
        CONTRACT.generate(10, **options)
