"""`lakehouse settings`: shows each setting, its value and its origin; `init` writes a lakehouse.toml."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from lakehouse.cli.options import Format, FormatOption
from lakehouse.common.errors import SettingsError
from lakehouse.common.printable import printable
from lakehouse.common.terminal import Console, echo, echo_json

if TYPE_CHECKING:
    from lakehouse.settings.keys import Key

_DEFAULT = "default"
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

    found = read()
    rows = {
        name: (_shown(key, key.of(found.settings)), found.origins.get(name, _DEFAULT))
        for name, key in all_keys().items()
    }
    if format_ is Format.JSON:
        echo_json({name: {"value": value, "from": origin} for name, (value, origin) in rows.items()})
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("setting", "value", "from"):
        table.add_column(heading, overflow="fold")
    for name, (value, origin) in rows.items():
        style = "dim" if origin == _DEFAULT else None
        for key, one in _single(name, value):
            text = one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)
            if key in all_keys() and one in ("", [], {}):
                text = _UNSET.get(key, "-") if origin == _DEFAULT else "-"
            table.add_row(*map(printable, (key, text, origin)), style=style)
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


def _single(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values of a configuration table with their full names, such as streams.sales.threshold."""
    if not isinstance(value, Mapping) or not value:
        yield name, value
        return
    for key, one in value.items():
        yield from _single(f"{name}.{key}", one)


def _shown(key: Key, value: Any) -> Any:
    """Return a setting's value as JSON, as in the file. Secrets are masked; a missing value is empty."""
    from pydantic import SecretStr

    from lakehouse.settings.masking import masked
    from lakehouse.settings.wording import as_text

    if isinstance(value, SecretStr):
        return masked(key, value.get_secret_value())
    if key.is_secret:
        return [masked(key, one.get_secret_value()) for one in value]
    text = as_text(key, value)
    if isinstance(text, list | tuple):
        return list(text)
    return text if isinstance(text, bool | int | float | dict) else str(text or "")
