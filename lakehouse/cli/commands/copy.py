"""`lakehouse copy`: copies a whole lake to another location."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.filesize import decimal

from lakehouse.common.errors import SettingsError
from lakehouse.common.events import Kind, note
from lakehouse.common.paths import is_on_s3, lake_address
from lakehouse.common.terminal import Console

app = typer.Typer(add_completion=False)


@app.command()
def copy(
    to: Annotated[str, typer.Option("--to", metavar="URL", help="The destination: a path, or a Hadoop URL.")],
) -> None:
    """Copy the whole lake to another location, or update an earlier copy there.

    The streams can keep running during the copy. The copied versions of the tables are consistent with each
    other. If the command is killed, run it again. To audit a copy, run `LAKEHOUSE_LAKE=URL lakehouse audit`.
    To continue from it, run `lakehouse run all --adopt`.
    """
    from lakehouse.engine.ops_tables.event_table import recorded
    from lakehouse.operations.copies.copying import Copying
    from lakehouse.storage.tables import Lake, open_lake
    from lakehouse.streams.registry import load, reach, read_settings

    settings, console = read_settings(), Console()
    try:
        target = lake_address(to)
    except ValueError as error:
        raise SettingsError(f"--to: {error}") from None
    reach(settings, target)
    # One session accesses both locations, so it needs the S3 settings if either location is on S3.
    place = settings.changed({"lake": target if is_on_s3(target) else settings.lake})
    with (
        recorded(settings.lake, "lakehouse copy"),
        open_lake(place, "lakehouse copy", reads_only=True) as opened,
    ):
        lake = Lake(opened.spark, settings.lake)
        with console.status("") as shown:

            def tell(table: str, done: int, files: int) -> None:
                shown.update(f"{table}: {done:,} of {files:,} files")

            copying = Copying(lake, Lake(lake.spark, target), load(settings), tell)
            made, done = copying.run(), copying.done
        told = (
            f"{target} is a copy of {lake.root} as of {made.at}: {done.tables:,} tables; this run copied "
            f"{done.files:,} files, {decimal(done.bytes)}"
        )
        note(Kind.COPY, told, details={"to": target, "files": done.files, "bytes": done.bytes})
        console.print(told, soft_wrap=True)
