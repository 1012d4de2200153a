"""`lakehouse settings`: shows each setting, its value and its origin; `init` writes a lakehouse.toml."""

from __future__ import annotations

import json
import os
from pathlib import Path

import typer
from rich.table import Table

from lakehouse.cli.options import Format, FormatOption
from lakehouse.common.errors import SettingsError
from lakehouse.common.printable import printable
from lakehouse.common.terminal import Console, echo, echo_json

_UNSET = {
    "server_home": "home",
    "only_streams": "all",
    "kafka.ssl_ca": "the system's",
    "schema_registry.ca": "the system's",
    "alerts.webhook_ca": "the system's",
    "alerts.rules": "those in docs/alerts.md",
}
"""Texts that are shown for these keys if they have no value. Other keys without a value are shown as `-`."""

app = typer.Typer(add_completion=False, invoke_without_command=True)


@app.callback()
def settings(context: typer.Context, *, format_: FormatOption = Format.TABLE) -> None:
    """Show each setting with its value and its origin: an environment variable, the file, or a default.

    Secrets are masked. In a URL, only the password is masked. Defaults are dimmed. A setting without a value
    is shown as `-`, or with the default that applies.
    """
    if context.invoked_subcommand is not None:
        return

    from lakehouse.settings.keys import all_keys
    from lakehouse.settings.reading import read
    from lakehouse.settings.shown import DEFAULT, by_key, single

    found = read()
    rows = by_key(found)
    if format_ is Format.JSON:
        echo_json({name: {"value": one.value, "from": one.origin} for name, one in rows.items()})
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("setting", "value", "from"):
        table.add_column(heading, overflow="fold")
    for one in (each for row in rows.values() for each in single(found, row)):
        text = one.value if isinstance(one.value, str) else json.dumps(one.value, ensure_ascii=False)
        if one.key in all_keys() and one.value in ("", [], {}):
            text = _UNSET.get(one.key, "-") if one.origin == DEFAULT else "-"
        style = "dim" if one.origin == DEFAULT else None
        table.add_row(*map(printable, (one.key, text, one.origin)), style=style)
    Console().print(table, markup=False)


@app.command()
def init() -> None:
    """Write a lakehouse.toml that contains every key, its meaning and its default, all commented out.

    The file is written to the path in LAKEHOUSE_CONFIG, or else to ./lakehouse.toml. If it already exists, it
    is left alone, and the exit code is 2.
    """
    from lakehouse.settings.config_file import CONFIG_VARIABLE, DEFAULT_CONFIG
    from lakehouse.settings.template import template

    path = Path(os.environ.get(CONFIG_VARIABLE) or DEFAULT_CONFIG)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(template())
    except FileExistsError:
        raise SettingsError(f"{path} already exists, and was left alone; move or delete it") from None
    except OSError as error:
        raise SettingsError(f"{path} could not be written: {error}") from None
    echo(f"{path.absolute()} has every setting, commented out")
