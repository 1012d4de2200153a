"""The command line: `lakehouse --help`."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from lakehouse.application import exit_with
from lakehouse.commands import (
    alert,
    audit,
    copy,
    dead_letters,
    demo,
    doctor,
    events,
    expect,
    health,
    maintain,
    new,
    produce,
    rebuild,
    register,
    rights,
    run,
    serve,
    services,
    setup,
    sql,
    status,
    tokens,
    try_stream,
)
from lakehouse.spark import java
from lakehouse.terminal import echo
from lakehouse.version import code_version

app = typer.Typer(
    name="lakehouse",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
app.add_typer(demo.app)
app.add_typer(services.app, name="services")
app.add_typer(rights.app)
app.add_typer(setup.app)
app.add_typer(produce.app, name="produce")
app.add_typer(try_stream.app)
app.add_typer(new.app, name="new")
app.add_typer(run.app)
app.add_typer(serve.app)
app.add_typer(tokens.app, name="tokens")
app.add_typer(sql.app)
app.add_typer(register.app)
app.add_typer(maintain.app)
app.add_typer(audit.app)
app.add_typer(copy.app)
app.add_typer(alert.app)
app.add_typer(expect.app)
app.add_typer(health.app)
app.add_typer(doctor.app)
app.add_typer(events.app)
app.add_typer(status.app)
app.add_typer(rebuild.app)
app.add_typer(dead_letters.app, name="dead-letters")


def _say_version(*, wanted: bool) -> None:
    if wanted:
        parts = {"Spark": "pyspark", "Delta": "delta-spark"}
        versions = [f"{part} {metadata.version(package)}" for part, package in parts.items()]
        versions.append(f"Java {java.version() or 'missing'}")
        echo(f"lakehouse {code_version()} ({', '.join(versions)})")
        raise typer.Exit


@app.callback()
def lakehouse(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_say_version,
            is_eager=True,
            help="Print the versions of lakehouse, Spark, Delta and Java.",
        ),
    ] = False,
) -> None:
    """Kafka event streams into exact, queryable, continuously merged Delta tables."""


def main() -> None:
    """Entry point of the `lakehouse` command."""
    exit_with(app)
