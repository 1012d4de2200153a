"""`lakehouse run`: runs one layer or all of them in one Spark application."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from lakehouse.cli.options import (
    AllowOption,
    BackfillOption,
    SkipOption,
    StandbyOption,
    StreamOption,
    TriggerOption,
    VerboseOption,
    skipped,
)
from lakehouse.common.errors import SettingsError
from lakehouse.engine.layers.step import LAYERS
from lakehouse.engine.runtime.runner import RunOptions
from lakehouse.operations.running import run_layers
from lakehouse.streams.registry import choose, load, read_settings

app = typer.Typer()


class Choice(StrEnum):
    """A layer to run, or all layers."""

    BRONZE = "bronze"
    SILVER = "silver"
    GOLD = "gold"
    EXPORT = "export"
    ALL = "all"


def _choice(name: str) -> Choice:
    """Parse a layer's name; raises SettingsError for a stream's name, and ValueError for any other."""
    if name in list(Choice):
        return Choice(name)
    if name in {stream.name for stream in load(read_settings())}:
        raise SettingsError(
            f"{name} is a stream and not a layer: use `lakehouse run all --stream {name}`, or name a layer "
            "instead of all"
        )
    raise ValueError(f"{name!r} is not one of {', '.join(Choice)}")


@app.command()
def run(
    layer: Annotated[Choice, typer.Argument(parser=_choice, help="The layer to run, or all of them.")],
    *,
    stream: StreamOption = None,
    trigger: TriggerOption = "1 second",
    allow: AllowOption = None,
    skip: SkipOption = None,
    gate: Annotated[
        bool, typer.Option("--gate", help="Export gold only while its expectation suites pass.")
    ] = False,
    backfill: BackfillOption = False,
    standby: StandbyOption = False,
    verbose: VerboseOption = False,
    dead_letter_topic: Annotated[
        str | None,
        typer.Option(help="Send dead letters to this topic, too. Default: LAKEHOUSE_DEAD_LETTER_TOPIC."),
    ] = None,
    telemetry_port: Annotated[
        int | None,
        typer.Option(
            min=-1,
            max=65535,
            help="Serve /metrics and /health on this port (0: any free port; -1: none). Default: "
            "LAKEHOUSE_TELEMETRY_PORT.",
        ),
    ] = None,
) -> None:
    """Run the layers until stopped or caught up; Ctrl-C and SIGTERM let the micro-batch finish.

    A failed step is retried while the others continue; the exit code is non-zero if a step still fails at the
    end. It is 3 if the run caught up but silver refused more records than LAKEHOUSE_REFUSED_LIMIT allows.
    """
    if gate and layer is not Choice.ALL:
        raise SettingsError("--gate needs both gold and export: use it with `lakehouse run all`")
    layers = [name for name in LAYERS if layer in (name, Choice.ALL)]
    settings = read_settings()
    given = {"telemetry_port": telemetry_port, "dead_letter_topic": dead_letter_topic}
    settings = settings.model_copy(update={name: one for name, one in given.items() if one is not None})
    streams = choose(stream or [], settings)
    options = RunOptions(
        trigger,
        allow=allow or (),
        skip=skipped(skip or [], settings, streams),
        is_backfill=backfill,
    )
    gated_by = load(settings) if gate else ()
    run_layers(settings, layers, streams, options, gated_by=gated_by, standby=standby, verbose=verbose)
