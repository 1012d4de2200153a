"""`lakehouse contract`: exports a contract as a schema, compares it with another schema, or publishes it.

lakehouse contract export metrics --format avro > metrics.avsc
lakehouse contract check metrics --against registry
lakehouse contract publish metrics
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lakehouse.common.errors import LakehouseError, SettingsError, first_line
from lakehouse.common.extras import needed
from lakehouse.common.record_lines import RecordFormat
from lakehouse.common.terminal import echo

if TYPE_CHECKING:
    from lakehouse.settings import Settings
    from lakehouse.storage.kafka.schema_registry import Registered, SchemaKind
    from lakehouse.streams.definition import Source

app = typer.Typer(
    no_args_is_help=True,
    help="Print a stream's contract as a schema, compare it with another schema, or publish it.",
)

_BROKEN, _UNCHECKED = 1, 2
_REGISTRY = "registry"
Exported = Literal["avro", "json-schema", "protobuf", "odcs"]
StreamName = Annotated[str, typer.Argument(metavar="STREAM", help="A stream's name, or module:OBJECT.")]
Topic = Annotated[
    str | None,
    typer.Option(help="The topic, by its default name; required if the stream reads several topics."),
]
FormatOption = Annotated[
    RecordFormat | None,
    typer.Option(
        "--format", help="Schema format. Default: the topic's record format, or json-schema for JSON."
    ),
]


class UncheckedError(LakehouseError):
    """A schema could not be checked against a contract."""

    exit_code = _UNCHECKED


@app.command()
def export(
    stream: StreamName,
    *,
    format_: Annotated[
        Exported | None,
        typer.Option(
            "--format", help="Schema format. Default: the topic's record format, or json-schema for JSON."
        ),
    ] = None,
    topic: Topic = None,
) -> None:
    """Print a contract as a schema or as an ODCS data contract.

    ODCS is printed as JSON, which is also valid YAML.
    """
    from lakehouse.engine.formats.contracts import data_contract, schema_of_contract
    from lakehouse.streams.registry import read_settings

    settings = read_settings()
    source = _source(settings, stream, topic)
    if format_ == "odcs":
        text = json.dumps(data_contract(source, settings.topic(source.topic)), indent=2)
    else:
        text = schema_of_contract(source, format_ or source.format).text
    for line in text.rstrip("\n").split("\n"):
        echo(line)


@app.command()
def check(
    stream: StreamName,
    *,
    against: Annotated[
        str, typer.Option(help="A schema file, or `registry` for the topic's newest value schema.")
    ] = _REGISTRY,
    format_: FormatOption = None,
    topic: Topic = None,
) -> None:
    """Check whether records that were written with a schema meet the contract.

    `--against registry` also checks whether the contract satisfies the registry's compatibility rule (such as
    BACKWARD) for the topic. The exit code is 1 if a difference breaks the contract, and 2 if the check was
    not possible. A warning means that some records could be refused. Warnings do not change the exit code.
    """
    from lakehouse.streams.registry import read_settings

    settings = read_settings()
    source = _source(settings, stream, topic, format_)
    name = settings.topic(source.topic)
    with needed("formats", "comparing schemas"):
        from lakehouse.engine.formats.compatibility import KINDS, Finding, findings
    try:
        schema, what = _schema(source, name, against, KINDS[source.format])
        found = findings(source, schema)
        if against == _REGISTRY and not _is_registrable(source, name):
            rule = "the registry's compatibility rule for this topic rejects the contract as the next schema"
            found.append(Finding(rule))
    except (LakehouseError, ValueError, LookupError, TypeError) as error:
        raise UncheckedError(f"{against} could not be checked: {first_line(error)}") from error
    for one in found:
        echo(f"{'breaks' if one.breaks else 'warning'}: {one.text}")
    broken = sum(one.breaks for one in found)
    echo(
        f"{what}: {f'incompatible ({broken} breaking)' if broken else 'compatible'} "
        f"with the contract of {name}"
    )
    if broken:
        raise typer.Exit(_BROKEN)


@app.command()
def publish(stream: StreamName, *, format_: FormatOption = None, topic: Topic = None) -> None:
    """Publish a contract in the registry as its topic's value schema, and print the schema's id.

    A rerun changes nothing. The exit code is 1 if the registry refuses the contract as incompatible.
    """
    from lakehouse.engine.formats.contracts import schema_of_contract, subject_of
    from lakehouse.storage.kafka.schema_registry import register
    from lakehouse.streams.registry import read_settings

    settings = read_settings()
    source = _source(settings, stream, topic, format_)
    subject = subject_of(settings.topic(source.topic))
    schema_id = register(source.registry, subject, schema_of_contract(source, source.format))
    echo(f"{subject}: schema {schema_id}")


def _source(
    settings: Settings, stream: str, topic: str | None, format_: RecordFormat | None = None
) -> Source:
    """Return the stream's source that matches the options, with the schema format to use.

    Raises SettingsError unless exactly one source matches.
    """
    from lakehouse.streams.registry import choose_one

    sources = choose_one(stream, settings).sources
    found = [source for source in sources if topic in {None, source.topic}]
    if len(found) != 1:
        known = ", ".join(source.topic for source in sources)
        raise SettingsError(f"{stream} reads {known}; select one of them with --topic")
    (source,) = found
    chosen = format_ or source.format
    return replace(source, format="json-schema" if chosen == "json" else chosen)


def _schema(source: Source, topic: str, against: str, kind: SchemaKind) -> tuple[Registered, str]:
    """Return the schema to compare with the contract, and its description for messages."""
    from lakehouse.engine.formats.contracts import subject_of
    from lakehouse.storage.kafka.schema_registry import Registered, newest_of

    if against != _REGISTRY:
        return Registered(kind, Path(against).read_text(encoding="utf-8")), against
    subject = subject_of(topic)
    newest = newest_of(source.registry, subject)
    if newest is None:
        raise LookupError(f"it has no schema for {subject}")
    return newest, f"the newest schema of {subject}"


def _is_registrable(source: Source, topic: str) -> bool:
    from lakehouse.engine.formats.contracts import schema_of_contract, subject_of
    from lakehouse.storage.kafka.schema_registry import is_compatible

    contract = schema_of_contract(source, source.format)
    return is_compatible(source.registry, subject_of(topic), contract)
