"""`lakehouse new stream`: generates a stream from sample records, in lakehouse.toml or as a package.

lakehouse new stream payments --kind windowed-sums --sample payments.jsonl
lakehouse new stream visits --kind joined-calls --sample clicks=c.jsonl --sample views=v.jsonl
lakehouse new stream payments --kind windowed-sums --sample payments.jsonl --python
lakehouse new stream payments --kind windowed-sums --from-topic card-payments --records 1000
lakehouse new stream orders --kind sql --sample orders.jsonl
"""

from __future__ import annotations

import keyword
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse.cli.options import EnvelopeOption
from lakehouse.common.errors import SettingsError
from lakehouse.common.printable import printable
from lakehouse.common.record_lines import envelope_of, opened, read_lines
from lakehouse.common.state_files import OWNER_ONLY
from lakehouse.common.terminal import echo, warn
from lakehouse.dev.scaffold import Kind

if TYPE_CHECKING:
    from lakehouse.dev.scaffold.reading import Samples

app = typer.Typer(no_args_is_help=True, help="Generate a new stream.")

_NAME = re.compile(r"[a-z]([a-z0-9_]{0,38}[a-z0-9])?")
_TOPIC = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
_OF_TESTS = ("here", "samples", "first", "second", "gold", "now", "record")
"""Names that a stream cannot have, because in upper case they clash with names in the generated tests."""
_EPILOG = (
    "Examples: lakehouse new stream payments --kind windowed-sums --sample payments.jsonl; "
    "lakehouse new stream visits --kind joined-calls --sample clicks=c.jsonl --sample views=v.jsonl; "
    "lakehouse new stream payments --kind windowed-sums --from-topic card-payments. "
    "docs/streams.md describes the kinds, docs/new-stream.md what is guessed and written."
)


@dataclass(frozen=True)
class _Given:
    """Where the samples come from: files, perhaps of envelopes, or topics and the number of records."""

    files: tuple[str, ...]
    topics: tuple[str, ...]
    records: int
    envelopes: bool


@app.callback()
def new() -> None:
    """Generate a new stream."""


@app.command(epilog=_EPILOG)
def stream(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the stream, and of its package.")],
    *,
    kind: Annotated[Kind, typer.Option(help="The kind of gold table that the stream fills.")],
    sample: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[TOPIC=]FILE",
            help="Sample records as JSON lines; may be repeated for a stream that reads several topics. "
            "The default topic is NAME-events.",
        ),
    ] = None,
    from_topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC",
            help="Instead of --sample, read JSON records from this topic, which is also the stream's topic; "
            "may be repeated. No consumer group is used. The records are also written to ./NAME.jsonl, "
            "except with --python.",
        ),
    ] = None,
    records: Annotated[
        int,
        typer.Option(min=1, max=100_000, help="With --from-topic: how many of the newest records to read."),
    ] = 1_000,
    by: Annotated[
        list[str] | None, typer.Option(help="A key field; may be repeated. Default: guessed.")
    ] = None,
    value: Annotated[str | None, typer.Option(help="The numeric field. Default: guessed.")] = None,
    time: Annotated[str | None, typer.Option(help="The event-time field. Default: guessed.")] = None,
    envelope: EnvelopeOption = False,
    python: Annotated[
        bool,
        typer.Option(
            "--python",
            help="Instead, write a package into ./NAME: the stream, suites, tests, README and entry point.",
        ),
    ] = False,
) -> None:
    """Generate a stream, and append it to the configuration file, which is created if it is missing.

    Fields, types, required fields, the event time and the key are guessed from the samples. Each guess is
    printed, and marked with a comment. Currencies, units and metric names become part of the key; numbers
    that are written as text are read; an id is proposed in a comment. Lines that are not JSON objects are
    left out. With --python, the stream is instead written as a package with suites and tests.
    """
    from lakehouse.dev.scaffold.changes import rows_of
    from lakehouse.dev.scaffold.package import files_of
    from lakehouse.dev.scaffold.parts import Wanted
    from lakehouse.dev.scaffold.streams import KINDS
    from lakehouse.dev.scaffold.toml import table_text

    _check_stream(name)
    if python:
        _check_package(name)
    kept = Path(f"{name}.jsonl") if from_topic and not python else None
    given = _Given(tuple(sample or ()), tuple(from_topic or ()), records, envelope)
    samples = {topic: rows_of(one) for topic, one in _samples(name, given, kept).items()}
    for warning in filter(None, (one.warning for one in samples.values())):
        warn(warning)
    made = KINDS[kind](Wanted(name, samples, by=tuple(by or ()), value=value, time=time))
    for warning in made.warnings:
        warn(warning)
    if not python:
        config = _add_table(name, table_text(name, kind.replace("-", "_"), made.stream))
        tried = list(sample or ())
        if kept is not None:
            _write_envelopes(kept, samples)
            tried, envelope = [str(kept)], True
            echo(f"{kept}: the records from {' and '.join(samples)}")
        trial = shlex.join(["lakehouse", "try", name, *(["--envelope"] if envelope else []), *tried])
        echo(f"{config}: [streams.{name}]", *(f"  {note}" for note in made.notes))
        echo("", f"Review the guesses, then try the stream: {trial}")
        return
    files = files_of(name, made, samples)
    Path(name).mkdir()  # fails if the directory exists, so the package contains only these files
    for path, code in files.items():
        file = Path(name, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as opened_file:
            opened_file.write(code)
    echo(*(f"{name}/{path}" for path in files), *(f"  {note}" for note in made.notes))
    echo(
        "",
        f"Review the guesses in {name}/{name}/streams.py; README.md explains how to try and test the stream.",
    )


def _check_stream(name: str) -> None:
    """Raise SettingsError for an invalid stream or package name, or for the name of a built-in stream."""
    from lakehouse.streams.builtin import TABLES

    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise SettingsError(
            f"{printable(name)} cannot be the name of a stream and its package: expected at most 40 "
            "lower-case letters, digits and underscores, starting with a letter and not ending with an "
            "underscore"
        )
    if name in TABLES:
        raise SettingsError(f"{name} is already used by lakehouse: choose another name")


def _check_package(name: str) -> None:
    """Raise SettingsError if a package cannot have this name, or if the name is already in use."""
    if name in sys.stdlib_module_names or name in ("lakehouse", "expectations", "tests"):
        raise SettingsError(f"{name} is already used by lakehouse or Python: choose another name")
    if name in _OF_TESTS:
        raise SettingsError(f"{name} is already used in a new stream's tests: choose another name")
    if os.path.lexists(name):
        raise SettingsError(f"./{name} already exists: remove it, or choose another name")
    if find_spec(name) is not None:
        raise SettingsError(f"{name} is already used by an installed package: choose another name")


def _add_table(name: str, table: str) -> Path:
    """Append a stream's table to the configuration file, and return the file's path.

    Raises SettingsError if the file already contains such a table, or if the table cannot be appended.
    """
    from lakehouse.settings.config_file import read_config
    from lakehouse.streams.declared import built

    path, values = read_config()
    if name in values.get("streams", {}):
        raise SettingsError(f"{path} already has a table [streams.{name}]: remove it, or choose another name")
    before = f"{path.read_text(encoding='utf-8').rstrip()}\n\n" if path.exists() else ""
    try:
        built(name, tomllib.loads(f"{before}{table}")["streams"][name])
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"[streams.{name}] cannot be appended to {path}: {error}") from None
    path.write_text(f"{before}{table}", encoding="utf-8")
    return path


