"""The gate between gold and what leaves: a stream's rows go out only while its gold tables are as they must.

Only expectations of severity `fail` count. An expectation that cannot be looked at keeps the gate shut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from great_expectations.data_context import AbstractDataContext
from pyspark.sql import SparkSession

from lakehouse.quality.checking import check, make_context, only_failing, suite_of
from lakehouse.quality.results import GateState, gates, note_gate
from lakehouse.quality.subjects import Lake, Subject, subjects
from lakehouse.settings import Settings
from lakehouse.stream import Stream


class SuiteGate:
    """Says of each stream whether its gold may leave, and notes in ops.gates when that changes."""

    def __init__(
        self,
        spark: SparkSession,
        streams: Sequence[Stream],
        settings: Settings,
        on_notice: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._spark = spark
        self._streams = streams
        self._settings = settings
        self._on_notice = on_notice
        self._context: AbstractDataContext | None = None
        self._known = dict(gates(spark, settings.lake))
        self._checked: dict[str, tuple[dict[str, int], bool]] = {}

    def is_open(self, stream: Stream, now: datetime) -> bool:
        """Check the stream's gold tables as they are and tell whether they may leave.

        What has been found of the same versions is not looked for again.
        """
        every = subjects(self._streams, self._settings)
        own = {table.name for table in stream.tables}
        lake = Lake(self._spark, every, self._settings, now)
        gold = [
            one
            for one in every
            if one.spec.layer == "gold" and one.spec.name in own and one.name in lake.versions
        ]
        versions = {one.name: lake.versions[one.name] for one in gold}
        checked = self._checked.get(stream.name)
        if checked is None or checked[0] != versions:
            broken = {what: why for one in gold for what, why in self._broken(one, lake).items()}
            self._note(GateState(stream.name, now, not broken, tuple(broken)), broken)
            self._checked[stream.name] = versions, not broken
        return self._checked[stream.name][1]

    def _broken(self, subject: Subject, lake: Lake) -> dict[str, str]:
        """Return which expectations do not hold, and how that shows."""
        suite = suite_of(subject)
        if suite is None:
            return {}
        self._context = self._context or make_context()
        report = check(subject, only_failing(suite), lake, self._context)
        return {f"{report.table}: {one.expectation}": one.error or one.observed for one in report.failed}

    def _note(self, state: GateState, broken: Mapping[str, str]) -> None:
        before = self._known.get(state.stream)
        if before is not None and (before.is_open, before.reasons) == (state.is_open, state.reasons):
            return
        self._known[state.stream] = state
        note_gate(self._spark, self._settings.lake, state)
        if not state.is_open:
            reasons = "; ".join(f"{what}: {why}" for what, why in broken.items())
            self._on_notice(f"gate of {state.stream} closed, nothing leaves: {reasons}")
        elif before is not None:
            self._on_notice(f"gate of {state.stream} open again")
