"""The output of Spark's JVM reaches standard error, except for three harmless warnings."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from rich.live import Live

from lakehouse.common.terminal import Console
from lakehouse.storage.spark.jvm_output import filtered
from tests.support.terminals import left


def start(script: str, standard_error: int) -> None:
    subprocess.run([sys.executable, "-c", script], stderr=standard_error, check=True)


def test_all_lines_but_the_harmless_ones_arrive_before_a_failure(capfd: pytest.CaptureFixture[str]) -> None:
    script = """
import os
os.write(2, b"WARNING: Using incubator modules: jdk.inc")
os.write(2, b"ubator.vector\\nWARNING: package sun.security.action not in java.base\\n")
os.write(2, b"Warning: Java versions > Java 11 can only operate in restricted mode where no off-heap")
os.write(2, b" operations are allowed!\\n")
os.write(2, b"WARNING: Using incubator modules: another\\nError: no room")
raise SystemExit(1)
"""
    with pytest.raises(subprocess.CalledProcessError), filtered() as standard_error:
        start(script, standard_error)
    assert capfd.readouterr().err == "WARNING: Using incubator modules: another\nError: no room"


def test_lines_stand_above_the_live_lines_which_would_overwrite_them(
    capfd: pytest.CaptureFixture[str],
) -> None:
    out = io.StringIO()
    with Live("starting Spark", console=Console(file=out, force_terminal=True, width=80)) as live:
        live.refresh()
        with pytest.raises(subprocess.CalledProcessError), filtered() as standard_error:
            start("import os; os.write(2, b'no \\x1b[2J room\\nError'); raise SystemExit(1)", standard_error)
    assert left(out.getvalue()) == [r"no \x1b[2J room", "Error", "starting Spark"]
    assert capfd.readouterr().err == ""
