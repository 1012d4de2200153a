"""`lakehouse maintain`: keeps tables small; jobs/maintain.py runs it with spark-submit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal
from rich.table import Table

from lakehouse.cli.options import StreamOption
from lakehouse.common.events import Kind, note
from lakehouse.common.terminal import Console

if TYPE_CHECKING:
    from lakehouse.operations.maintenance.upkeep import Kept
    from lakehouse.settings import Settings
    from lakehouse.storage.tables import Lake
    from lakehouse.streams.definition import Stream

app = typer.Typer(add_completion=False)


@app.command()
def maintain(
    stream: StreamOption = None,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the rows and files to remove, without changing anything.")
    ] = False,
) -> None:
    """Delete old rows, merge small files, remove unneeded files and commits, and clear fold state.

    Rows are deleted only from tables listed in maintenance.keep_rows; no other user-visible value changes.
    Rows that a layer has not read yet are kept, however old they are. You can run this at any time, even
    while the layers are running. A rerun finds nothing to do. A live run performs the same maintenance
    automatically, at the interval set by maintenance.every.
    """
    from lakehouse.engine.ops_tables import event_table
    from lakehouse.engine.ops_tables.event_table import recorded
    from lakehouse.operations.copies.marker import refuse_copy
    from lakehouse.storage.tables import open_lake
    from lakehouse.streams.registry import choose, read_settings

    settings, console = read_settings(), Console()
    streams = choose(stream or [], settings)
    with recorded(settings.lake, "lakehouse maintain"), open_lake(settings, "lakehouse maintain") as lake:
        if not dry_run:
            refuse_copy(lake)
            _clear(lake, streams, console)
        console.print(_table(_keep(lake, streams, settings, console, dry_run=dry_run), dry_run=dry_run))
        if not dry_run and (told := event_table.compact(lake.root)):
            note(Kind.MAINTENANCE, told, layer="ops", table=event_table.EVENTS.qualified_name)
            console.print(told)


def _clear(lake: Lake, streams: Sequence[Stream], console: Console) -> None:
    from lakehouse.operations.maintenance.fold_state import clear_state

    for cleared in clear_state(lake, streams):
        which = "" if cleared.before is None else f" that ended before {cleared.before:%F %T} UTC"
        what = f"{cleared.table}: fold state cleared in {cleared.rows:,} rows{which}"
        note(Kind.MAINTENANCE, what, layer="gold", table=cleared.table, details={"rows": cleared.rows})
        console.print(what)


def _keep(
    lake: Lake, streams: Sequence[Stream], settings: Settings, console: Console, *, dry_run: bool
) -> list[Kept]:
    from lakehouse.engine.runtime.runner import utc_now
    from lakehouse.operations.maintenance.upkeep import Keeper, tasks

    keeper, done = Keeper(lake, settings), []
    with console.status("") as shown:
        for task in tasks(streams, settings):
            shown.update(task.spec.qualified_name)
            kept = keeper.keep(task, utc_now(), dry_run=dry_run)
            if kept is not None:
                done.append(kept)
                if kept.has_done_something and not dry_run:
                    kept.note()
    return done


def _table(done: Sequence[Kept], *, dry_run: bool) -> Table:
    """Return a report with a row for each table.

    Each row shows counts of rows, files and bytes. The last column names the reader whose unread data is
    kept.
    """
    gone = "rows to delete" if dry_run else "rows deleted"
    merged, removed = ("to merge into", "to remove") if dry_run else ("merged into", "removed")
    shown = Table("table")
    for heading in (gone, "files", merged, f"old files {removed}", "on disk", "after"):
        shown.add_column(heading, justify="right")
    shown.add_column("kept for")
    for one in done:
        (before, after), (stored, left) = one.files, one.stored
        shown.add_row(
            one.table,
            f"{one.rows:,}",
            f"{before.files:,}",
            f"{after.files:,}",
            f"{one.removed:,}",
            decimal(stored.bytes),
            "" if dry_run else decimal(left.bytes),
            "" if one.held is None else one.held.reader,
        )
    return shown
