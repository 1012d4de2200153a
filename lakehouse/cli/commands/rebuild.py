"""`lakehouse rebuild`: recomputes rows from the layer below while the streams run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse.cli.options import StreamOption
from lakehouse.common.errors import TableError
from lakehouse.common.events import Kind, note
from lakehouse.common.readable import parse_moment
from lakehouse.common.terminal import Console
from lakehouse.operations.repair import MOST_TAKEN_AWAY

if TYPE_CHECKING:
    from lakehouse.operations.repair import rebuild_gold, rebuild_silver
    from lakehouse.storage.tables import Lake
    from lakehouse.streams.definition import GoldTable, Stream

From = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="Only rows from this time on: ISO 8601 with an offset, or 1h for an hour ago. Silver uses a "
        "record's Kafka timestamp, or its landing time if it has none; gold uses the row's start time "
        "(window_start, ts).",
    ),
]
To = Annotated[str | None, typer.Option("--to", help="Only rows before this time; same format as --from.")]
_PATIENCE_S = 60.0

app = typer.Typer()


class Layer(StrEnum):
    """A layer that can be rebuilt."""

    SILVER = "silver"
    GOLD = "gold"


@app.command()
def rebuild(
    layer: Annotated[Layer, typer.Argument(help="The layer to rebuild from the layer below it.")],
    stream: StreamOption = None,
    first: From = None,
    end: To = None,
    *,
    allow_late: Annotated[
        bool, typer.Option("--allow-late", help="Silver: also accept records whose only fault is lateness.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Gold: delete rows whose records are missing from silver, even if they are more than "
            f"{MOST_TAKEN_AWAY:.0%} of a table.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report changes and the amount of data read, but write no row.")
    ] = False,
) -> None:
    """Recompute rows from the layer below, and write those that differ. The streams can keep running.

    Correct rows are not touched. A rebuild of silver validates every record again with the current rules and
    settings, and then rebuilds gold. If a rebuild is killed, completed commits remain; rerun it to finish.
    During a rebuild of silver, micro-batches wait if their silver table's records have ids, or had different
    ids when the table was written.
    """
    from lakehouse.engine.ops_tables.event_table import recorded
    from lakehouse.engine.runtime.runner import utc_now
    from lakehouse.operations.copies.marker import refuse_copy
    from lakehouse.operations.repair import rebuild_gold, rebuild_silver
    from lakehouse.storage.tables import open_lake
    from lakehouse.streams.registry import choose, read_settings

    settings, console = read_settings(), Console()
    streams = choose(stream or [], settings)
    now = utc_now()
    since, until = (None if text is None else parse_moment(text, now) for text in (first, end))
    with (
        recorded(settings.lake, f"lakehouse rebuild {layer}"),
        open_lake(settings, "lakehouse rebuild") as lake,
    ):
        refuse_copy(lake)
        if layer is Layer.GOLD:
            span = rebuild_gold.WindowSpan(since, until)
            _rebuild_gold(lake, streams, span, console, force=force, dry_run=dry_run)
            return
        landed = rebuild_silver.Landed(since, until)
        for one in streams:
            _say_cost(lake, one, console)
            done = rebuild_silver.rebuild_silver(
                lake, one, landed, now, allow_late=allow_late, dry_run=dry_run
            )
            _say(done, one, console, dry_run=dry_run)
            if not dry_run:  # even if silver is already correct: an earlier rebuild may have been killed
                _await_gold(lake, one)
                _rebuild_gold(lake, [one], rebuild_gold.WindowSpan(), console, force=force)


def _say_cost(lake: Lake, stream: Stream, console: Console) -> None:
    """Print how much bronze data a rebuild reads, and which silver tables cannot be written to meanwhile."""
    from lakehouse.engine.layers.holding import is_waiting

    for source in stream.sources:
        if not lake.exists("bronze", source.table):
            continue
        size_mb = _size_mb(lake, "bronze", [source.table])
        waits = (
            f"; writes to silver.{source.table} wait until this is done" if is_waiting(lake, source) else ""
        )
        console.print(
            f"bronze.{source.table} is validated again: {size_mb:,.1f} MB in files{waits}", soft_wrap=True
        )


def _say_cost_of_gold(lake: Lake, table: GoldTable, console: Console) -> None:
    """Print how much silver data a rebuild can read, and that writes to the gold table wait meanwhile."""
    silver = " and ".join(f"silver.{name}" for name in table.reads)
    size_mb = _size_mb(lake, "silver", table.reads)
    console.print(
        f"gold.{table.name} is recomputed from {silver}: up to {size_mb:,.1f} MB in files; writes to "
        f"gold.{table.name} wait until this is done",
        soft_wrap=True,
    )


def _size_mb(lake: Lake, layer: str, names: Iterable[str]) -> float:
    """Return the total size, in MB, of the named tables that exist in a layer."""
    from lakehouse.storage import tables

    paths = (lake.path(layer, name) for name in names if lake.exists(layer, name))
    return sum(tables.size_bytes(lake.spark, path) for path in paths) / 1e6


def _say(
    done: rebuild_silver.SilverRebuilt, stream: Stream, console: Console, *, dry_run: bool = False
) -> None:
    told = (
        f"silver of {stream.name}: {done.judged:,} records validated again; {done.inserted:,} rows inserted, "
        f"{done.changed:,} changed, {done.removed:,} removed; {done.newly_refused:,} newly refused, "
        f"{done.newly_accepted:,} newly accepted"
    )
    if done.skipped:
        told = f"{told}; {done.skipped:,} skipped with --skip remain dead letters"
    if done.without_id:
        told = (
            f"{told}; {done.without_id:,} rows have no id, because retention has deleted their records: "
            "later records with the same ids will count in addition to them"
        )
    if dry_run:
        gold = ", ".join(f"gold.{table.name}" for table in stream.gold)
        _say_only(f"{told}; then {gold} would be rebuilt", console)
        return
    note(Kind.REBUILD, told, stream=stream.name, layer="silver", details=asdict(done))
    console.print(told, soft_wrap=True)


def _say_only(told: str, console: Console) -> None:
    console.print(f"dry run, no row was written: {told}", soft_wrap=True)


def _await_gold(lake: Lake, stream: Stream) -> None:
    """Wait until gold has read all silver rows that were written before the rebuild.

    Raises TableError if this takes more than a minute.
    """
    from lakehouse.operations.repair import rebuild_gold

    deadline = time.monotonic() + _PATIENCE_S
    ends = rebuild_gold.silver_versions(lake, stream)
    while waiting := rebuild_gold.behind(lake, stream, ends):
        if time.monotonic() > deadline:
            raise TableError(
                f"gold has not read all silver rows from before the rebuild: {', '.join(waiting)}. Run "
                "`lakehouse run gold --trigger available-now`, then `lakehouse rebuild gold --stream "
                f"{stream.name}`"
            )
        time.sleep(1)


def _rebuild_gold(
    lake: Lake,
    streams: Sequence[Stream],
    span: rebuild_gold.WindowSpan,
    console: Console,
    *,
    force: bool,
    dry_run: bool = False,
) -> None:
    from lakehouse.operations.repair import rebuild_gold

    for stream in streams:
        for table in stream.gold:
            _say_cost_of_gold(lake, table, console)
            for done in rebuild_gold.rebuild_gold(lake, table, span, force=force, dry_run=dry_run):
                name = f"gold.{done.table}"
                told = (
                    f"{name}: {done.rows:,} rows recomputed from silver; {done.changed:,} "
                    f"corrected, {done.deleted:,} deleted, the others untouched"
                )
                if dry_run:
                    _say_only(told, console)
                    continue
                note(Kind.REBUILD, told, stream=stream.name, layer="gold", table=name, details=asdict(done))
                console.print(told, soft_wrap=True)
