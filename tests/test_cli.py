"""The command line as a whole."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from lakehouse.cli import app
from lakehouse.errors import SettingsError


def test_it_prints_its_version() -> None:
    said = CliRunner().invoke(app, ["--version"]).stdout
    assert re.fullmatch(r"lakehouse \d+\.\d+\S* \(Spark 4\.2\.0, Delta 4\.4\.0, Java \d\S+\)\n", said)


def test_a_stream_in_the_place_of_a_layer_is_told_where_it_belongs() -> None:
    with pytest.raises(SettingsError, match=r"sales is a stream and not a layer: .* run all --stream sales`"):
        CliRunner().invoke(app, ["run", "sales"], catch_exceptions=False)


def test_a_layer_that_does_not_exist_is_refused_with_those_that_do() -> None:
    refused = CliRunner().invoke(app, ["run", "sale"])

    assert refused.exit_code == 2
    assert "'sale' is not one of bronze" in refused.output
