"""The blocks of docs/recipes-*.md and of the tutorial, and a directory in which they run.

A recipe's TOML block is lakehouse.toml. Fenced sh blocks are run, indented ones are not. The commands before
a text block must have printed its lines.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.commands import run_command
from tests.support.processes import BIN, ROOT

_RECIPE = re.compile(r"^## (.+)\n((?:(?!^## ).*\n?)*)", re.MULTILINE)
_BLOCK = re.compile(r"^```(toml|sh|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^lakehouse .*\n(?:(?<=\\\n).*\n)*", re.MULTILINE)
CONFIG = "lakehouse.toml"
_REFUSED = ("try", 1)
"""The command that exits with this code if records are refused."""


@dataclass(frozen=True)
class Recipe:
    """A recipe: its title and its text."""

    title: str
    text: str

    def __str__(self) -> str:
        return self.title

    @property
    def blocks(self) -> list[tuple[str, str]]:
        """The fenced blocks in order, each with its language."""
        return blocks_of(self.text)

    @property
    def config(self) -> str:
        """The whole configuration."""
        (found,) = (text for language, text in self.blocks if language == "toml")
        return found


def blocks_of(text: str) -> list[tuple[str, str]]:
    """Return the fenced blocks of a text in order, each with its language."""
    return _BLOCK.findall(text)


def recipes() -> Iterator[Recipe]:
    """Yield the recipes of all pages."""
    for page in sorted((ROOT / "docs").glob("recipes-*.md")):
        for title, text in _RECIPE.findall(page.read_text(encoding="utf-8")):
            yield Recipe(title, text)


@dataclass
class Shell:
    """A directory for one recipe; `lakehouse` runs in this process, everything else in a shell.

    Without `spark`, no command may use Spark.
    """

    directory: Path
    environment: dict[str, str]
    spark: SparkSession | None
    printed: str = field(default="", init=False)

    def run(self, recipe: Recipe) -> None:
        """Run the blocks of a recipe in order, with its configuration."""
        (self.directory / CONFIG).write_text(recipe.config, encoding="utf-8")
        self.run_blocks(recipe.blocks)

    def run_blocks(self, blocks: Sequence[tuple[str, str]]) -> None:
        """Run the sh blocks in order, and compare the text blocks; the shells work in the directory."""
        for language, text in blocks:
            if language == "sh":
                self.printed = "".join(self._run(text))
            elif language == "text":
                self._compare(text)

    def _run(self, block: str) -> Iterator[str]:
        place = 0
        for found in COMMAND.finditer(block):
            yield self._bash(block[place : found.start()])
            words = shlex.split(found[0].replace("\\\n", " "), comments=True)
            ended = run_command(self.environment, *words[1:], spark=self.spark)
            is_expected = ended.returncode == 0 or (words[1], ended.returncode) == _REFUSED
            assert is_expected, f"{found[0]}{ended.stdout}{ended.stderr}"
            yield ended.stdout
            place = found.end()
        yield self._bash(block[place:])

    def _bash(self, text: str) -> str:
        if not text.strip():
            return ""
        return subprocess.run(
            ["/bin/bash", "-e", "-c", text],
            cwd=self.directory,
            env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            encoding="utf-8",
            check=True,
            timeout=120,
        ).stdout

    def _compare(self, shown: str) -> None:
        """Assert that the lines were printed in this order; … stands for any text."""
        printed = iter(self.printed.splitlines())
        for line in shown.splitlines():
            pattern = ".*".join(map(re.escape, line.split("…"))) + r"\s*"
            assert any(re.fullmatch(pattern, one) for one in printed), f"not printed: {line}\n{self.printed}"
