"""Commands where host and user have no name, and the locale has neither UTF-8 nor the digits 0 to 9."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.processes import BIN, LAKEHOUSE, QUICK_JVM, ROOT, finish, submit

pytestmark = pytest.mark.soak

NAME = "größe 100%, 東京 \"{$x}' [a]"
NAMELESS = ["unshare", "--user", "--map-user=4242"]
"""Runs a command as a user for whom the system has no name."""


@pytest.mark.slow
def test_a_layer_runs_for_a_nameless_user_on_a_nameless_host_under_any_locale(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    environment = {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "JAVA_TOOL_OPTIONS": "-Duser.language=fa -Duser.country=IR -Duser.language.format=fa "
        f"-Duser.country.format=IR -Djdk.net.hosts.file={hosts}",
        "LAKEHOUSE_HOME": NAME,
        "LAKEHOUSE_LAKE": f"{NAME}/the lake",
        "LAKEHOUSE_SPARK_DRIVER_MEMORY": "1g",
        **{name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ},
        **QUICK_JVM,
    }
    can = shutil.which("unshare") and not subprocess.run([*NAMELESS, "true"], check=False).returncode
    run = [LAKEHOUSE, "run", "silver", "--stream", "transactions", "--trigger", "available-now"]
    ended = subprocess.run(
        [*(NAMELESS if can else []), *run],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert ended.returncode == 0, ended.stderr
    assert [line for line in ended.stderr.splitlines() if not line.startswith("Picked up")] == []
    lake = tmp_path / NAME / "the lake"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([NAME, "hosts"])
    names = [file.name for file in lake.rglob("*.json")]
    assert names
    assert all(name.isascii() for name in names)
    assert DeltaTable(str(lake / "silver" / "transactions")).version() == 0


def test_spark_submit_under_a_locale_without_utf_8_is_refused_for_a_lake_beyond_ascii(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LC_")}
    environment |= {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "LC_ALL": "C",
        "LAKEHOUSE_HOME": str(tmp_path / "home"),
        "LAKEHOUSE_LAKE": str(tmp_path / "größe"),
        **QUICK_JVM,
    }
    run = submit("silver", "--stream", "transactions", "--trigger", "available-now")
    ended = finish(run, environment)
    assert ended.returncode == 1
    assert "error: Spark's JVM encodes file names in ANSI_X3.4-1968, so it would" in ended.stdout
    assert [path.name for path in tmp_path.iterdir() if "?" in path.name] == []
