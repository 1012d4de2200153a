"""The command line as a whole."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from lakehouse.cli.main import COMMANDS, app
from lakehouse.common.errors import SettingsError
from lakehouse.common.extras import BRINGS

HEAVY = {
    *(module for modules in BRINGS.values() for module in modules),
    *("confluent_kafka", "deltalake", "duckdb", "kafka", "numpy", "pandas", "prometheus_client", "psutil"),
    *("py4j", "pyarrow", "pydantic_settings", "pyspark", "redis"),
}
"""Packages that take long to import, and that help and refused arguments do not need."""

ENDED = """
import contextlib, io, json, sys
from lakehouse.cli.main import main

for arguments in json.loads(sys.argv[1]):
    sys.argv = ["lakehouse", *arguments]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    print(code)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""
"""Run several command lines, and print their exit codes and then the packages that are imported."""


def test_it_prints_its_version() -> None:
    said = CliRunner().invoke(app, ["--version"]).stdout
    assert re.fullmatch(r"lakehouse \d+\.\d+\S* \(Spark 4\.2\.0, Delta 4\.4\.0, Java \d\S+\)\n", said)


def test_a_stream_in_the_place_of_a_layer_is_told_where_it_belongs() -> None:
    with pytest.raises(SettingsError, match=r"sales is a stream, not a layer: .* run all --stream sales`"):
        CliRunner().invoke(app, ["run", "sales"], catch_exceptions=False)


def test_a_layer_that_does_not_exist_is_refused_with_those_that_do() -> None:
    refused = CliRunner().invoke(app, ["run", "sale"])

    assert refused.exit_code == 2
    assert "'sale' is not one of bronze" in refused.output


@pytest.mark.parametrize(
    "arguments", [["gold"], ["all", "--stream", "sales"], ["all", "--gate"], ["all", "--backfill"]]
)
def test_a_copy_is_adopted_by_all_layers_of_all_streams_and_nothing_else(arguments: list[str]) -> None:
    refused = CliRunner().invoke(app, ["run", *arguments, "--adopt"])

    assert isinstance(refused.exception, SettingsError)


def test_rights_are_printed_for_whom_they_are_asked() -> None:
    of = ["doctor", "--stream", "sales", "--user", "etl", "--rights"]
    pipeline, producer = (CliRunner().invoke(app, [*of, whose]).stdout for whose in ("pipeline", "producer"))

    assert "--allow-principal User:etl --operation Read --topic sales-events-v1" in pipeline
    assert "--allow-principal User:etl --operation Write --topic sales-events-v1" in producer
    assert "transactions-topic" not in pipeline + producer


def parsed(arguments: list[str]) -> None:
    """Parse a command line without running it. Raises UsageError for anything the command does not have."""
    command, context, rest = get_command(app), None, arguments
    while True:
        context = command.make_context(rest[0] if rest else "lakehouse", list(rest), parent=context)
        left = [*context._protected_args, *context.args]
        if not hasattr(command, "resolve_command") or (
            getattr(command, "invoke_without_command", False) and not left
        ):
            return
        _, command, rest = command.resolve_command(context, left)
        assert command is not None


def test_every_command_has_its_part_of_the_help_and_examples_that_it_takes() -> None:
    names = set(get_command(app).commands)  # type: ignore[attr-defined]
    named = {name: examples for part in COMMANDS.values() for name, (_, *examples) in part.items()}
    assert named.keys() == names
    for name, examples in named.items():
        assert examples
        for example in examples:
            program, *arguments = shlex.split(example.partition(" < ")[0])
            assert (program, arguments[0]) == ("lakehouse", name)
            parsed(arguments)


def test_the_help_says_exit_codes_environment_and_how_to_complete() -> None:
    said = " ".join(CliRunner().invoke(app, ["--help"]).stdout.split())
    for text in ("130 interrupted", "LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS", "lakehouse --install-completion"):
        assert text in said


def command_lines(command: Any, *words: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of a command and of all commands below it."""
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from command_lines(inner, *words, name)


def test_help_and_refused_arguments_import_nothing_that_only_a_commands_work_needs() -> None:
    words = [*command_lines(get_command(app))]
    helped = [[*one, "--help"] for one in words]
    refused = [[*one, "--no-such-option"] for one in words]
    refused += [["none"], ["run"], ["run", "gold", "--allow", "none"], ["events", "--kind", "none"]]

    done = subprocess.run(
        [sys.executable, "-c", ENDED, json.dumps([*helped, *refused])],
        capture_output=True,
        text=True,
        check=True,
    )

    *codes, imported = done.stdout.splitlines()
    assert codes == ["0"] * len(helped) + ["2"] * len(refused)
    assert HEAVY & {*json.loads(imported)} == set()
