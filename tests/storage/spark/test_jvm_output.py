"""The output of Spark's JVM reaches standard error, except for two warnings at every start."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lakehouse.storage.spark.jvm_output import filtered


def start(script: str, standard_error: int) -> None:
    subprocess.run([sys.executable, "-c", script], stderr=standard_error, check=True)


def test_all_lines_but_the_harmless_ones_arrive_before_a_failure(capfd: pytest.CaptureFixture[str]) -> None:
    script = """
import os
os.write(2, b"WARNING: Using incubator modules: jdk.inc")
os.write(2, b"ubator.vector\\nWARNING: package sun.security.action not in java.base\\n")
os.write(2, b"WARNING: Using incubator modules: another\\nError: no room")
raise SystemExit(1)
"""
    with pytest.raises(subprocess.CalledProcessError), filtered() as standard_error:
        start(script, standard_error)
    assert capfd.readouterr().err == "WARNING: Using incubator modules: another\nError: no room"
