"""`lakehouse rights`: prints the Kafka ACLs that the pipeline's user needs."""

from __future__ import annotations

from typing import Annotated

import typer

from lakehouse.common.terminal import echo
from lakehouse.operations.doctor.rights import rights_of_pipeline, rights_of_producer
from lakehouse.streams.registry import choose, read_settings

app = typer.Typer()


@app.command()
def rights(
    stream: Annotated[list[str] | None, typer.Option(help="Only this stream; may be given again.")] = None,
    user: Annotated[str, typer.Option(help="The principal, without User:.")] = "lakehouse",
    *,
    producer: Annotated[
        bool, typer.Option("--producer", help="Print the ACLs for `lakehouse produce` instead.")
    ] = False,
) -> None:
    """Print the Kafka ACLs that the pipeline needs, each as arguments of kafka-acls.sh.

    No broker is contacted: topics and groups come from the settings. Optional ACLs are marked.
    """
    settings = read_settings()
    streams = choose(stream or [], settings)
    for right in (rights_of_producer if producer else rights_of_pipeline)(streams, settings):
        mark = "" if right.is_required else "not required: "
        echo(f"{right.as_command(user)}  # {mark}{right.why}")
