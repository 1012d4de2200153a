"""Options shared by commands and jobs, and groups of options that are declared as dataclasses."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from lakehouse.common.errors import SettingsError
from lakehouse.common.signatures import keyword, sign
from lakehouse.engine.layers import Allow

if TYPE_CHECKING:
    from lakehouse.engine.ops_tables.data_losses import LostRange
    from lakehouse.settings import Settings
    from lakehouse.streams.definition import Stream


class Format(StrEnum):
    """The format in which a report is printed."""

    TABLE = "table"
    JSON = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="Output format.")]

EnvelopeOption = Annotated[
    bool,
    typer.Option(
        "--envelope",
        help="Each line is an envelope: {key, value, headers, topic, partition, offset, timestamp_ms}; only "
        "value is required, and a null value is a tombstone.",
    ),
]

StreamOption = Annotated[list[str] | None, typer.Option(help="Only this stream; may be repeated.")]
TriggerOption = Annotated[
    str,
    typer.Option(help='When to read: available-now (catch up and stop), or an interval such as "1 second".'),
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also print the full traceback of a failure.")
]
AllowOption = Annotated[
    list[Allow] | None,
    typer.Option(
        help="Continue despite one of these problems; may be repeated. data-loss: Kafka dropped records "
        "before they landed; ops.data_losses lists them. resend: rows are sent again, because their table "
        "was deleted and recreated, or VACUUM has removed its changes."
    ),
]
SkipOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOPIC/PARTITION/OFFSET",
        help="Skip a record that cannot be processed; may be repeated. OFFSET may be a range such as 5-9. "
        "Records that bronze skips are listed in ops.data_losses; records that have already landed become "
        "dead letters without being parsed.",
    ),
]
BackfillOption = Annotated[
    bool,
    typer.Option(
        "--backfill",
        help="Load history: no record in this run counts as late. The lake notes these records, so a rebuild "
        "treats them the same way. A run without this option applies the watermark again.",
    ),
]
StandbyOption = Annotated[
    bool,
    typer.Option(
        "--standby",
        help="Start two runs with --standby and the same layers and streams. One processes data. The other "
        "warms up and waits, and takes over within seconds if the first one stops or dies.",
    ),
]


def skipped(places: Sequence[str], settings: Settings, streams: Sequence[Stream]) -> list[LostRange]:
    """Return the offset ranges that the values of --skip specify.

    Raises SettingsError unless each value names offsets in a topic that the streams read.
    """
    topics = {settings.topic(source.topic) for stream in streams for source in stream.sources}
    return [_skipped(place, topics) for place in places]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's dataclass parameters with options.

    When the command is called, the dataclasses are built from the values of the options. A field is declared
    like an option in typer: its annotation describes the option, and its default is the option's default.
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

    sign(call, options.values())
    del call.__dict__["__wrapped__"]  # typer would read the type hints of the wrapped command
    return call


def _options_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [keyword(one.name, hints[one.name], one.default) for one in fields(group)]


def _skipped(place: str, topics: Collection[str]) -> LostRange:
    from lakehouse.engine.ops_tables.data_losses import LostRange

    found = re.fullmatch(r"([^/]+)/(\d{1,9})/(\d{1,18})(?:-(\d{1,18}))?", place, re.ASCII)
    if found is None or found[1] not in topics:
        raise SettingsError(
            f"--skip {place}: expected TOPIC/PARTITION/OFFSET, with one of these topics: "
            f"{', '.join(sorted(topics))}"
        )
    return LostRange(found[1], int(found[2]), int(found[3]), int(found[4] or found[3]))
