"""`lakehouse new stream`: generates a package for your own stream from sample records.

lakehouse new stream payments --kind windowed-sums --sample payments.jsonl
lakehouse new stream visits --kind joined-calls --sample clicks=c.jsonl --sample views=v.jsonl
"""

from __future__ import annotations

import keyword
import os
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from lakehouse.cli.options import EnvelopeOption
from lakehouse.common.errors import SettingsError
from lakehouse.common.printable import printable
from lakehouse.common.record_lines import opened, read_lines
from lakehouse.common.terminal import echo
from lakehouse.dev.scaffold.package import Sampled, files_of
from lakehouse.dev.scaffold.samples import objects_of
from lakehouse.dev.scaffold.streams import KINDS, Kind, Wanted, topic_of
from lakehouse.streams.finding import OWN

app = typer.Typer(no_args_is_help=True, help="Write a package for your own stream.")

_NAME = re.compile(r"[a-z]([a-z0-9_]{0,38}[a-z0-9])?")
_TOPIC = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
_OF_TESTS = ("here", "samples", "first", "second", "record")
"""Names whose upper-case forms the generated tests already use."""
_EPILOG = (
    "Examples: lakehouse new stream payments --kind windowed-sums --sample payments.jsonl; "
    "lakehouse new stream visits --kind joined-calls --sample clicks=c.jsonl --sample views=v.jsonl. "
    "The kinds are functions of lakehouse.streams.kinds (docs/streams.md)."
)


@app.callback()
def new() -> None:
    """Write a package for your own stream."""


@app.command(epilog=_EPILOG)
def stream(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the stream and its package.")],
    *,
    kind: Annotated[Kind, typer.Option(help="The kind of gold table that the stream fills.")],
    sample: Annotated[
        list[str],
        typer.Option(
            metavar="[TOPIC=]FILE",
            help="Sample records as JSON lines; may be given again for a stream that reads several topics. "
            "The default topic is NAME-events.",
        ),
    ],
    by: Annotated[
        list[str] | None, typer.Option(help="A key field; may be given again. Default: guessed.")
    ] = None,
    value: Annotated[str | None, typer.Option(help="The numeric field. Default: guessed.")] = None,
    time: Annotated[str | None, typer.Option(help="The event-time field. Default: guessed.")] = None,
    envelope: EnvelopeOption = False,
) -> None:
    """Write a package into ./NAME: the stream, its suites, tests, README and entry point.

    Fields, types, required fields and the event time are guessed from the samples; each guess has a comment.
    """
    _check(name)
    samples = _samples(name, sample, envelopes=envelope)
    wanted = Wanted(
        name, {one.topic: one.objects for one in samples}, by=tuple(by or ()), value=value, time=time
    )
    files = files_of(name, KINDS[kind](wanted), samples)
    Path(name).mkdir()  # fails if it exists, so nobody else's files are in it
    for path, code in files.items():
        file = Path(name, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as made:
            made.write(code)
    echo(*(f"{name}/{path}" for path in files))
    echo("", f"Review the guesses in {name}/{name}/streams.py; README.md explains how to try and test it.")


def _check(name: str) -> None:
    """Raise SettingsError if the name is invalid for a package, or already taken."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise SettingsError(
            f"{printable(name)} cannot be the name of a stream and its package: lower-case letters, digits "
            "and underscores, at most 40, beginning with a letter and not ending with an underscore"
        )
    if name in OWN or name in sys.stdlib_module_names or name in ("lakehouse", "expectations", "tests"):
        raise SettingsError(f"{name} is taken, by lakehouse or by Python: choose another name")
    if name in _OF_TESTS:
        raise SettingsError(f"{name} is taken, by a name in the tests of a new stream: choose another name")
    if os.path.lexists(name):
        raise SettingsError(f"./{name} already exists: remove it, or choose another name")
    if find_spec(name) is not None:
        raise SettingsError(f"{name} is taken, by an installed package: choose another name")


def _samples(name: str, given: Sequence[str], *, envelopes: bool) -> list[Sampled]:
    found: dict[str, Sampled] = {}
    for one in given:
        topic, said, path = one.partition("=")
        topic, path = (topic, path) if said else (topic_of(name), one)
        if not _TOPIC.fullmatch(topic):
            raise SettingsError(
                f"--sample {printable(one)}: {printable(topic)!r} cannot be the name of a topic: letters, "
                "digits, dots, hyphens and underscores, at most 249"
            )
        if topic in found:
            raise SettingsError(f"two files have samples of {topic}: give topics with --sample TOPIC=FILE")
        with opened(path) as file:
            lines = list(read_lines(file, path, envelopes=envelopes))
        found[topic] = Sampled(topic, lines, objects_of(lines))
    return list(found.values())