def _samples(name: str, given: _Given, kept: Path | None) -> dict[str, Samples]:
    """Return the samples, keyed by topic. `kept` is the file to which they will be written.

    Raises SettingsError unless exactly one of files and topics is given, and if `kept` exists.
    """
    from lakehouse.dev.scaffold.parts import topic_of
    from lakehouse.dev.scaffold.reading import samples_of

    if bool(given.files) == bool(given.topics):
        raise SettingsError("specify either --sample or --from-topic")
    if given.topics:
        if given.envelopes:
            raise SettingsError(
                "--envelope describes the lines of --sample, so it cannot be used with --from-topic"
            )
        if kept is not None and os.path.lexists(kept):
            raise SettingsError(f"./{kept} already exists: remove it, or use it with --sample")
        return _from_topics(given)
    found: dict[str, Samples] = {}
    for one in given.files:
        topic, said, path = one.partition("=")
        topic, path = (topic, path) if said else (topic_of(name), one)
        _check_topic(topic, f"--sample {printable(one)}")
        if topic in found:
            raise SettingsError(
                f"two files contain samples for {topic}; specify the topic of each with --sample TOPIC=FILE"
            )
        with opened(path) as file:
            found[topic] = samples_of(list(read_lines(file, path, envelopes=given.envelopes)))
    return found


def _from_topics(given: _Given) -> dict[str, Samples]:
    """Return the newest records of each topic."""
    from lakehouse.dev.scaffold.from_topic import lines_of_topic
    from lakehouse.dev.scaffold.reading import samples_of
    from lakehouse.streams.registry import read_settings

    settings = read_settings()
    for topic in given.topics:
        _check_topic(topic, f"--from-topic {printable(topic)}")
    return {
        topic: samples_of(lines_of_topic(settings.kafka.access, settings.topic(topic), given.records))
        for topic in given.topics
    }


def _check_topic(topic: str, option: str) -> None:
    if not _TOPIC.fullmatch(topic):
        raise SettingsError(
            f"{option}: {printable(topic)!r} cannot be a topic's name: expected at most "
            "249 letters, digits, dots, hyphens and underscores"
        )


def _write_envelopes(file: Path, samples: Mapping[str, Samples]) -> None:
    """Write the records to a new file, as envelopes with the topic that the stream names.

    Only the user may read the file, because records can contain personal data.
    """
    file.touch(OWNER_ONLY, exist_ok=False)
    with file.open("w", encoding="utf-8") as opened_file:
        for topic, one in samples.items():
            for line in one.lines:
                opened_file.write(f"{envelope_of(replace(line.record, topic=topic))}\n")
