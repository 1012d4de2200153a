"""The history of expectations as a page that any browser reads, without a server or the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from lakehouse.quality.results import Run

_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 416, 8, 54


@dataclass(frozen=True)
class Trend:
    """An expectation over the runs: what each run said, null where it did not look."""

    table: str
    expectation: str
    runs: tuple[Run | None, ...]

    @property
    def checked(self) -> int:
        """How many runs have looked."""
        return sum(run is not None for run in self.runs)

    @property
    def held(self) -> int:
        """In how many of them it held."""
        return sum(run is not None and run.success for run in self.runs)


def trends(found: Sequence[Run]) -> list[Trend]:
    """Return the trend of every expectation, by table and name; the runs in the order of their time."""
    order = list(dict.fromkeys(run.run_id for run in sorted(found, key=lambda run: run.checked_at)))
    by_place = {(run.table, run.expectation, run.run_id): run for run in found}
    names = sorted({(run.table, run.expectation) for run in found})
    return [Trend(*name, tuple(by_place.get((*name, run_id)) for run_id in order)) for name in names]


def write_page(found: Sequence[Run], lake: str, path: Path) -> None:
    """Write the page of what has been found; there must be something."""
    by_table: dict[str, list[Trend]] = {}
    for trend in trends(found):
        by_table.setdefault(trend.table, []).append(trend)
    times = sorted({run.checked_at for run in found})
    environment = Environment(
        loader=PackageLoader("lakehouse.quality", "."), autoescape=True, undefined=StrictUndefined
    )
    text = environment.get_template("history.html.j2").render(
        lake=lake,
        runs=times,
        first=f"{times[0]:%F %H:%M}",
        last=f"{times[-1]:%F %H:%M}",
        tables=[_table(name, rows) for name, rows in by_table.items()],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _table(name: str, rows: Sequence[Trend]) -> Mapping[str, Any]:
    shares = [_share([row.runs[at] for row in rows]) for at in range(len(rows[0].runs))]
    step = (_RIGHT - _LEFT) / max(1, len(shares) - 1)
    dots = [
        (round(_LEFT + at * step, 1), round(_BOTTOM - share * (_BOTTOM - _TOP), 1))
        for at, share in enumerate(shares)
        if share is not None
    ]
    return {
        "name": name,
        "points": " ".join(f"{x},{y}" for x, y in dots),
        "dots": dots,
        "rows": [_row(row) for row in rows],
    }


def _share(runs: Sequence[Run | None]) -> float | None:
    looked = [run.success for run in runs if run is not None]
    return sum(looked) / len(looked) if looked else None


def _row(trend: Trend) -> Mapping[str, Any]:
    cells = [_cell(run) for run in trend.runs]
    return {
        "expectation": trend.expectation,
        "cells": cells,
        "now": cells[-1]["kind"],
        "held": trend.held,
        "checked": trend.checked,
    }


def _cell(run: Run | None) -> Mapping[str, str]:
    if run is None:
        return {"kind": "none", "title": "not checked"}
    return {
        "kind": "held" if run.success else run.severity,
        "title": f"{run.checked_at:%F %T} UTC: {run.observed}",
    }
