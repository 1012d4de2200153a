"""`lakehouse tokens`: manages the REST API's tokens and their scopes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from lakehouse.common.terminal import echo
from lakehouse.serving.security.tokens import Scope, tokens_of

app = typer.Typer(no_args_is_help=True, help="Add, list and remove tokens for the REST API.")

Name = Annotated[str, typer.Argument(help="The token's name, which the server logs with each command.")]


@app.command()
def add(
    name: Name,
    scope: Annotated[
        list[Scope] | None,
        typer.Option(
            help="What the token allows. read: rows; payload: raw bytes of records; operate: commands. "
            "May be repeated."
        ),
    ] = None,
    days: Annotated[
        int | None,
        typer.Option(min=1, max=36_500, help="The token expires after this many days. Default: never."),
    ] = None,
) -> None:
    """Add a token and print its secret. The secret cannot be shown again, because only its hash is stored."""
    from lakehouse.streams.registry import read_settings

    lasts = None if days is None else timedelta(days=days)
    echo(tokens_of(read_settings()).add(name, scope or [Scope.READ], lasts=lasts))


@app.command("list")
def list_() -> None:
    """Show all tokens, with their names, scopes and expiry."""
    from lakehouse.streams.registry import read_settings

    now = datetime.now(UTC)
    for one in tokens_of(read_settings()).read():
        ends = "" if one.expires_at is None else f"{one.expires_at:%Y-%m-%d %H:%M} UTC"
        until = "" if not ends else f"; until {ends}" if one.is_valid(now) else f"; expired {ends}"
        echo(f"{one.name}: {', '.join(one.scopes)}{until}")


@app.command()
def remove(name: Name) -> None:
    """Remove a token. A running server refuses it immediately."""
    from lakehouse.streams.registry import read_settings

    tokens_of(read_settings()).remove(name)
