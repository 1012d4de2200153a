"""Options that several commands share, and groups of options declared as dataclasses."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Annotated, Any, get_type_hints

import typer


class Format(StrEnum):
    """The output format of a report."""

    TABLE = "table"
    JSON = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="Output format.")]

EnvelopeOption = Annotated[
    bool,
    typer.Option(
        "--envelope",
        help="Each line is an envelope: {key, value, headers, topic, partition, offset, timestamp_ms}; only "
        "value is required, and null is a tombstone.",
    ),
]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Expand a command's dataclass parameters into options; calls build the dataclasses from their values.

    A field is declared like a typer option: annotated with it, and with the option's default.
    """
    hints = get_type_hints(command, include_extras=True)
    signature = inspect.signature(command)
    groups = {name: hints[name] for name in signature.parameters if is_dataclass(hints[name])}
    options: dict[str, inspect.Parameter] = {}
    for name, parameter in signature.parameters.items():
        found = _options_of(groups[name]) if name in groups else [parameter.replace(annotation=hints[name])]
        options |= {one.name: one for one in found}

    @functools.wraps(command)
    def call(**values: Any) -> None:
        made = {
            name: group(**{one.name: values.pop(one.name) for one in fields(group)})
            for name, group in groups.items()
        }
        command(**values, **made)

    ordered = sorted(options.values(), key=lambda one: one.kind)
    call.__dict__["__signature__"] = inspect.Signature(ordered)
    call.__annotations__ = {one.name: one.annotation for one in ordered}
    del call.__dict__["__wrapped__"]  # typer would read the type hints of the wrapped command
    return call


def _options_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=hints[one.name]
        )
        for one in fields(group)
    ]
