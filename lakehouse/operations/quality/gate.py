"""The gate before the export: a stream is exported only while its gold tables meet their expectations.

Only expectations with severity `fail` count. An expectation that cannot be evaluated keeps the gate closed.
Whole tables are checked until their expectations hold. Later checks read only the changes
(`lakehouse.operations.quality.changes`), and whole tables only if the changes are not enough to decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from great_expectations import ExpectationSuite
from great_expectations.data_context import AbstractDataContext

from lakehouse.common.events import Kind, note
from lakehouse.operations.quality.changes import (
    Marks,
    Suites,
    can_go_on,
    go_on_holding,
    marks_of,
    without_step,
)
from lakehouse.operations.quality.checking import check, make_context, only_failing, suite_of
from lakehouse.operations.quality.results import GateState, gates, note_gate
from lakehouse.operations.quality.subjects import CHANGES, PinnedTables, Subject, subjects, words
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Stream
from lakehouse.streams.suite_internals import ExpectNoRows


@dataclass(frozen=True)
class _Found:
    """The latest result of a stream's gate, with the ids and versions of the tables that it is based on.

    `can_go_on` says whether the next check can be incremental.
    """

    marks: Marks
    is_open: bool
    can_go_on: bool


class SuiteGate:
    """A gate that decides whether a stream's gold tables may be exported. It records changes in ops.gates."""

    def __init__(
        self,
        lake: Lake,
        streams: Sequence[Stream],
        settings: Settings,
        on_notice: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._lake = lake
        self._settings = settings
        self._on_notice = on_notice
        self._every = subjects(streams)
        self._kept = {table.name: table for stream in streams for table in stream.tables}
        self._context: AbstractDataContext | None = None
        self._known = dict(gates(lake))
        self._suites: dict[str, Suites] = {}
        self._found: dict[str, _Found] = {}

    def check(self, stream: Stream, now: datetime) -> bool:
        """Check the stream's current gold tables, and return whether they may be exported.

        If no table has changed since the last check, its result is returned without another check.
        """
        suites = self._suites_of(stream)
        pinned = PinnedTables(self._lake, self._named_by(suites), self._settings, now)
        marks, last = marks_of(pinned), self._found.get(stream.name)
        if last is None or last.marks != marks:
            there = [(subject, suite) for subject, suite in suites if subject.name in pinned.versions]
            last = self._look(stream, pinned, there, last)
            self._found[stream.name] = last
        return last.is_open

    def _look(self, stream: Stream, pinned: PinnedTables, suites: Suites, last: _Found | None) -> _Found:
        marks = marks_of(pinned)
        if last is not None and last.can_go_on and self._go_on_holding(pinned, suites, last):
            return replace(last, marks=marks)
        broken = self._broken(suites, pinned)
        self._note(GateState(stream.name, pinned.now, not broken, tuple(broken)), broken)
        return _Found(marks, not broken, not broken and can_go_on(pinned, suites))

    def _go_on_holding(self, pinned: PinnedTables, suites: Suites, last: _Found) -> bool:
        rest = [(subject, without_step(suite)) for subject, suite in suites]
        holds = go_on_holding(pinned, last.marks, suites, self._kept)
        return holds and not self._broken(rest, pinned)

    def _broken(self, suites: Suites, pinned: PinnedTables) -> dict[str, str]:
        """Check whole tables. Return the expectations that do not hold, with observed values or errors."""
        self._context = self._context or make_context()
        reports = [check(one, suite, pinned, self._context) for one, suite in suites if suite.expectations]
        return {
            f"{report.table}: {one.expectation}": one.error or one.observed
            for report in reports
            for one in report.failed
        }

    def _suites_of(self, stream: Stream) -> Suites:
        """Return the suites for the stream's gold tables, limited to expectations with severity `fail`."""
        if stream.name not in self._suites:
            own = {table.name for table in stream.tables}
            gold = [one for one in self._every if one.spec.layer == "gold" and one.spec.name in own]
            found = [(one, suite) for one in gold if (suite := suite_of(one)) is not None]
            self._suites[stream.name] = [(one, only_failing(suite)) for one, suite in found]
        return self._suites[stream.name]

    def _named_by(self, suites: Suites) -> list[Subject]:
        """Return the tables that the suites check and the tables that their queries name."""
        queries = [text for _, suite in suites for text in _queries(suite)]
        named, own = words("\n".join(queries)), [one.name for one, _ in suites]
        return [one for one in self._every if one.name in own or {one.view, one.view + CHANGES} & named]

    def _note(self, state: GateState, broken: Mapping[str, str]) -> None:
        before = self._known.get(state.stream)
        if before is not None and (before.is_open, before.reasons) == (state.is_open, state.reasons):
            return
        self._known[state.stream] = state
        note_gate(self._lake, state)
        reasons = "; ".join(f"{what}: {why}" for what, why in broken.items())
        closed = f"gate of {state.stream} closed; nothing is exported: {reasons}"
        opened = f"gate of {state.stream} open{' again' * (before is not None)}"
        told = opened if state.is_open else closed
        found = {"is_open": state.is_open, "reasons": broken}
        note(Kind.GATE, told, stream=state.stream, layer="gold", details=found)
        if before is not None or not state.is_open:
            self._on_notice(told)


def _queries(suite: ExpectationSuite) -> list[str]:
    asked = [one for one in suite.expectations if isinstance(one, ExpectNoRows)]
    return [f"{one.unexpected_rows_query}\n{one.step or ''}" for one in asked]
