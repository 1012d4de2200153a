"""The history of expectations: what the last runs found for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakehouse.quality.results import HistoryRow


@dataclass(frozen=True)
class Trend:
    """An expectation over several runs: each run's verdict, null if it was not checked."""

    table: str
    expectation: str
    runs: tuple[HistoryRow | None, ...]

    @property
    def checked(self) -> int:
        """The number of runs that checked it."""
        return sum(run is not None for run in self.runs)

    @property
    def held(self) -> int:
        """The number of runs in which it held."""
        return sum(run is not None and run.success for run in self.runs)


def trends(found: Sequence[HistoryRow]) -> list[Trend]:
    """Return the trend of every expectation, by table and name, with the runs in order of time."""
    order = list(dict.fromkeys(run.run_id for run in sorted(found, key=lambda run: run.checked_at)))
    by_place = {(run.table, run.expectation, run.run_id): run for run in found}
    names = sorted({(run.table, run.expectation) for run in found})
    return [Trend(*name, tuple(by_place.get((*name, run_id)) for run_id in order)) for name in names]
