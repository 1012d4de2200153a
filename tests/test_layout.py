"""The layout of tests mirrors the packages, and shared code is in tests/support."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.processes import ROOT

OF_NO_PACKAGE = {
    "benchmarks",
    "deploy",
    "expectations",
    "integration",
    "oracles",
    "properties",
    "simulation",
    "storage/s3",
}
"""Directories of tests/ that cover more than one package, or none."""


def imported(file: Path) -> Iterator[str]:
    """Yield a file's imports; for `from package import name`, yield both, as the name may be a module."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)


def is_test_module(name: str) -> bool:
    package, *parts = name.split(".")
    return package == "tests" and any(part == "conftest" or part.startswith("test_") for part in parts)


def test_no_module_imports_a_test_module() -> None:
    files = [file for directory in ("tests", "benchmarks") for file in (ROOT / directory).rglob("*.py")]
    found = {
        str(file.relative_to(ROOT)): names
        for file in files
        if (names := sorted({name for name in imported(file) if is_test_module(name)}))
    }

    assert found == {}


def test_every_directory_of_tests_is_that_of_a_package() -> None:
    tests = ROOT / "tests"
    directories = {str(file.parent.relative_to(tests)) for file in tests.rglob("test_*.py")}
    known = {one for one in directories if (ROOT / "lakehouse" / one).is_dir()}

    assert directories - known == OF_NO_PACKAGE
