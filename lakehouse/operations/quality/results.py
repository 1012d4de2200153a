"""Store check results in ops.expectation_results, and gate changes in ops.gates.

The grain of ops.expectation_results is one row per run, table and expectation. Its key is run_id, table,
expectation. `checked_at` is in UTC and identical for all rows from a run. `version` is the table's version,
and `rows` is the number of checked rows. `unexpected` is the number of failing rows, and `examples` contains
the keys of some failing rows as JSON. `error` is null unless the expectation could not be evaluated. Rows are
only appended.

The grain of ops.gates is one row per stream and gate change. Its key is stream, changed_at (UTC). `reasons`
lists the expectations that did not hold, and is empty if the gate opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType

from lakehouse.operations.quality.report import TableReport
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake, TableSpec, described

RESULTS_SCHEMA = described(
    ("run_id", "string", "The run's id."),
    ("checked_at", "timestamp", "When the run began, UTC."),
    ("table", "string", "The table, as layer.name."),
    ("version", "long", "The version of the table that was checked."),
    ("rows", "long", "The number of rows checked."),
    ("expectation", "string", "The expectation."),
    ("severity", "string", "fail or warn."),
    ("success", "boolean", "Whether the expectation held."),
    ("observed", "string", "The observed value."),
    ("unexpected", "long", "The number of failing rows."),
    ("examples", "string", "Keys of some failing rows, as JSON."),
    ("error", "string", "Why the expectation could not be evaluated, or null."),
    ("duration_s", "double", "How long the table's checks took, in seconds."),
)
RESULTS = TableSpec(
    "ops",
    "expectation_results",
    RESULTS_SCHEMA,
    stats=("checked_at", "table"),
    comment="One row per run, table and expectation.",
)

GATES_SCHEMA = described(
    ("stream", "string", "The stream."),
    ("changed_at", "timestamp", "When the gate changed, UTC."),
    ("is_open", "boolean", "Whether the gate has been open since then."),
    ("reasons", ArrayType(StringType()), "The expectations that did not hold; empty if the gate opened."),
)
GATES = TableSpec(
    "ops",
    "gates",
    GATES_SCHEMA,
    stats=("stream", "changed_at"),
    comment="One row per stream and gate change.",
)


@dataclass(frozen=True)
class HistoryRow:
    """The result of one of a table's expectations in one run."""

    run_id: str
    checked_at: datetime
    table: str
    expectation: str
    severity: str
    success: bool
    observed: str


@dataclass(frozen=True)
class Trend:
    """An expectation's result in each of several runs, or None if a run did not check the expectation."""

    table: str
    expectation: str
    runs: tuple[HistoryRow | None, ...]

    @property
    def checked(self) -> int:
        """The number of runs that checked the expectation."""
        return sum(run is not None for run in self.runs)

    @property
    def held(self) -> int:
        """The number of runs in which the expectation held."""
        return sum(run is not None and run.success for run in self.runs)


@dataclass(frozen=True)
class GateState:
    """The state of a stream's gate since `changed_at` (UTC), with the reasons if it is closed."""

    stream: str
    changed_at: datetime
    is_open: bool
    reasons: tuple[str, ...]


def keep(lake: Lake, run_id: str, at: datetime, reports: Sequence[TableReport]) -> None:
    """Append a run's findings to ops.expectation_results. A second call with its `run_id` adds nothing."""
    rows = [
        (
            run_id,
            at,
            report.table,
            report.version,
            report.rows,
            one.expectation,
            one.severity,
            one.success,
            one.observed,
            one.unexpected,
            json.dumps(list(one.examples), ensure_ascii=False),
            one.error,
            report.duration_s,
        )
        for report in reports
        for one in report.findings
    ]
    path = lake.ensure(RESULTS)
    key = ("run_id", "table", "expectation")
    tables.insert_missing(
        lake.spark.createDataFrame(rows, RESULTS_SCHEMA), path, key, F.col("checked_at") == F.lit(at)
    )


def history(lake: Lake, names: Sequence[str], *, runs: int) -> list[HistoryRow]:
    """Return the results of the latest runs that checked any of these tables, oldest first."""
    results = lake.read_or_empty(RESULTS).where(F.col("table").isin(list(names)))
    last = results.select("run_id", "checked_at").distinct().orderBy(F.desc("checked_at")).limit(runs)
    rows = results.join(last.select("run_id"), "run_id", "left_semi").select(
        "run_id",
        F.unix_micros("checked_at").alias("checked_at"),
        "table",
        "expectation",
        "severity",
        "success",
        F.coalesce("error", "observed").alias("observed"),
    )
    found = (row.asDict() for row in rows.orderBy("checked_at", "table", "expectation").collect())
    return [HistoryRow(**{**one, "checked_at": tables.from_micros(one["checked_at"])}) for one in found]


def note_gate(lake: Lake, state: GateState) -> None:
    """Append a change of a stream's gate to ops.gates. A second call adds nothing."""
    path = lake.ensure(GATES)
    row = (state.stream, state.changed_at, state.is_open, list(state.reasons))
    change = lake.spark.createDataFrame([row], GATES_SCHEMA)
    tables.insert_missing(change, path, ("stream", "changed_at"), F.lit(True))


def trends(found: Sequence[HistoryRow]) -> list[Trend]:
    """Return each expectation's trend, ordered by table and expectation, with the oldest run first."""
    order = list(dict.fromkeys(run.run_id for run in sorted(found, key=lambda run: run.checked_at)))
    by_place = {(run.table, run.expectation, run.run_id): run for run in found}
    names = sorted({(run.table, run.expectation) for run in found})
    return [Trend(*name, tuple(by_place.get((*name, run_id)) for run_id in order)) for name in names]


def gates(lake: Lake) -> Mapping[str, GateState]:
    """Return the current state of each gate that has been checked, keyed by stream."""
    changes = lake.read_or_empty(GATES).withColumn("changed_at", F.unix_micros("changed_at"))
    return last_of(
        GateState(row.stream, tables.from_micros(row.changed_at), row.is_open, tuple(row.reasons))
        for row in changes.collect()
    )


def last_of(changes: Iterable[GateState]) -> dict[str, GateState]:
    """Return each stream's latest gate state."""
    last: dict[str, GateState] = {}
    for one in changes:
        if one.stream not in last or last[one.stream].changed_at < one.changed_at:
            last[one.stream] = one
    return last
