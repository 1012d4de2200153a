"""The command line as a whole."""

from __future__ import annotations

import re
import shlex

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from lakehouse.cli.main import COMMANDS, app
from lakehouse.common.errors import SettingsError


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
