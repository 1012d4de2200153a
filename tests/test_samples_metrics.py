import json
from collections import Counter
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pytest

from lakehouse.errors import SettingsError
from lakehouse.samples import Sample, paced_times, spread_times
from lakehouse.samples.metrics import ENVIRONMENTS, MALFORMED_KINDS, METRICS, SERVICES, samples

NOW_MS = 1_767_225_600_000
WEEK_S = 7 * 24 * 3600
HOUR_MS = 3_600_000


def generate(count: int, *, seed: int = 1, **shares: Any) -> list[Sample]:
    return list(samples(count, spread_times(count, end_ms=NOW_MS, span_s=600), seed=seed, **shares))


def event_time_ms(record: dict[str, Any]) -> int:
    timestamp = record["timestamp"]
    if isinstance(timestamp, int):
        return timestamp
    return round(datetime.fromisoformat(timestamp).timestamp() * 1000)


def refuse_constant(literal: str) -> None:
    raise ValueError(f"{literal} is not JSON")


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf")


def is_time(value: object, latest_ms: int) -> bool:
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return False
        return moment.tzinfo is not None and moment.timestamp() * 1000 <= latest_ms
    return type(value) is int and value <= latest_ms


def breach(value: bytes | None, latest_ms: int = NOW_MS + 300_000) -> str | None:
    """What the contract in DESIGN.md has against a message, by reading it the plain way; None if nothing."""
    try:
        record = json.loads((value or b"").decode("utf-8"), parse_constant=refuse_constant)
    except ValueError:
        return "not UTF-8 JSON"
    if not isinstance(record, dict):
        return "not an object"
    if not set(record) <= {"serviceId", "metricName", "value", "timestamp", "environment"}:
        return "unknown field"
    checks = {
        "serviceId": isinstance(record.get("serviceId"), str) and record["serviceId"] != "",
        "metricName": isinstance(record.get("metricName"), str) and record["metricName"] != "",
        "value": is_number(record.get("value")),
        "timestamp": is_time(record.get("timestamp"), latest_ms),
        "environment": record.get("environment", ENVIRONMENTS[0]) in ENVIRONMENTS,
    }
    return next((field for field, holds in checks.items() if not holds), None)


def test_same_arguments_give_the_same_samples_and_another_seed_gives_others() -> None:
    shares = {"malformed": 0.1, "late": 0.1, "duplicates": 0.1}

    assert generate(3000, seed=5, **shares) == generate(3000, seed=5, **shares)
    assert generate(3000, seed=5, **shares) != generate(3000, seed=6, **shares)


def test_a_seed_gives_these_bytes_in_every_release() -> None:
    assert generate(3, seed=42)[-1] == Sample(
        b"inventory",
        b'{"serviceId":"inventory","metricName":"request_latency_ms","value":25.476,'
        b'"timestamp":1767225600000,"environment":"production"}',
        "valid",
    )


def test_everything_but_the_malformed_keeps_the_contract() -> None:
    produced = [
        s for s in generate(20_000, malformed=0.05, late=0.1, duplicates=0.1) if "malformed" not in s.kind
    ]

    assert [s for s in produced if breach(s.value) is not None] == []
    records = [json.loads(s.value or b"") for s in produced]
    assert {record["serviceId"] for record in records} == set(SERVICES)
    assert {record["metricName"] for record in records} == set(METRICS)
    assert {record.get("environment") for record in records} == {None, *ENVIRONMENTS}
    assert [s.key.decode() for s in produced] == [record["serviceId"] for record in records]


def test_messages_are_what_json_dumps_writes() -> None:
    for sample in generate(2000):
        text = (sample.value or b"").decode()
        record = json.loads(text, parse_float=lambda literal: f"<{literal}>")
        dumped = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
        assert dumped.replace('"<', "").replace('>"', "") == text


def test_values_are_whole_and_fractional_and_times_come_in_both_notations() -> None:
    records = [json.loads(sample.value or b"") for sample in generate(10_000)]

    assert Counter(type(record["value"]) for record in records).keys() == {int, float}
    notations = Counter(type(record["timestamp"]) for record in records)
    assert 100 < notations[str] < 300
    offsets = {record["timestamp"][-6:] for record in records if isinstance(record["timestamp"], str)}
    assert offsets == {"+00:00", "+02:00", "-05:00", "+05:30"}


def test_one_valid_sample_has_each_of_the_times_in_order() -> None:
    times = list(spread_times(5000, end_ms=NOW_MS, span_s=600))

    assert [event_time_ms(json.loads(sample.value or b"")) for sample in generate(5000)] == times


@pytest.mark.parametrize("count", [1, 7, 999, 1000, 1001, 12_345])
def test_shares_are_exact_to_rounding(count: int) -> None:
    produced = generate(count, malformed=0.013, late=0.2, duplicates=0.3)

    counted = Counter(sample.kind.split(":")[0].split("_")[0] for sample in produced)
    assert len(produced) == count
    assert counted["malformed"] == round(count * 0.013)
    assert counted["late"] == round(count * 0.2)
    assert counted["duplicate"] == round(count * 0.3)


def test_special_samples_are_spread_over_the_run() -> None:
    produced = generate(20_000, malformed=0.01, late=0.01, duplicates=0.01)

    for start in range(0, 20_000, 1000):
        kinds = Counter(sample.kind.split(":")[0].split("_")[0] for sample in produced[start : start + 1000])
        assert kinds == {"valid": 970, "malformed": 10, "late": 10, "duplicate": 10}


