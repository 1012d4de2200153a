"""The alerting rules as a Prometheus rules file, on the metrics that lakehouse.telemetry exposes. Pure.

The file also has burn-rate alerts for the objective "in gold within X seconds". Each combines a long and a
short window, so that it starts and ends soon. Several processes may expose the same lag; the expressions
count each value once. The values of metric rules come from `lakehouse alert --telemetry-port`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from lakehouse.alerts.rules import (
    AuditFailedRule,
    AuditOldRule,
    DeadLetterRule,
    FreshnessRule,
    GateRule,
    HealthRule,
    InGold,
    LagRule,
    MetricRule,
    Rule,
    Rules,
    StreamRule,
)

_WAIT = "lakehouse:in_gold_wait_seconds"
_LATE = "lakehouse:in_gold_late"
# Burn rate (multiple of the rate that spends a month's budget in a month), long window, short window,
# severity.
_BURNS = ((14.4, "1h", "5m", "critical"), (6.0, "6h", "30m", "critical"), (1.0, "3d", "6h", "warning"))


def rules_file(rules: Rules) -> str:
    """Return a Prometheus rules file, as JSON (a subset of YAML) with one value a line."""
    groups = [
        {"name": "lakehouse", "rules": [_rule(rule) for rule in rules.rules]},
        {"name": "lakehouse in gold", "rules": _in_gold(rules.in_gold)},
        {"name": "lakehouse telemetry", "rules": _TELEMETRY},
    ]
    head = "# Made by `lakehouse alert --prometheus` from the alerting rules; not to be edited.\n"
    return head + json.dumps({"groups": groups}, indent=2) + "\n"


_TELEMETRY = [
    {
        "alert": "LakehouseCannotBeSeen",
        "expr": "max by (what) (lakehouse_up) == 0",
        "for": "1m",
        "labels": {"severity": "critical"},
        "annotations": {"summary": "the {{ $labels.what }} cannot be read"},
    }
]


def _rule(rule: Rule) -> dict[str, object]:
    expression, summary = _of_metric(rule) if isinstance(rule, MetricRule) else _of_stream(rule)
    return {
        "alert": rule.name,
        "expr": expression,
        "for": _duration(rule.for_s),
        "labels": {"severity": rule.severity.value},
        "annotations": {"summary": summary},
    }


def _of_metric(rule: MetricRule) -> tuple[str, str]:
    service = {} if rule.service is None else {"service": rule.service}
    series = f"lakehouse_metric_rule_value{_of(None, rule=rule.name, **service)}"
    sign, word, limit = ("<", "under", rule.under) if rule.over is None else (">", "over", rule.over)
    combine = "min" if rule.over is None else "max"
    what = f"{rule.statistic} of {rule.metric} of {{{{ $labels.service }}}}"
    return (
        f"{combine} by (service, metric) ({series}) {sign} {limit or 0:.15g}",
        f"{what} is {word} {limit or 0:g} for {rule.windows} windows: {{{{ $value }}}}",
    )


def _of_stream(rule: StreamRule) -> tuple[str, str]:
    of, name = _of(rule.stream), "{{ $labels.stream }}"
    if isinstance(rule, LagRule):
        return _lag(rule), f"{rule.layer} of {name} is behind: {{{{ $value }}}}"
    if isinstance(rule, FreshnessRule):
        expression = f"max by (stream) (lakehouse_freshness_seconds{of}) > {rule.seconds:.15g}"
        return expression, f"the newest event of {name} is {{{{ $value }}}} s old"
    if isinstance(rule, DeadLetterRule):
        return _letters(rule), f"{{{{ $value | humanizePercentage }}}} of {name} become dead letters"
    if isinstance(rule, GateRule):
        return f"min by (stream) (lakehouse_gate_open{of}) == 0", f"the gate of {name} is closed"
    if isinstance(rule, HealthRule):
        words = _of(rule.stream, word="|".join(rule.words)).replace("word=", "word=~")
        return f"max by (stream) (lakehouse_health{words}) == 1", f"{name} is {' or '.join(rule.words)}"
    return _audit(rule), f"the last audit of {name} was not clean, or is too long ago"


def _audit(rule: AuditFailedRule | AuditOldRule) -> str:
    of = _of(rule.stream)
    if isinstance(rule, AuditFailedRule):
        return f"min by (stream) (lakehouse_audit_clean{of}) == 0"
    age = f"max by (stream) (lakehouse_audit_age_seconds{of})"
    has_rows = f"max by (stream) (lakehouse_freshness_seconds{of})"
    return f"{age} > {rule.seconds:.15g} or ({has_rows} unless {age})"


def _lag(rule: LagRule) -> str:
    unit, combine, limit = (
        ("records", "sum", rule.records) if rule.records is not None else ("seconds", "max", rule.seconds)
    )
    if rule.layer == "bronze":
        series = f"lakehouse_lag_{unit}{_of(rule.stream)}"
    else:
        series = f"lakehouse_layer_lag_{unit}{_of(rule.stream, layer=rule.layer)}"
    return f"{combine} by (stream) (max without (instance, job) ({series})) > {limit or 0:.15g}"


def _letters(rule: DeadLetterRule) -> str:
    within = _duration(rule.within_s)
    letters, read = (
        f"sum by (stream) (rate({name}{_of(rule.stream, layer='silver', **more)}[{within}]))"
        for name, more in (
            ("lakehouse_records_written_total", {"outcome": "dead_letters"}),
            ("lakehouse_records_total", {}),
        )
    )
    return f"{letters} / {read} > {rule.over:g}"


def _in_gold(target: InGold) -> list[Mapping[str, object]]:
    longest = 'max by (stream) (lakehouse_lag_seconds or lakehouse_layer_lag_seconds{layer=~"silver|gold"})'
    windows = sorted({window for _, long, short, _ in _BURNS for window in (long, short)})
    return [
        {"record": _WAIT, "expr": longest},
        {"record": _LATE, "expr": f"{_WAIT} > bool {target.within_s:g}"},
        *(
            {"record": f"{_LATE}:ratio_{window}", "expr": f"avg_over_time({_LATE}[{window}])"}
            for window in windows
        ),
        *(_burn(target, *burn) for burn in _BURNS),
    ]


def _burn(target: InGold, times: float, long: str, short: str, severity: str) -> dict[str, object]:
    limit = f"{times * (1 - target.objective):.6g}"
    return {
        "alert": "LakehouseInGoldBudgetBurns",
        "expr": f"{_LATE}:ratio_{long} > {limit} and {_LATE}:ratio_{short} > {limit}",
        "labels": {"severity": severity, "window": long},
        "annotations": {
            "summary": f"{{{{ $labels.stream }}}}: records are not in gold within {target.within_s:g} s in "
            f"{{{{ $value | humanizePercentage }}}} of the last {long}, {times:g} times what "
            f"an objective of {target.objective:g} allows"
        },
    }


def _of(stream: str | None, **labels: str) -> str:
    given = ({} if stream is None else {"stream": stream}) | labels
    matchers = ", ".join(f"{name}={json.dumps(value)}" for name, value in given.items())
    return f"{{{matchers}}}" if matchers else ""


def _duration(seconds: float) -> str:
    return f"{round(1000 * seconds)}ms"
