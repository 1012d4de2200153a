"""`lakehouse tokens`: who may use the REST API, and for what."""

from __future__ import annotations

from typing import Annotated

import typer

from lakehouse.serving.tokens import Scope, Tokens
from lakehouse.streams import read_settings
from lakehouse.terminal import echo

app = typer.Typer(no_args_is_help=True, help="Tokens of the REST API: add, list, remove.")

Name = Annotated[str, typer.Argument(help="The token's name, which appears in the log of its actions.")]


@app.command()
def add(
    name: Name,
    scope: Annotated[
        list[Scope] | None,
        typer.Option(
            help="read: rows; payload: raw bytes of records; operate: commands. May be given again."
        ),
    ] = None,
) -> None:
    """Add a token and print its secret, once: only its hash is kept."""
    echo(Tokens(read_settings().home).add(name, scope or [Scope.READ]))


@app.command("list")
def list_() -> None:
    """Show the tokens' names and scopes."""
    for one in Tokens(read_settings().home).read():
        echo(f"{one.name}: {', '.join(one.scopes)}")


@app.command()
def remove(name: Name) -> None:
    """Remove a token; a running server refuses it at once."""
    Tokens(read_settings().home).remove(name)
