"""`lakehouse run`: runs one layer, or all of them, in one Spark application."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

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
from lakehouse.cli.starting import run_chosen
from lakehouse.common.errors import SettingsError
from lakehouse.common.events import Kind, note
from lakehouse.common.terminal import Console
from lakehouse.engine.layers import LAYERS
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW

if TYPE_CHECKING:
    from lakehouse.engine.layers import Allow
    from lakehouse.settings import Settings

app = typer.Typer()


class Choice(StrEnum):
    """The layer to run, or all layers."""

    BRONZE = "bronze"
    SILVER = "silver"
    GOLD = "gold"
    EXPORT = "export"
    ALL = "all"


def _choice(name: str) -> Choice:
    """Parse a layer's name. Raises SettingsError for a stream's name, and ValueError for any other name."""
    if name in list(Choice):
        return Choice(name)

    from lakehouse.streams.registry import load, read_settings

    if name in {stream.name for stream in load(read_settings())}:
        raise SettingsError(
            f"{name} is a stream, not a layer: use `lakehouse run all --stream {name}`, or name a layer "
            "instead of all"
        )
    raise ValueError(f"{name!r} is not one of {', '.join(Choice)}")


@app.command()
def run(
    layer: Annotated[Choice, typer.Argument(parser=_choice, help="The layer to run, or `all` layers.")],
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
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt",
            help="Let this copy of a lake replace its original, with the same Kafka and Redis. First stop "
            "every process of the original for good. The layers catch up with the topics; then each row that "
            "could have changed since the copy was made is sent once, in its newest state, and the run ends. "
            "If it is killed, run it again.",
        ),
    ] = False,
    verbose: VerboseOption = False,
    dead_letter_topic: Annotated[
        str | None,
        typer.Option(
            help="With export: also send each dead letter once to this topic, unchanged, with Kafka Streams' "
            "dead-letter headers. Default: kafka.dead_letter_topic."
        ),
    ] = None,
    telemetry_port: Annotated[
        int | None,
        typer.Option(
            min=-1,
            max=65535,
            help="Serve /metrics and /health on this port (0: any free port; -1: disabled). Default: "
            "telemetry.port.",
        ),
    ] = None,
) -> None:
    """Run the layers until stopped or caught up. Ctrl-C and SIGTERM let the current micro-batch finish.

    A failed step is retried while the other steps continue. The exit code is non-zero if a step still fails
    at the end. It is 3 if the run caught up but silver refused a larger share of records than
    run.refused_limit.
    """
    if gate and layer is not Choice.ALL:
        raise SettingsError("--gate needs both gold and export: use it with `lakehouse run all`")

    from lakehouse.settings import load_settings

    layers = [name for name in LAYERS if layer in (name, Choice.ALL)]
    settings = load_settings()
    given = {"telemetry.port": telemetry_port, "kafka.dead_letter_topic": dead_letter_topic}
    settings = settings.changed({name: one for name, one in given.items() if one is not None})
    if adopt:
        if layer is not Choice.ALL or stream or gate or backfill or standby:
            raise SettingsError(
                "--adopt works only with `lakehouse run all`, and cannot be combined with --stream, --gate, "
                "--backfill or --standby"
            )
        _adopt(settings, allow or [], skip or [], verbose=verbose)
        return
    run_chosen(
        settings,
        layers,
        stream or [],
        trigger,
        allow=allow or (),
        skip=skip or [],
        backfill=backfill,
        standby=standby,
        verbose=verbose,
        gate=gate,
    )


def _adopt(settings: Settings, allow: Sequence[Allow], skip: Sequence[str], *, verbose: bool) -> None:
    """Let a copy replace its original. The export runs last, so readers never see an earlier state again."""
    from lakehouse.engine.ops_tables.event_table import recorded
    from lakehouse.engine.runtime.runner import RunOptions
    from lakehouse.operations.copies import marker as markers
    from lakehouse.operations.copies.copying import note_adoption
    from lakehouse.operations.lines import shown_lines
    from lakehouse.operations.running import run_layers
    from lakehouse.storage.tables import open_lake
    from lakehouse.streams.registry import checked, load

    settings = checked(settings)
    name = "lakehouse run all --adopt"
    with recorded(settings.lake, name), open_lake(settings, name) as lake:
        marker = note_adoption(lake)
        told = f"{settings.lake} replaces {marker.of}, as of {marker.at}"
        note(Kind.COPY, told)
        Console().print(told, soft_wrap=True)
    streams = [one for one in load(settings) if any(f"gold.{kept.name}" in marker.known for kept in one.gold)]
    options = RunOptions(AVAILABLE_NOW, allow=allow, skip=skipped(skip, settings, streams), adopts=True)
    for layers in (LAYERS[:-1], LAYERS[-1:]):
        with shown_lines([one.name for one in streams], layers, settings, AVAILABLE_NOW) as lines:
            run_layers(settings, layers, streams, options, lines, verbose=verbose)
    with open_lake(settings, name) as lake:
        markers.remove(lake.spark, lake.root)
    Console().print(f"{settings.lake} is now independent; continue with `lakehouse run`", soft_wrap=True)
