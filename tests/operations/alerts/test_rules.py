"""The file of alerting rules is read as a whole, and errors in it are reported with a way to fix them."""

from __future__ import annotations

import tomllib

import pytest

from lakehouse.common.errors import SettingsError
from lakehouse.operations.alerts.rules import (
    DEFAULT_RULES,
    DeadLetterRule,
    GateRule,
    LagRule,
    MetricRule,
    Severity,
    load_rules,
)
from lakehouse.settings import Settings
from lakehouse.settings.alerts import AlertsSettings

STREAMS = ("metrics", "sales")


def load(text: str) -> list[object]:
    alerts = Settings.model_validate({"alerts": tomllib.loads(text)}).alerts
    return list(load_rules(alerts, STREAMS).rules)


def test_the_default_file_is_accepted_with_what_it_shows_in_comments() -> None:
    assert [rule.name for rule in load_rules(AlertsSettings(), STREAMS).rules] == [
        "lag", "unread-records", "standing-still", "refusing", "failing", "store", "stale", "dead-letters",
        "gate", "audit",
    ]  # fmt: skip
    lines = DEFAULT_RULES.read_text(encoding="utf-8").splitlines()
    shown = [line.removeprefix("# ") if " = " in line or "[[" in line else line for line in lines]
    assert len(load("\n".join(shown).replace("how long it has", ""))) == 12


def test_rules_are_read_with_their_defaults() -> None:
    text = """
    [[rules]]
    name = "cpu"
    kind = "metric"
    metric = "cpu"
    statistic = "p99"
    over = 90
    [[rules]]
    name = "late"
    kind = "lag"
    layer = "gold"
    seconds = 60
    for_s = 30
    severity = "critical"
    [[rules]]
    name = "gate"
    kind = "gate_closed"
    stream = "sales"
    [[rules]]
    name = "letters"
    kind = "dead_letter_rate"
    over = 0.5
    """
    assert load(text) == [
        MetricRule(
            name="cpu", kind="metric", metric="cpu", statistic="p99", over=90, windows=1, stale_s=3600
        ),
        LagRule(name="late", kind="lag", layer="gold", seconds=60, for_s=30, severity=Severity.CRITICAL),
        GateRule(name="gate", kind="gate_closed", stream="sales"),
        DeadLetterRule(name="letters", kind="dead_letter_rate", over=0.5, within_s=600),
    ]


GATE = '[[rules]]\nname = "gate"\nkind = "gate_closed"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            GATE + "strem = 'sales'",
            "rule gate: unknown key strem; known: for_s, kind, name, severity, stream",
        ),
        (GATE + "stream = 'slaes'", "rule gate: unknown stream slaes; known: metrics, sales"),
        (GATE + GATE, "duplicate rule names: gate"),
        (
            "[[rules]]\nname = 'a'\nkind = 'gates'",
            "rule a: kind must be one of audit_failed, audit_old, dead_letter_rate, freshness, gate_closed",
        ),
        ("[[rules]]\nname = 'a'", "rule a: kind must be one of audit_failed"),
        ("[[rules]]\nname = 'a'\nkind = 'lag'\nlayer = 'gold'", "rule a: specify either records or seconds"),
        (
            "[[rules]]\nname = 'a'\nkind = 'lag'\nlayer = 'gold'\nrecords = 1\nseconds = 1",
            "rule a: specify either records or seconds",
        ),
        ("[[rules]]\nname = 'a'\nkind = 'freshness'", "rule a: seconds: Field required"),
        ("[[rules]]\nname = 'a'\nkind = 'freshness'\nseconds = nan", "rule a: seconds: Input should be"),
        ("[[rules]]\nname = 'A b'\nkind = 'gate_closed'", "rule A b: name: String should match"),
        ("[in_gold]\nwithin = 3", "in_gold: unknown key within; known: objective, within_s"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_known(text: str, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(text)
    assert said in str(refused.value)
