"""Read the facts that alerting rules need from the lake, without a JVM.

Unreadable data is omitted with a warning. If a rule needs this data, its alerts neither fire nor resolve.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar, cast

import pyarrow as pa
import pyarrow.dataset as ds

from lakehouse.engine.layers import bronze, gold
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.operations.alerts.facts import WINDOW, Facts, LandedCounts, Window
from lakehouse.operations.alerts.rules import DeadLetterRule, MetricRule, Rule
from lakehouse.operations.telemetry import Observation
from lakehouse.storage.spark.query_errors import error_line
from lakehouse.storage.tables import TableSpec, direct
from lakehouse.streams.definition import Stream
from lakehouse.streams.transforms.windows import service_metrics

_Found = TypeVar("_Found")


def gather(
    observation: Observation,
    lake: str,
    streams: Sequence[Stream],
    rules: Sequence[Rule],
    *,
    warn: Callable[[str], None],
) -> Facts:
    """Return the facts as of the observation. `warn` is called for data that cannot be read."""
    now = observation.at

    def known(what: str, read: Callable[[], _Found]) -> _Found | None:
        try:
            return read()
        except Exception as error:  # noqa: BLE001 - deltalake and file systems raise many kinds of errors
            warn(f"{what} could not be read: {error_line(error)}")
            return None

    table = service_metrics(streams)
    spec = None if table is None else gold.spec(table)
    windows = {
        rule.name: known(spec.qualified_name, partial(_windows, lake, spec, rule, now)) if spec else []
        for rule in rules
        if isinstance(rule, MetricRule)
    }
    landed = {
        rule.name: known("landed records", partial(_landed, lake, rule, streams, now))
        for rule in rules
        if isinstance(rule, DeadLetterRule)
    }
    return Facts(
        observation,
        {name: found for name, found in windows.items() if found is not None},
        {name: found for name, found in landed.items() if found is not None},
    )


def _windows(lake: str, spec: TableSpec, rule: MetricRule, now: datetime) -> list[Window]:
    """Return the closed windows that a metric rule needs."""
    since = now - timedelta(seconds=rule.stale_s) - WINDOW * (rule.windows + 1)
    where = (ds.field("metric_name") == rule.metric) & _from("window_start", since)
    where &= (ds.field("window_end") <= _at(now)) & ~ds.field(rule.statistic).is_null()
    if rule.service is not None:
        where &= ds.field("service_id") == rule.service
    columns = ["service_id", "window_start", rule.statistic]
    rows = direct.rows_where(lake, spec, columns, where)
    return [Window(row["service_id"], _utc(row["window_start"]), float(row[rule.statistic])) for row in rows]


def _landed(
    lake: str, rule: DeadLetterRule, streams: Sequence[Stream], now: datetime
) -> dict[str, LandedCounts]:
    since = now - timedelta(seconds=rule.within_s)
    letters = Counter(
        row["stream"] for row in direct.rows_where(lake, DEAD_LETTERS, ["stream"], _from("first_seen", since))
    )
    return {
        stream.name: LandedCounts(
            sum(
                len(direct.rows_where(lake, bronze.spec(one), ["partition"], _from("ingested_at", since)))
                for one in stream.sources
            ),
            letters[stream.name],
        )
        for stream in streams
        if rule.stream in (None, stream.name)
    }


def _from(column: str, moment: datetime) -> ds.Expression:
    return cast("ds.Expression", ds.field(column) >= _at(moment))


def _at(moment: datetime) -> pa.Scalar:
    return pa.scalar(moment, pa.timestamp("us", tz="UTC"))


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
