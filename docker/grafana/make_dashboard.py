"""Create the dashboard for Grafana: `python docker/grafana/make_dashboard.py` writes its JSON.

Queries use the metrics of lakehouse.operations.telemetry and of the server, and the series that
docker/prometheus/rules.yml records.
"""

from __future__ import annotations

from pathlib import Path

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    VariableRefresh,
    VariableSort,
)

FILE = Path(__file__).parent / "dashboards" / "lakehouse.json"
_PROMETHEUS = DataSourceRef(type_val="prometheus", uid="prometheus")
_STREAM = '{stream=~"$stream"}'
_THIRD = 8  # of the grid, which has 24 columns


def make() -> str:
    """Return the dashboard as JSON."""
    made = (
        dashboard.Dashboard("lakehouse")
        .uid("lakehouse")
        .tags(["lakehouse"])
        .time("now-1h", "now")
        .refresh("10s")
        .timezone("utc")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(_streams())
        .with_row(dashboard.Row("Health"))
        .with_panel(
            _number(
                "Health",
                'max by (stream, word) (lakehouse_health{stream=~"$stream"}) == 1',
                "{{stream}}: {{word}}",
            )
        )
        .with_panel(
            _number("Gates (1: open)", f"min by (stream) (lakehouse_gate_open{_STREAM})", "{{stream}}")
        )
        .with_panel(_number("Firing alerts", 'count(ALERTS{alertstate="firing"}) or vector(0)', ""))
        .with_panel(_number("Readable (1: yes)", "min by (what) (lakehouse_up)", "{{what}}"))
        .with_panel(
            _number("Audits (1: clean)", f"min by (stream) (lakehouse_audit_clean{_STREAM})", "{{stream}}")
        )
        .with_panel(
            _number("Alerts evaluated by `lakehouse alert` (1: yes)", "max(lakehouse_alerts_evaluated)", "")
        )
        .with_panel(
            _number(
                "Stores",
                'max by (store, table, word) (lakehouse_store_state{stream=~"$stream", word!="well"}) == 1',
                "{{store}}, {{table}}: {{word}}",
            )
        )
        .with_row(dashboard.Row("Time until records are in gold"))
        .with_panel(_line("Longest wait", f"lakehouse:in_gold_wait_seconds{_STREAM}", "{{stream}}", "s"))
        .with_panel(
            _line(
                "Late share of the last hour",
                f"lakehouse:in_gold_late:ratio_1h{_STREAM}",
                "{{stream}}",
                "percentunit",
            )
        )
        .with_panel(
            _line(
                "Age of the newest event",
                f"max by (stream) (lakehouse_freshness_seconds{_STREAM})",
                "{{stream}}",
                "s",
            )
        )
        .with_row(dashboard.Row("Backlog"))
        .with_panel(
            _line(
                "Waiting for bronze",
                f"sum by (stream) ({_once('lakehouse_lag_records')})",
                "{{stream}}",
                "short",
            )
        )
        .with_panel(
            _line(
                "Waiting for later layers",
                f"sum by (stream, layer) ({_once('lakehouse_layer_lag_records')})",
                "{{stream}} {{layer}}",
                "short",
            )
        )
        .with_panel(
            _line(
                "Oldest waiting record",
                f"max by (stream, layer) (lakehouse_layer_lag_seconds{_STREAM})",
                "{{stream}} {{layer}}",
                "s",
            )
        )
        .with_row(dashboard.Row("Work"))
        .with_panel(
            _line(
                "Records read per second",
                f"sum by (stream, layer) (rate(lakehouse_records_total{_STREAM}[1m]))",
                "{{stream}} {{layer}}",
                "ops",
            )
        )
        .with_panel(
            _line(
                "Micro-batch, 95th percentile",
                "histogram_quantile(0.95, sum by (layer, le) "
                '(rate(lakehouse_batch_duration_seconds_bucket{stream=~"$stream", phase="process"}[5m])))',
                "{{layer}}",
                "s",
            )
        )
        .with_panel(_line("Writing to Kafka, 95th percentile", _writing("kafka"), "{{table}}", "s"))
        .with_panel(_line("Writing to Redis, 95th percentile", _writing("redis"), "{{table}}", "s"))
        .with_panel(_line("Writing to PostgreSQL, 95th percentile", _writing("postgres"), "{{table}}", "s"))
        .with_panel(
            _line(
                "Failures in 5 minutes",
                f"sum by (stream) (increase(lakehouse_query_failures_total{_STREAM}[5m]))",
                "{{stream}}",
                "short",
            )
        )
        .with_panel(
            _line(
                "Processes that run a layer",
                f"max by (stream, layer) (lakehouse_layer_processes{_STREAM})",
                "{{stream}} {{layer}}",
                "short",
            )
        )
        .with_row(dashboard.Row("Tables"))
        .with_panel(
            _line(
                "Open dead letters",
                f"max by (stream) (lakehouse_dead_letters_open{_STREAM})",
                "{{stream}}",
                "short",
            )
        )
        .with_panel(
            _line(
                "Refused share, as last reported",
                f"max by (stream, table) (lakehouse_refused_ratio{_STREAM})",
                "{{table}}",
                "percentunit",
            )
        )
        .with_panel(
            _line("Size", f"max by (table) (lakehouse_table_size_bytes{_STREAM})", "{{table}}", "bytes")
        )
        .with_panel(_line("Files", f"max by (table) (lakehouse_table_files{_STREAM})", "{{table}}", "short"))
        .with_row(dashboard.Row("The server"))
        .with_panel(
            _line(
                "Requests per second",
                "sum by (status) (rate(lakehouse_http_requests_total[1m]))",
                "{{status}}",
                "reqps",
            )
        )
        .with_panel(
            _line(
                "Response time, 99th percentile",
                "histogram_quantile(0.99, sum by (route, le) "
                "(rate(lakehouse_http_response_seconds_bucket[5m])))",
                "{{route}}",
                "s",
            )
        )
    )
    built = made.build()
    for number, panel in enumerate(built.panels or (), 1):
        panel.id_val = number
    text: str = JSONEncoder(sort_keys=True, indent=2).encode(built)
    return f"{text}\n"


def _streams() -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable("stream")
        .label("Stream")
        .datasource(_PROMETHEUS)
        .query("label_values(lakehouse_health, stream)")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )


def _once(metric: str) -> str:
    """Return a query that counts each value of a metric once, even if several processes expose it."""
    return f"max without (instance, job) ({metric}{_STREAM})"


def _writing(store: str) -> str:
    """Return a query for the 95th percentile of micro-batches' time spent writing to a store, by table."""
    series = f"lakehouse_{store}_write_seconds_bucket{_STREAM}"
    return f"histogram_quantile(0.95, sum by (table, le) (rate({series}[5m])))"


def _query(expression: str, legend: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expression).legend_format(legend).datasource(_PROMETHEUS)


def _line(title: str, expression: str, legend: str, unit: str) -> timeseries.Panel:
    panel = timeseries.Panel().title(title).datasource(_PROMETHEUS).unit(unit).min(0)
    return panel.span(_THIRD).height(_THIRD).with_target(_query(expression, legend))


def _number(title: str, expression: str, legend: str) -> stat.Panel:
    panel = stat.Panel().title(title).datasource(_PROMETHEUS).span(_THIRD).height(_THIRD // 2)
    return panel.with_target(_query(expression, legend).instant())


if __name__ == "__main__":
    FILE.write_text(make(), encoding="utf-8")