def test_shares_may_fill_the_whole() -> None:
    every_event_twice = Counter(sample.kind for sample in generate(4000, duplicates=0.5))

    assert every_event_twice == {"valid": 2000, "duplicate": 2000}
    assert {sample.kind for sample in generate(1000, malformed=1.0)} == set(MALFORMED_KINDS)
    assert len(generate(1000, malformed=0.1, late=0.3, duplicates=0.3)) == 1000


@pytest.mark.parametrize(
    "shares",
    [
        {"malformed": 0.7, "late": 0.4},
        {"duplicates": 0.6},
        {"late": -0.1},
        {"malformed": float("nan")},
    ],
)
def test_shares_that_do_not_fit_are_refused(shares: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"malformed \+ late \+ 2 × duplicates at most 1"):
        generate(10, **shares)


def test_duplicates_repeat_an_earlier_valid_sample_once() -> None:
    produced = generate(10_000, duplicates=0.3, malformed=0.05)

    originals: Counter[tuple[bytes, bytes | None]] = Counter()
    for sample in produced:
        if sample.kind == "valid":
            originals[sample.key, sample.value] += 1
        elif sample.kind == "duplicate":
            originals[sample.key, sample.value] -= 1
            assert originals[sample.key, sample.value] >= 0


def test_malformed_kinds_take_turns_and_each_breaks_the_contract() -> None:
    malformed = [sample for sample in generate(6400, malformed=0.05) if sample.kind.startswith("malformed:")]

    assert Counter(sample.kind for sample in malformed) == dict.fromkeys(
        MALFORMED_KINDS, 320 // len(MALFORMED_KINDS)
    )
    assert [sample.kind for sample in malformed if breach(sample.value) is None] == []
    assert {sample.key.decode() for sample in malformed} <= set(SERVICES)


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [
        ("service_id_", "serviceId"),
        ("metric_name_", "metricName"),
        ("value_", "value"),
        ("timestamp_", "timestamp"),
    ],
)
def test_a_malformed_field_is_the_one_that_its_kind_names(prefix: str, reason: str) -> None:
    unreadable = {"malformed:value_nan", "malformed:value_infinity", "malformed:value_minus_infinity"}
    named = [
        sample for sample in generate(3200, malformed=1.0) if sample.kind.startswith(f"malformed:{prefix}")
    ]

    assert named
    for sample in named:
        assert breach(sample.value) == ("not UTF-8 JSON" if sample.kind in unreadable else reason), sample


def test_what_is_not_text_is_not_utf8_and_a_tombstone_has_no_value() -> None:
    values = {sample.kind: sample.value for sample in generate(len(MALFORMED_KINDS), malformed=1.0)}

    assert values["malformed:tombstone"] is None
    assert values["malformed:empty"] == b""
    for kind in ("malformed:not_utf8", "malformed:truncated_utf8"):
        with pytest.raises(UnicodeDecodeError):
            (values[kind] or b"").decode()


def test_a_sample_from_the_future_is_breaking_nothing_else() -> None:
    future = [
        s for s in generate(3200, malformed=1.0, ahead_s=7200) if s.kind.endswith("timestamp_in_the_future")
    ]

    assert future
    for sample in future:
        assert breach(sample.value, latest_ms=NOW_MS + 3 * HOUR_MS) is None
        assert event_time_ms(json.loads(sample.value or b"")) > NOW_MS + HOUR_MS


@pytest.mark.parametrize("allowed_lateness_s", [1, 60, WEEK_S])
def test_late_samples_are_behind_the_time_that_was_due(allowed_lateness_s: int) -> None:
    produced = generate(4000, late=0.25, allowed_lateness_s=allowed_lateness_s)
    times = spread_times(4000, end_ms=NOW_MS, span_s=600)

    behind: dict[str, list[int]] = {"valid": [], "late_within": [], "late_beyond": []}
    for sample, due in zip(produced, times, strict=True):
        behind[sample.kind].append(due - event_time_ms(json.loads(sample.value or b"")))
    assert set(behind["valid"]) == {0}
    assert len(behind["late_within"]) == 750
    assert len(behind["late_beyond"]) == 250
    assert min(behind["late_within"]) > 0
    assert max(behind["late_within"]) <= min(6 * HOUR_MS, allowed_lateness_s * 500)
    assert min(behind["late_beyond"]) >= allowed_lateness_s * 1000 + 24 * HOUR_MS
    assert max(behind["late_beyond"]) <= allowed_lateness_s * 1000 + 72 * HOUR_MS


def test_without_allowed_lateness_every_late_sample_is_beyond_it() -> None:
    kinds = Counter(sample.kind for sample in generate(100, late=0.2, allowed_lateness_s=0))

    assert kinds == {"valid": 80, "late_beyond": 20}


def test_spread_times_rise_evenly_and_end_now() -> None:
    assert list(spread_times(4, end_ms=10_000, span_s=2)) == [8500, 9000, 9500, 10_000]


def test_paced_times_start_when_first_drawn() -> None:
    now = 50.0
    times = paced_times(4, clock=lambda: now)
    now = 100.0

    assert list(islice(times, 5)) == [100_250, 100_500, 100_750, 101_000, 101_250]


def test_iso_times_are_exact_to_the_millisecond() -> None:
    iso = [
        json.loads(sample.value or b"")["timestamp"]
        for sample in samples(2000, iter([NOW_MS + 7] * 2000), seed=3)
        if b'"timestamp":"' in (sample.value or b"")
    ]

    expected = datetime(2026, 1, 1, 0, 0, 0, 7000, tzinfo=UTC)
    assert {datetime.fromisoformat(text) for text in iso} == {expected}
