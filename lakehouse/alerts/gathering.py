"""The facts that rules are judged on, from the lake and the broker, without a JVM.

What cannot be read is left out with a reason, so that a rule that needs it neither fires nor resolves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from pyspark.sql.types import StructType

from lakehouse import bronze
from lakehouse.alerts.facts import WINDOW, Audit, Facts, Landed, Window
from lakehouse.alerts.rules import DeadLetterRule, MetricRule, Rule
from lakehouse.dead_letters import DEAD_LETTERS
from lakehouse.event_table import EVENTS
from lakehouse.stream import Stream
from lakehouse.tables import TableSpec, direct
from lakehouse.tables.specs import EPOCH
from lakehouse.telemetry import Observation

METRICS_1M = TableSpec("gold", "metrics_1m", StructType(), stats=())
_Found = TypeVar("_Found")


def gather(
    observation: Observation,
    lake: str,
    streams: Sequence[Stream],
    rules: Sequence[Rule],
    warn: Callable[[str], None],
) -> Facts:
    """Return what is known at the observation's time; `warn` is told what could not be read."""
    now = observation.at

    def known(what: str, read: Callable[[], _Found]) -> _Found | None:
        try:
            return read()
        except Exception as error:  # noqa: BLE001 - deltalake's and its engine's, of any file system
            warn(f"{what} could not be read: {next(iter(str(error).splitlines()), type(error).__name__)}")
            return None

    windows = {
        rule.name: known(METRICS_1M.qualified_name, partial(_windows, lake, rule, now))
        for rule in rules
        if isinstance(rule, MetricRule)
    }
    landed = {
        rule.name: known("what has landed", partial(_landed, lake, rule, streams, now))
        for rule in rules
        if isinstance(rule, DeadLetterRule)
    }
    return Facts(
        observation,
        {name: found for name, found in windows.items() if found is not None},
        {name: found for name, found in landed.items() if found is not None},
        known(EVENTS.qualified_name, partial(_audits, lake)),
    )


def _windows(lake: str, rule: MetricRule, now: datetime) -> list[Window]:
    """Return the windows that are over, of the metric's series, as far back as the rule looks."""
    since = now - timedelta(seconds=rule.stale_s) - WINDOW * (rule.windows + 1)
    where = [f"metric_name = {_quoted(rule.metric)}", f"window_start >= {_at(since)}"]
    where += [f"window_end <= {_at(now)}", f"{rule.statistic} IS NOT NULL"]
    if rule.service is not None:
        where.append(f"service_id = {_quoted(rule.service)}")
    columns = f"service_id, window_start, {rule.statistic} AS value"
    query = f"SELECT {columns} FROM rows WHERE {' AND '.join(where)}"  # noqa: S608 - quoted above
    rows = direct.read(lake, METRICS_1M, query)
    return [Window(row["service_id"], _utc(row["window_start"]), float(row["value"])) for row in rows]


def _landed(lake: str, rule: DeadLetterRule, streams: Sequence[Stream], now: datetime) -> dict[str, Landed]:
    since = _at(now - timedelta(seconds=rule.within_s))
    by_stream = f"SELECT stream, count(*) AS n FROM rows WHERE first_seen >= {since} GROUP BY stream"  # noqa: S608
    letters = {row["stream"]: int(row["n"]) for row in direct.read(lake, DEAD_LETTERS, by_stream)}
    query = f"SELECT count(*) AS n FROM rows WHERE ingested_at >= {since}"  # noqa: S608
    return {
        stream.name: Landed(
            sum(
                int(row["n"])
                for source in stream.sources
                for row in direct.read(lake, bronze.spec(source), query)
            ),
            letters.get(stream.name, 0),
        )
        for stream in streams
        if rule.stream in (None, stream.name)
    }


def _audits(lake: str) -> dict[str, Audit]:
    query = "SELECT stream, at, details FROM rows WHERE kind = 'audit' AND stream IS NOT NULL ORDER BY at"
    rows = direct.read(lake, EVENTS, query)
    return {row["stream"]: Audit(_utc(row["at"]), bool(json.loads(row["details"])["clean"])) for row in rows}


def _at(moment: datetime) -> str:
    micros = (moment - EPOCH) // timedelta(microseconds=1)
    return f"arrow_cast({micros}, 'Timestamp(Microsecond, Some(\"UTC\"))')"


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
