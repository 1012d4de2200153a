from collections import Counter
from datetime import UTC, datetime

import pytest

from lakehouse.common.errors import SettingsError
from lakehouse.dev.samples import Sample, spread_times
from lakehouse.dev.samples.metrics import ENVIRONMENTS, HOT_SERVICE, METRICS, SERVICES, samples
from tests.support.sampling import CONTRACTS, NOW_MS, class_of, decoded, event_time_ms

CONTRACT = CONTRACTS["metrics"]


def test_a_seed_gives_these_bytes_in_every_release() -> None:
    assert CONTRACT.generate(3, seed=42)[-1] == Sample(
        b"inventory",
        b'{"serviceId":"inventory","metricName":"request_latency_ms","value":25.476,'
        b'"timestamp":1767225600000,"environment":"production"}',
        "valid",
    )


def test_records_are_of_every_series_with_the_service_as_the_key() -> None:
    produced = CONTRACT.generate(20_000, late=0.1, duplicates=0.1)

    records = [decoded(sample) for sample in produced]
    assert {record["serviceId"] for record in records} == set(SERVICES)
    assert {record["metricName"] for record in records} == set(METRICS)
    assert {record.get("environment") for record in records} == {None, *ENVIRONMENTS}
    assert [(s.key or b"").decode() for s in produced] == [record["serviceId"] for record in records]


def test_values_are_whole_and_fractional() -> None:
    records = [decoded(sample) for sample in CONTRACT.generate(10_000)]

    assert Counter(type(record["value"]) for record in records).keys() == {int, float}


def test_one_valid_sample_has_each_of_the_times_in_order() -> None:
    times = list(spread_times(5000, end_ms=NOW_MS, span_s=600))

    assert [event_time_ms(sample) for sample in CONTRACT.generate(5000)] == times


@pytest.mark.parametrize("allowed_lateness_s", [1, 60])
def test_late_samples_within_the_allowed_lateness_keep_to_its_half(allowed_lateness_s: int) -> None:
    produced = CONTRACT.generate(4000, late=0.25, allowed_lateness_s=allowed_lateness_s)
    times = spread_times(4000, end_ms=NOW_MS, span_s=600)

    behind = [
        due - event_time_ms(sample)
        for sample, due in zip(produced, times, strict=True)
        if sample.kind == "late_within"
    ]
    assert max(behind) <= allowed_lateness_s * 500


def test_malformed_samples_have_the_key_of_a_service() -> None:
    malformed = [s for s in CONTRACT.generate(6400, malformed=0.05) if class_of(s) == "malformed"]

    assert {(sample.key or b"").decode() for sample in malformed} <= set(SERVICES)


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
    malformed = CONTRACT.generate(3200, malformed=1.0)
    named = [sample for sample in malformed if sample.kind.startswith(f"malformed:{prefix}")]

    assert named
    for sample in named:
        assert CONTRACT.breach(sample) == ("not UTF-8 JSON" if sample.kind in unreadable else reason), sample


def test_what_is_not_text_is_not_utf8_and_a_tombstone_has_no_value() -> None:
    values = {sample.kind: sample.value for sample in CONTRACT.generate(100, malformed=1.0)}

    assert values["malformed:tombstone"] is None
    assert values["malformed:empty"] == b""
    for kind in ("malformed:not_utf8", "malformed:truncated_utf8"):
        with pytest.raises(UnicodeDecodeError):
            (values[kind] or b"").decode()


def test_iso_times_are_exact_to_the_millisecond() -> None:
    iso = [
        decoded(sample)["timestamp"]
        for sample in samples(2000, iter([NOW_MS + 7] * 2000), seed=3)
        if b'"timestamp":"' in (sample.value or b"")
    ]

    expected = datetime(2026, 1, 1, 0, 0, 0, 7000, tzinfo=UTC)
    assert {datetime.fromisoformat(text) for text in iso} == {expected}


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_hot_series_has_the_share_asked_for(share: float) -> None:
    produced = CONTRACT.generate(10_000, hot_series=share, late=0.1, duplicates=0.1)

    hot = [decoded(sample) for sample in produced if sample.key == HOT_SERVICE.encode()]
    assert len(hot) / 10_000 == pytest.approx(share, abs=0.02)
    assert {record["metricName"] for record in hot} <= {METRICS[0]}
    with pytest.raises(SettingsError, match=r"hot series is 2, but a share of all events must be between 0"):
        CONTRACT.generate(10, hot_series=2)


def test_the_series_of_many_services_take_turns() -> None:
    produced = CONTRACT.generate(6000, services=400)

    records = [decoded(sample) for sample in produced]
    series = Counter((record["serviceId"], record["metricName"]) for record in records)
    assert len(series) == 400 * len(METRICS)
    assert set(series.values()) == {3}
    assert [(s.key or b"").decode() for s in produced] == [record["serviceId"] for record in records]
