"""`lakehouse copy` and `adopt`: copy a whole lake to another location, and continue from the copy."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.filesize import decimal

from lakehouse.cli.options import AllowOption, SkipOption, VerboseOption, skipped
from lakehouse.common.errors import SettingsError
from lakehouse.common.events import Kind, note
from lakehouse.common.paths import is_on_s3, lake_address
from lakehouse.common.terminal import Console
from lakehouse.engine.layers.step import LAYERS
from lakehouse.engine.ops_tables.event_table import recorded
from lakehouse.engine.runtime.runner import RunOptions
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.operations.copies import marker as markers
from lakehouse.operations.copies.adopting import note_adoption
from lakehouse.operations.copies.copying import Copying
from lakehouse.operations.running import run_layers
from lakehouse.storage.tables import Lake, open_lake
from lakehouse.streams.registry import load, reach, read_settings

app = typer.Typer(add_completion=False)


@app.command()
def copy(
    to: Annotated[str, typer.Option("--to", metavar="URL", help="The destination: a path, or a Hadoop URL.")],
) -> None:
    """Copy the whole lake to another location, or update an earlier copy there.

    The streams can keep running. The copy has consistent versions of all tables. If the command is killed,
    run it again. `LAKEHOUSE_LAKE=URL lakehouse audit` audits a copy; `lakehouse adopt` continues from it.
    """
    settings, console = read_settings(), Console()
    try:
        target = lake_address(to)
    except ValueError as error:
        raise SettingsError(f"--to: {error}") from None
    reach(settings, target)
    # One session serves both locations, so it needs the S3 settings if either is on S3.
    place = settings.model_copy(update={"lake": target if is_on_s3(target) else settings.lake})
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
            f"{target} is a copy of {lake.root} as of {made.at}: {done.tables:,} tables; {done.files:,} "
            f"files, {decimal(done.bytes)} were copied by this run"
        )
        note(Kind.COPY, told, details={"to": target, "files": done.files, "bytes": done.bytes})
        console.print(told, soft_wrap=True)


@app.command()
def adopt(allow: AllowOption = None, skip: SkipOption = None, *, verbose: VerboseOption = False) -> None:
    """Replace the original lake by this copy, with the same Kafka and Redis.

    Stop every process of the original for good before you run this. Bronze, silver and gold first catch up
    with the topics. Then each row that may have changed since the copy is sent once, in its newest state, so
    readers never see an older state again. If the command is killed, run it again.
    """
    settings = read_settings()
    with recorded(settings.lake, "lakehouse adopt"), open_lake(settings, "lakehouse adopt") as lake:
        marker = note_adoption(lake)
        told = f"{settings.lake} replaces {marker.of}, as of {marker.at}"
        note(Kind.COPY, told)
        Console().print(told, soft_wrap=True)
    streams = [one for one in load(settings) if any(f"gold.{kept.name}" in marker.known for kept in one.gold)]
    options = RunOptions(
        AVAILABLE_NOW, allow=allow or (), skip=skipped(skip or [], settings, streams), adopts=True
    )
    run_layers(settings, LAYERS[:-1], streams, options, verbose=verbose)
    run_layers(settings, LAYERS[-1:], streams, options, verbose=verbose)
    with open_lake(settings, "lakehouse adopt") as lake:
        markers.remove(lake.spark, lake.root)
    Console().print(f"{settings.lake} is independent now; continue with `lakehouse run`", soft_wrap=True)
