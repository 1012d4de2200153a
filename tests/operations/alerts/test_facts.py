"""What each kind of rule finds in the facts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from lakehouse.operations.alerts.facts import Facts, LandedCounts, Window, find, least_of, step
from lakehouse.operations.alerts.rules import (
    AuditFailedRule,
    AuditOldRule,
    DeadLetterRule,
    FreshnessRule,
    GateRule,
    HealthRule,
    LagRule,
    MetricRule,
    Rule,
)
from lakehouse.operations.telemetry import (
    Audit,
    Health,
    LayerLag,
    Observation,
    PartitionLag,
    StreamGate,
    StreamState,
    Word,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LAG = LagRule(name="r", kind="lag", layer="bronze", seconds=30)
LAG_RECORDS = LagRule(name="r", kind="lag", layer="gold", records=10)
LETTERS = DeadLetterRule(name="r", kind="dead_letter_rate", over=0.1)
FRESH = FreshnessRule(name="r", kind="freshness", seconds=60)
GATE = GateRule(name="r", kind="gate_closed")
FAILED = AuditFailedRule(name="r", kind="audit_failed")
HEALTH = HealthRule(name="r", kind="health", words=(Word.STALLED, Word.STOPPED))
OLD = AuditOldRule(name="r", kind="audit_old", seconds=3600)


def stream(
    *,
    seconds: tuple[float | None, ...] = (0.0,),
    gold: tuple[int | None, ...] = (0,),
    gate: StreamGate | None = None,
    age_s: float | None = 5.0,
    audit: Audit | None = None,
) -> StreamState:
    return StreamState(
        "sales",
        Health(Word.WELL, ""),
        tuple(PartitionLag("t", number, 0, 0, 0, one) for number, one in enumerate(seconds)),
        tuple(LayerLag("gold", "gold.a", "silver.b", records, 0.0) for records in gold),
        (),
        (),
        (),
        0,
        gate,
        None if age_s is None else NOW - timedelta(seconds=age_s),
        age_s,
        audit=audit,
    )


def facts(
    state: StreamState,
    *,
    lake_reason: str | None = None,
    events_reason: str | None = None,
    landed: LandedCounts | None = None,
) -> Facts:
    seen = Observation(NOW, (state,), lake_reason, events_reason=events_reason)
    return Facts(seen, landed={} if landed is None else {"r": {"sales": landed}})


def verdicts(rule: Rule, known: Facts) -> list[bool | None]:
    found = find(rule, known, NOW)
    assert found is not None
    return [one.is_so for one in found]


CLOSED = StreamGate(is_open=False, changed_at=NOW, reasons=("too few rows",))
CLEAN = Audit(NOW, is_clean=True)
OPENED = StreamGate(is_open=True, changed_at=NOW, reasons=())


@pytest.mark.parametrize(
    ("rule", "known", "expected"),
    [
        (LAG, facts(stream(seconds=(0.0, 30.0))), [False]),
        (LAG, facts(stream(seconds=(0.0, 30.1))), [True]),
        (LAG, facts(stream(seconds=(None, 31.0))), [True]),
        (LAG, facts(stream(seconds=(None, 29.0))), [None]),
        (LAG, facts(stream(seconds=())), [None]),
        (LAG_RECORDS, facts(stream(gold=(5, 5))), [False]),
        (LAG_RECORDS, facts(stream(gold=(5, 6))), [True]),
        (FRESH, facts(stream(age_s=60)), [False]),
        (FRESH, facts(stream(age_s=61)), [True]),
        (FRESH, facts(stream(age_s=None)), []),
        (FRESH, facts(stream(age_s=61), lake_reason="away"), [None]),
        (GATE, facts(stream()), []),
        (GATE, facts(stream(gate=OPENED)), [False]),
        (GATE, facts(stream(gate=CLOSED)), [True]),
        (LETTERS, facts(stream()), [None]),
        (LETTERS, facts(stream(), landed=LandedCounts(0, 0)), [False]),
        (LETTERS, facts(stream(), landed=LandedCounts(100, 10)), [False]),
        (LETTERS, facts(stream(), landed=LandedCounts(100, 11)), [True]),
        (FAILED, facts(stream()), []),
        (FAILED, facts(stream(audit=CLEAN)), [False]),
        (FAILED, facts(stream(audit=Audit(NOW, is_clean=False))), [True]),
        (FAILED, facts(stream(), events_reason="away"), [None]),
        (FAILED, facts(stream(audit=CLEAN), events_reason="away"), [None]),
        (OLD, facts(stream()), [True]),
        (OLD, facts(stream(age_s=None)), []),
        (OLD, facts(stream(audit=replace(CLEAN, at=NOW - timedelta(hours=1)))), [False]),
        (OLD, facts(stream(audit=replace(CLEAN, at=NOW - timedelta(hours=2)))), [True]),
        (OLD, facts(stream(), events_reason="away"), [None]),
    ],
)
def test_what_a_rule_finds_of_a_stream(rule: Rule, known: Facts, expected: list[bool | None]) -> None:
    assert verdicts(rule, known) == expected


def test_a_rule_of_another_stream_finds_nothing() -> None:
    assert verdicts(GATE.model_copy(update={"stream": "calls"}), facts(stream(gate=CLOSED))) == []


def windows(*values: float | None, service: str = "a", last: datetime = NOW) -> list[Window]:
    """Return windows minute by minute, the last one ending at `last`; None stands for a missing one."""
    starts = [last - timedelta(minutes=len(values) - number) for number in range(len(values))]
    return [
        Window(service, start, value)
        for start, value in zip(starts, values, strict=True)
        if value is not None
    ]


OVER = MetricRule(name="r", kind="metric", metric="cpu", over=90, windows=2)
UNDER = MetricRule(name="r", kind="metric", metric="cpu", under=10, windows=2)


@pytest.mark.parametrize(
    ("rule", "series", "expected"),
    [
        (OVER, windows(91, 91), [True]),
        (OVER, windows(91, 90), [False]),
        (OVER, windows(90, 91), [False]),
        (OVER, windows(0, 91, 91), [True]),
        (OVER, windows(91), [False]),
        (OVER, windows(91, None, 91), [False]),
        (UNDER, windows(9, 9), [True]),
        (UNDER, windows(9, 10), [False]),
        (OVER, [*windows(91, 91), *windows(1, 1, service="b")], [True, False]),
        (OVER, windows(91, 91, last=NOW - timedelta(seconds=3600)), [True]),
        (OVER, windows(91, 91, last=NOW - timedelta(seconds=3601)), []),
        (OVER, [], []),
    ],
)
def test_what_a_rule_finds_of_a_metric(rule: Rule, series: list[Window], expected: list[bool | None]) -> None:
    assert verdicts(rule, Facts(windows={"r": series})) == expected


def test_nothing_can_be_known_without_facts() -> None:
    assert find(OVER, Facts(), NOW) is None
    assert find(GATE, Facts(), NOW) is None


def test_what_is_found_is_said_in_words() -> None:
    (found,) = find(OVER, Facts(windows={"r": windows(91, 92.5)}), NOW) or []
    assert found.labels == (("metric", "cpu"), ("service", "a"))
    assert found.what == "avg of cpu of a is 92.5 at 2026-03-01 11:59:00 UTC, over 90 for 2 windows"
    assert found.value == 92.5
    (gate,) = find(GATE, facts(stream(gate=CLOSED)), NOW) or []
    assert gate.what == "the gate of sales is closed: too few rows"


@pytest.mark.parametrize(
    ("word", "is_so"),
    [(Word.STOPPED, True), (Word.STALLED, True), (Word.BEHIND, False), (Word.UNKNOWN, None)],
)
def test_a_rule_of_health_goes_by_the_streams_word(word: Word, is_so: bool | None) -> None:
    state = replace(stream(), health=Health(word, "4 rows wait"))
    assert verdicts(HEALTH, facts(state)) == [is_so]


def test_what_every_window_has_reached_is_the_least_of_them_or_the_greatest_under_a_threshold() -> None:
    def window(service: str, ago: int, value: float) -> Window:
        return Window(service, NOW - timedelta(minutes=ago), value)

    windows = [
        window("a", 3, 50),
        window("a", 2, 95),
        window("a", 1, 91),
        window("gap", 3, 95),
        window("gap", 1, 95),
        window("one", 1, 95),
        window("old", 101, 95),
        window("old", 100, 95),
    ]
    over = MetricRule(name="r", kind="metric", metric="cpu", over=90, windows=2)
    under = MetricRule(name="r", kind="metric", metric="cpu", under=90, windows=2)
    assert least_of(over, windows, NOW) == {"a": 91}
    assert least_of(under, windows, NOW) == {"a": 95}


def test_the_names_of_an_alert_are_short_and_of_two_services_two() -> None:
    names = [f"{'x' * 900_000}{number}" for number in range(2)]
    series = [one for name in names for one in windows(91, 91, service=name)]
    found = find(OVER, Facts(windows={"r": series}), NOW) or []
    assert len({one.labels for one in found}) == 2
    assert max(len(str(one)) for one in found) < 3_000


def test_a_rule_that_cannot_be_judged_is_named_and_others_are_judged() -> None:
    """The rule gets a window without a value, which no reader should return."""
    broken = Facts(windows={"broken": [Window("a", NOW, None)], "r": windows(91, 91)})  # type: ignore[arg-type]
    other, said = OVER.model_copy(update={"name": "broken", "windows": 1}), list[str]()
    _, told = step(broken, [other, OVER], {}, NOW, said.append)
    assert [one.alert.rule for one in told] == ["r"]
    assert len(said) == 1
    assert said[0].startswith("rule broken could not be evaluated: TypeError")
