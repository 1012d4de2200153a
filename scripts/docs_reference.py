"""Documentation pages that are generated from the code: the settings, the commands, and the REST API."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from typer.cli import get_docs_for_click
from typer.core import TyperGroup
from typer.main import get_command

from lakehouse.cli.main import app
from lakehouse.dev.samples import produce_route
from lakehouse.serving.app import make_app
from lakehouse.serving.security.access import Access
from lakehouse.settings import Settings
from lakehouse.settings.keys import Key, all_keys
from lakehouse.settings.model import RedisSettings
from lakehouse.settings.wording import as_text
from lakehouse.streams.registry import load

SHORT = 200
WRITTEN = "This page is generated from the code."


def pages() -> dict[str, str]:
    """Return the text of each generated page, by its path in the site."""
    return {**_settings(), **_commands(), **_rest()}


def _settings() -> dict[str, str]:
    connections = [key for key in all_keys().values() if key.section in {"kafka", "s3", "schema_registry"}]
    others = [key for key in all_keys().values() if key not in connections]
    return {
        "reference/settings.md": _settings_page("Index of settings", others),
        "reference/settings-kafka-s3.md": _settings_page("Kafka, registry and S3 settings", connections),
    }


def _settings_page(title: str, keys: Iterable[Key]) -> str:
    rows = "\n".join(
        f"| `{key}`, `{key.variable}`{' (s)' if key.is_secret else ''} | {_default(key)} "
        f"| {_cell(_first_sentence(key.info.description or ''))} |"
        for key in keys
    )
    return (
        f"# {title}\n\n{WRITTEN} [Settings](../settings.md) and [connection settings]"
        "(../settings-connections.md) describe them in detail. (s) marks a secret: a variable with the "
        "suffix `_FILE` can name a file that contains it.\n\n"
        f"| key, variable | default | meaning |\n| --- | --- | --- |\n{rows}\n"
    )


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[^.]\.) (?=[A-Z])", text)[0]


def _default(key: Key) -> str:
    default = as_text(key, key.info.get_default(call_default_factory=True, validated_data={}))
    is_empty = default is None or default in ("", (), {})
    return "" if is_empty else f"`{default}`"


def _cell(text: str) -> str:
    """Return text for a table cell, in which braces and angle brackets are not markup."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _commands() -> dict[str, str]:
    group = get_command(app)
    context: Any = group.make_context("lakehouse", [], resilient_parsing=True)
    made, lines = {}, []
    for words, command in _leaves(group, context):
        uri = f"commands/{'-'.join(words)}.md"
        called = " ".join(("lakehouse", *words))
        made[f"reference/{uri}"] = get_docs_for_click(
            obj=command, ctx=context, call_prefix=called.rpartition(" ")[0]
        )
        lines.append(f"| [`{called}`]({uri}) | {_cell(command.get_short_help_str(SHORT))} |")
    listed = "\n".join(lines)
    made["reference/commands.md"] = (
        f"# Commands\n\n{WRITTEN} Each command prints the same text with `--help`.\n\n"
        f"| command | |\n| --- | --- |\n{listed}\n"
    )
    return made


def _leaves(command: Any, context: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the commands that are not groups, each with the words that follow `lakehouse` to call it."""
    if not isinstance(command, TyperGroup):
        yield (), command
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        if inner is not None and not inner.hidden:
            for words, leaf in _leaves(inner, context):
                yield (name, *words), leaf


def _rest() -> dict[str, str]:
    with tempfile.TemporaryDirectory() as home:
        redis = RedisSettings(url=SecretStr("redis://127.0.0.1:6379/0"))
        settings = Settings(home=Path(home), redis=redis)
        streams = load(settings)
        more = [produce_route.router(settings, streams)]
        described = make_app(settings, streams, Access(None), more=more).openapi()
    operations = [
        (operation.get("tags", ["others"])[0], method, path, operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]
    made, lines = {}, []
    for tag, found in groupby(sorted(operations, key=lambda one: one[0]), key=lambda one: one[0]):
        listed = list(found)
        page = tag.replace(" ", "-")
        made[f"reference/rest/{page}.md"] = "\n".join(
            [f"# REST API: {tag}", "", *(line for _tag, *rest in listed for line in _operation(*rest))]
        )
        paths = ", ".join(f"`{method.upper()} {path}`" for _tag, method, path, _operation in listed[:3])
        lines.append(f"| [{tag}](rest/{page}.md) | {paths}{', …' if len(listed) > 3 else ''} |")  # noqa: PLR2004
    made["reference/rest.md"] = (
        f"# REST API\n\n{WRITTEN} `lakehouse serve` shows it at `/docs`, and the OpenAPI document at "
        "`/openapi.json`. [The REST API](../serving.md) explains how to use it.\n\n"
        "| topic | endpoints |\n| --- | --- |\n" + "\n".join(lines)
    )
    return made


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"## `{method.upper()} {path}`\n"
    yield f"{_cell(operation.get('description') or operation.get('summary', ''))}\n"
    if parameters := operation.get("parameters"):
        yield "| parameter | | |\n| --- | --- | --- |"
        for one in parameters:
            need = "required" if one.get("required") else "optional"
            yield f"| `{one['name']}` | {need} | {_cell(one.get('description', ''))} |"
        yield ""
