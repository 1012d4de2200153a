"""The values that metric rules compare with their thresholds, as OpenMetrics.

    lakehouse_metric_rule_value{rule="cpu", service="checkout", metric="cpu_usage", statistic="p99"}

For an upper threshold the value is the minimum of the rule's last windows, for a lower one their maximum, so
Prometheus only needs the threshold. Unknown and stale values have no sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lakehouse.operations.alerts.facts import Facts, least_of
from lakehouse.operations.alerts.rules import MetricRule, Rule

_HELP = "Minimum (for an upper threshold) or maximum (lower) of a rule's last windows, in the metric's unit."
_LABELS = ["rule", "service", "metric", "statistic"]


class RuleValues(Collector):
    """Exposes the latest facts as a metric; without facts, it has no samples."""

    def __init__(self, rules: Sequence[Rule], facts: Callable[[], Facts | None]) -> None:
        self._rules = [rule for rule in rules if isinstance(rule, MetricRule)]
        self._facts = facts

    def describe(self) -> list[Metric]:
        """Return no metrics, like the other collectors of telemetry."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return the metric."""
        family, facts = GaugeMetricFamily("lakehouse_metric_rule_value", _HELP, labels=_LABELS), self._facts()
        if facts is not None and facts.observation is not None:
            for rule in self._rules:
                values = least_of(rule, facts.windows.get(rule.name, ()), facts.observation.at)
                for service, value in values.items():
                    family.add_metric([rule.name, service, rule.metric, rule.statistic], value)
        yield family
