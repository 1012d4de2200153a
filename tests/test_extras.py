"""The base install does without every extra, and one line names the extra that a command needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from lakehouse.extras import BRINGS

# All in one process: most of a command's time is its imports.
SCRIPT = """
import importlib, pkgutil, sys
for name in {blocked!r}:
    sys.modules[name] = None
import lakehouse
from lakehouse.application import exit_with
from lakehouse.cli import app
from lakehouse.kafka.registry_access import RegistryAccess
from lakehouse.kafka.schema_registry import schema_of
from lakehouse.sinks.to_postgres import KIND
from lakehouse.streams import read_settings

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
called("formats", lambda: schema_of(RegistryAccess("http://127.0.0.1:1"), 1))
for one in pkgutil.walk_packages(lakehouse.__path__, "lakehouse."):
    try:
        if not one.name.endswith("__main__"):
            importlib.import_module(one.name)
    except ModuleNotFoundError:
        print(one.name)
"""
OWN = (
    "lakehouse.formats.",
    "lakehouse.serving.",
    "lakehouse.quality.",
    "lakehouse.sinks.postgres",
    "lakehouse.sinks.audit_postgres",
)


def test_only_the_code_of_an_extra_imports_it_and_one_line_says_that_it_is_missing(tmp_path: Path) -> None:
    blocked = [name for names in BRINGS.values() for name in names]
    environment = {
        "LAKEHOUSE_HOME": str(tmp_path),
        "LAKEHOUSE_POSTGRES_URL": "postgresql://nobody@127.0.0.1:1/none",
        "PATH": str(Path(sys.executable).parent),  # with no server on it
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
        assert f"pip install 'lakehouse[{extra}]'" in said
        assert ended == f"{extra} exit code 1"
    assert len(lines) == 2 * len(BRINGS)
    without = done.stdout.split()
    assert {"lakehouse.serving.app", "lakehouse.quality.gate", "lakehouse.sinks.postgres"} <= set(without)
    assert [name for name in without if not name.startswith(OWN)] == []
