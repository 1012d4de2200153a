"""The base install works without any extra, and one line names the extra that a command needs."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from lakehouse.common.extras import BRINGS

# All in one process: most of a command's time is its imports.
SCRIPT = """
import importlib, pkgutil, sys
for name in {blocked!r}:
    sys.modules[name] = None
import lakehouse
from lakehouse.cli.jobs import exit_with
from lakehouse.cli.main import app
from lakehouse.sinks.postgres.sink import KIND
from lakehouse.streams.registry import read_settings

def called(extra, command, *argv):
    sys.argv = ["lakehouse", *argv]
    try:
        exit_with(command)
    except SystemExit as ended:
        sys.stderr.write(f"{{extra}} exit code {{ended.code}}\\n")

called("serve", app, "serve")
called("expect", app, "expect")
called("postgres", lambda: KIND.require(read_settings()))
called("sandbox", app, "services", "up")
called("formats", app, "contract", "check", "metrics", "--format", "avro", "--against", "nowhere")
for one in pkgutil.walk_packages(lakehouse.__path__, "lakehouse."):
    try:
        if not one.name.endswith("__main__"):
            importlib.import_module(one.name)
    except ModuleNotFoundError:
        print(one.name)
"""
ROOT = Path(__file__).parents[2]
OWN = (
    "lakehouse.engine.formats.",
    "lakehouse.serving.",
    "lakehouse.operations.quality.",
    "lakehouse.streams.suite",
    "lakehouse.dev.services.certificates",
    "lakehouse.dev.samples.produce_route",
    "lakehouse.sinks.postgres.",
)
BROUGHT = {"py4j", "pydantic"}  # dependencies of pyspark and pydantic-settings
OF_OTHERS = {"lakehouse.dev.pytest_plugin"}  # imported only by pytest
EXTRAS = {name for names in BRINGS.values() for name in names}


def test_only_the_code_of_an_extra_imports_it_and_one_line_says_that_it_is_missing(tmp_path: Path) -> None:
    blocked = [name for names in BRINGS.values() for name in names]
    environment = {
        "LAKEHOUSE_HOME": str(tmp_path),
        "LAKEHOUSE_POSTGRES_URL": "postgresql://nobody@127.0.0.1:1/none",
        "PATH": str(Path(sys.executable).parent),  # which contains no server
        "COLUMNS": "500",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(blocked=blocked)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.strip().split("\n")
    for number, extra in enumerate(("serve", "expect", "postgres", "sandbox", "formats")):
        said, ended = lines[2 * number : 2 * number + 2]
        assert f"pip install 'medallion-lakehouse[{extra}]'" in said
        assert ended == f"{extra} exit code 1"
    assert len(lines) == 2 * len(BRINGS)
    without = done.stdout.split()
    assert {
        "lakehouse.serving.app",
        "lakehouse.operations.quality.gate",
        "lakehouse.sinks.postgres.rows",
    } <= set(without)
    assert [name for name in without if not name.startswith(OWN)] == []


def imported(tree: ast.AST) -> set[str]:
    """Return the top-level names of the modules that some code imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(str(node.module).partition(".")[0])
    return found


def test_what_the_base_install_imports_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.split(r"[\[=; ]", one)[0] for one in project["dependencies"]} | BROUGHT
    distributions = packages_distributions()
    missing = set()
    for path in (ROOT / "lakehouse").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if name.startswith(OWN) or name in OF_OTHERS:
            continue
        for module in imported(ast.parse(path.read_text(encoding="utf-8"))) - sys.stdlib_module_names:
            found = {one.lower().replace("_", "-") for one in distributions.get(module, [module])}
            if module not in {"lakehouse", *EXTRAS} and not declared & found:
                missing.add((name, module))
    assert missing == set()
