"""What a JVM needs from the machine is checked before it starts; anything missing is reported in one line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lakehouse.common.errors import ServiceError
from lakehouse.storage.spark import java
from tests.support.full_disk import full, itself
from tests.support.processes import ROOT

CALL = """
from lakehouse.common.errors import ServiceError
from lakehouse.storage.spark import java
try:
    print(java.{}())
except ServiceError as error:
    print(error)
"""


def said_by(call: str, shell: str, *shell_command: str, tmpdir: Path) -> str:
    """Return what a function says in a process prepared by a shell."""
    python = [sys.executable, "-c", CALL.format(call)]
    command = [*shell_command, "sh", "-c", f'{shell} && exec "$0" "$@"', *python]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmpdir)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_too_few_open_files_are_said_with_the_limit(tmp_path: Path) -> None:
    said = said_by("require_files", "ulimit -n 256", tmpdir=tmp_path)
    assert said.startswith("a process may have only 256 files open, but Spark's JVM needs 1,024: ")
    assert said_by("require_files", "true", tmpdir=tmp_path) == "None"


def test_a_temporary_directory_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with full(itself()), pytest.raises(ServiceError, match=r"neither .TMPDIR nor /tmp: free some space"):
        java.temporary_directory()
    assert java.temporary_directory() == str(tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("noexec", "is mounted noexec, so Spark's JVM could not load its libraries from there: set TMPDIR"),
        ("size=1m", "has only 1 MiB left, and Spark's JVM needs 64: free some space, or set TMPDIR"),
    ],
)
def test_one_that_is_of_no_use_is_named_with_the_reason(tmp_path: Path, options: str, said: str) -> None:
    own = ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*own, "true"], check=False).returncode:
        pytest.skip("this system lets nobody mount in a namespace of their own")
    mounted = f"mount -t tmpfs -o {options} none {tmp_path}"
    assert f"the temporary directory {tmp_path} {said}" in said_by(
        "temporary_directory", mounted, *own, tmpdir=tmp_path
    )


def test_a_missing_java_is_said_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ServiceError, match=f"there is no java in JAVA_HOME={tmp_path}; install Java 17"):
        java.find()
