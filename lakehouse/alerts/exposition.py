"""The values that metric rules use, as OpenMetrics: only for the services and metrics that rules name.

    lakehouse_metric_rule_value{rule="cpu", service="checkout", metric="cpu_usage", statistic="p99"}

It is the value that each of the last windows of the rule has reached, so Prometheus only needs the threshold.
Values that are unknown, or too old to be judged, have no sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lakehouse.alerts.facts import Facts, least_of
from lakehouse.alerts.rules import MetricRule, Rule

_HELP = "What every window of gold.metrics_1m that a rule looks at has reached, in the metric's own unit."
_LABELS = ["rule", "service", "metric", "statistic"]


class RuleValues(Collector):
    """Makes a metric of the latest facts, null before the first."""

    def __init__(self, rules: Sequence[Rule], facts: Callable[[], Facts | None]) -> None:
        self._rules = [rule for rule in rules if isinstance(rule, MetricRule)]
        self._facts = facts

    def describe(self) -> list[Metric]:
        """Return no names, like the other collectors of telemetry."""
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
