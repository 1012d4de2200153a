"""What the docs tell people to type: each command is parsed by its program, each block by its language.

Blocks marked as runnable are also run (integration/test_docs.py).
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest
import typer
from pyspark.sql import SparkSession

from lakehouse.cli import main as cli
from lakehouse.settings import Settings
from lakehouse.settings.config_file import CONFIG_VARIABLE
from lakehouse.settings.environment import CACHE_VARIABLE
from lakehouse.settings.keys import variables
from tests.support.processes import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
_FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:(?<=\n\n)|\A)((?: {4}[^\n]*\n+)+)")
_ASSIGNED = re.compile(r"(LAKEHOUSE_\w+)=(.*)", re.DOTALL)
_OPEN = re.compile(r"[$<…]|\.\.\.")
"""Marks a value that the reader has to fill in."""
_PRINTED = re.compile(r"\s*->|.*[\u2500-\u257f]")
"""A line of a command's output or of a drawing."""
_ENDS = {"|", "||", "&", "&&", ";", ">", ">>", "<", "(", ")", "2>&1"}


@dataclass(frozen=True)
class Line:
    """A command on a page: its words, including any assignments before it."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the language and text of each block; for indented blocks, the language is sh."""
    text = page.read_text(encoding="utf-8")
    yield from _FENCED.findall(text)
    for block in _INDENTED.findall(_FENCED.sub("", text)):
        yield "sh", block


def lines(page: Path) -> Iterator[Line]:
    """Yield the commands in a page's shell blocks, without redirections."""
    for language, text in blocks(page):
        if language != "sh":
            continue
        for line in re.sub(r"\\\n", " ", text).splitlines():
            if _PRINTED.match(line):
                continue
            reader = shlex.shlex(line, posix=True, punctuation_chars=True)
            reader.whitespace_split = True
            reader.commenters = "#"
            try:
                words = list(reader)
            except ValueError:  # a string that spans lines
                continue
            part: list[str] = []
            for word in [*words, ";"]:
                if word in _ENDS:
                    if part:
                        yield Line(page.name, tuple(part))
                    part = []
                else:
                    part.append(word)


LINES = [line for page in PAGES for line in lines(page)]


def of_program(*names: str) -> list[Line]:
    """Return the commands of a program, without assignments and wrappers such as sudo."""
    found = []
    for line in LINES:
        words = [word for word in line.words if not re.match(r"[A-Z_]+=", word)]
        while words and words[0] in {"export", "time", "sudo", "nohup"}:
            words.pop(0)
        if tuple(words[: len(names)]) == names and words[len(names) :] != ["--install-completion"]:
            found.append(Line(line.page, tuple(words[len(names) :])))
    return found


def parse(command: Any, words: list[str], name: str) -> None:
    """Parse a command line as the command does, raising the same errors."""
    context = command.make_context(name, list(words))
    while hasattr(context.command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        sub_name, sub, rest = context.command.resolve_command(context, rest)
        assert sub is not None
        context = sub.make_context(sub_name, rest, parent=context)


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    monkeypatch.chdir(tmp_path)
    for name in variables():
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_there_is_something_to_parse() -> None:
    assert len(of_program("lakehouse")) > 100
    assert len(of_program("make")) > 10


@pytest.mark.usefixtures("clean")
def test_lakehouse_takes_each_command() -> None:
    app, refused = typer.main.get_command(cli.app), dict[str, str]()
    for line in of_program("lakehouse"):
        try:
            parse(app, list(line.words), "lakehouse")
        except Exception as error:  # noqa: BLE001 - each command that is refused is told
            refused[str(line)] = repr(error)
    assert refused == {}


def test_make_has_each_target() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {
        (line.page, word)
        for line in of_program("make")
        for word in line.words
        if "=" not in word and not word.startswith("-")
    }
    assert [(page, word) for page, word in sorted(named) if word not in targets] == []


@pytest.mark.parametrize("line", of_program("python", "-m"), ids=str)
def test_python_has_the_module_and_it_takes_the_options(line: Line) -> None:
    name, *words = line.words
    if not name.startswith("benchmarks."):
        assert importlib.util.find_spec(name.split(".")[0]) is not None
        return
    module = importlib.import_module(name)
    parse(typer.main.get_command(module.app), words, name)


def test_every_variable_is_a_setting_and_takes_its_value() -> None:
    given = {
        (line.page, found[1], found[2])
        for line in LINES
        for word in line.words
        if (found := _ASSIGNED.fullmatch(word)) is not None
    }
    assert len(given) > 10
    for page, name, value in sorted(given):
        if name in {CONFIG_VARIABLE, CACHE_VARIABLE}:
            continue
        assert name in variables(), (page, name)
        key = variables()[name]
        if not key.is_secret and not _OPEN.search(value):
            section = {key.name: json.loads(value) if key.is_json else value}
            Settings.model_validate({key.section: section} if key.section else section)


def test_toml_and_python_are_what_they_are_called() -> None:
    unreadable = dict[str, str]()
    every = [(page.name, *block) for page in PAGES for block in blocks(page)]
    for page, language, text in every:
        try:
            if language == "toml":
                tomllib.loads(text)
            if language == "python":
                ast.parse(text)
        except (SyntaxError, ValueError) as error:
            unreadable[f"{page}: {text[:80]}"] = repr(error)
    assert unreadable == {}


def test_what_python_on_a_page_imports_of_lakehouse_exists() -> None:
    sources = [ast.parse(text) for page in PAGES for language, text in blocks(page) if language == "python"]
    names = {
        (node.module, name.name)
        for source in sources
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "lakehouse"
        for name in node.names
    }
    assert [one for one in sorted(names) if not hasattr(importlib.import_module(one[0]), one[1])] == []


def test_sql_is_what_its_engine_reads(spark: SparkSession) -> None:
    statements = {line for line in of_program("lakehouse", "sql") if line.words}
    assert len(statements) > 10
    parser = spark._jsparkSession.sessionState().sqlParser()
    for line in statements:
        statement = next(word for word in line.words if " " in word)
        if "duckdb" in line.words:
            assert len(duckdb.connect().extract_statements(statement)) == 1, line
        else:
            parser.parsePlan(statement)


def test_pip_gets_locked_versions_as_requirements() -> None:
    """With a constraint that has hashes, pip refuses the wheel, because the wheel has none."""
    found = [
        line for page in PAGES for line in lines(page) if "pip" in line.words and "install" in line.words
    ]

    assert [str(line) for line in found if {"--constraint", "-c"} & {*line.words}] == []
    assert "pip install --require-hashes -r requirements/sandbox.txt" in [
        shlex.join(one.words) for one in found
    ]
