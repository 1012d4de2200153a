"""The command line: `lakehouse --help`."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from lakehouse.cli import help as helping
from lakehouse.cli.commands import (
    alert,
    audit,
    contract,
    copy,
    dead_letters,
    demo,
    doctor,
    events,
    expect,
    maintain,
    new,
    produce,
    rebuild,
    run,
    serve,
    services,
    setup,
    sql,
    status,
    sync_names,
    tokens,
    try_stream,
)
from lakehouse.cli.jobs import exit_with
from lakehouse.common.extras import code_version
from lakehouse.common.terminal import echo
from lakehouse.storage.spark import java

app = typer.Typer(
    name="lakehouse",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    epilog=helping.EPILOG,
)


def _add(group: typer.Typer, name: str | None = None) -> None:
    """Add a command, or with a name a group of commands, to its help panel and with its examples."""
    if name is None:
        helping.arrange(group)
        app.add_typer(group)
    else:
        panel, epilog = helping.part_of(name), helping.examples_of(name)
        app.add_typer(group, name=name, rich_help_panel=panel, epilog=epilog)


_add(demo.app)
_add(services.app, "services")
_add(setup.app)
_add(produce.app, "produce")
_add(try_stream.app)
_add(new.app, "new")
_add(contract.app, "contract")
_add(run.app)
_add(serve.app)
_add(tokens.app, "tokens")
_add(sql.app)
_add(sync_names.app)
_add(maintain.app)
_add(audit.app)
_add(copy.app)
_add(alert.app)
_add(expect.app)
_add(doctor.app)
_add(events.app)
_add(status.app)
_add(rebuild.app)
_add(dead_letters.app, "dead-letters")


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
    """Turn Kafka event streams into exact, continuously merged Delta tables for SQL."""


def main() -> None:
    """Entry point of the `lakehouse` command."""
    exit_with(app)
