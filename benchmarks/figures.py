"""Figures from several rounds, as a table with medians and spread, as JSON, and as a plot."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

PIPELINE, KAFKA_STREAMS = "pipeline", "Kafka Streams"
_COLOURS = {PIPELINE: "tab:blue", KAFKA_STREAMS: "tab:orange"}


@dataclass(frozen=True)
class Measured:
    """The figures of one system in one round, by name. A name includes the unit."""

    who: str
    round: int
    figures: dict[str, float]


def show(console: Console, title: str, found: Sequence[Measured]) -> None:
    """Print the median, minimum and maximum of each figure."""
    table = Table(title=f"{title}; median (least to greatest)")
    table.add_column("")
    everybody = _everybody(found)
    for who in everybody:
        table.add_column(who, justify="right")
    for name in dict.fromkeys(name for one in found for name in one.figures):
        table.add_row(name, *(_cell(_of(found, who, name)) for who in everybody))
    console.print(table)


def write(file: Path | None, found: Sequence[Measured]) -> None:
    """Write every figure as JSON, if a file is given."""
    if file is not None:
        file.write_text(json.dumps([asdict(one) for one in found], indent=1))


def draw(file: Path | None, title: str, found: Sequence[Measured], names: Sequence[str]) -> None:
    """Plot the named figures, with a dot for each round, if a file is given."""
    if file is None:
        return
    from matplotlib.figure import Figure  # noqa: PLC0415 - takes a second, which only a plot needs

    everybody = _everybody(found)
    figure = Figure(figsize=(3.3 * len(names), 3.5), layout="constrained")
    figure.suptitle(title)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for place, who in enumerate(everybody):
            values = _of(found, who, name)
            if values:
                axes.bar(place, statistics.median(values), color=_COLOURS[who], alpha=0.6)
                axes.plot([place] * len(values), values, "k.")
        axes.set_xticks(range(len(everybody)), everybody)
        axes.set_title(name)
    figure.savefig(file, dpi=120)


def _everybody(found: Sequence[Measured]) -> list[str]:
    return [who for who in (PIPELINE, KAFKA_STREAMS) if any(one.who == who for one in found)]


def _of(found: Sequence[Measured], who: str, name: str) -> list[float]:
    return [one.figures[name] for one in found if one.who == who and name in one.figures]


def _cell(values: Sequence[float]) -> str:
    if not values:
        return ""
    form = "{:,.0f}" if statistics.median(values) >= 100 else "{:.2f}"  # noqa: PLR2004 - three digits
    cell = form.format(statistics.median(values))
    ends = (form.format(end) for end in (min(values), max(values)))
    return cell if len(values) == 1 else f"{cell} ({' to '.join(ends)})"
