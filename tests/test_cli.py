"""The command line as a whole."""

from __future__ import annotations

import tomllib
from pathlib import Path

from typer.testing import CliRunner

from lakehouse.cli import app

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def test_it_prints_its_version() -> None:
    declared = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["version"]
    assert CliRunner().invoke(app, ["--version"]).stdout == f"lakehouse {declared}\n"
