"""Run `lakehouse` commands in this process, on the session's Spark, without starting a process.

The effects of a separate process (output that includes the JVM's, its exit, signals) are tested in
integration/test_jobs.py and test_drill.py.
"""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.cli import main as cli
from lakehouse.operations import running
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake
from lakehouse.testing import session


@dataclass(frozen=True)
class Ended:
    """A completed command, like subprocess.CompletedProcess."""

    returncode: int
    stdout: str
    stderr: str


def run_command(environment: Mapping[str, str], *arguments: str, spark: SparkSession | None = None) -> Ended:
    """Run `lakehouse` with these arguments and variables; without `spark`, it must not use Spark."""

    def open_lake(settings: Settings, *_: object, **__: object) -> Any:
        assert spark is not None, "Spark was not to be started"
        return nullcontext(Lake(spark, settings.lake))

    code: object = 0
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["lakehouse", *arguments])
        patch.setattr(sys, "excepthook", sys.excepthook)  # typer puts its own there
        patch.setattr(threading, "excepthook", threading.excepthook)  # and lakehouse.common.terminal there
        patch.setattr(running, "open_lake", open_lake)
        patch.setattr(tables, "open_lake", open_lake)
        patch.setattr(session, "small_session", lambda _: nullcontext(spark))
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code
    assert code is None or isinstance(code, int)
    result = Ended(code or 0, stdout.getvalue(), stderr.getvalue())
    assert is_printable(result.stdout + result.stderr), result
    return result


def is_printable(output: str) -> bool:
    """Return whether no character in an output moves the cursor, or hides or reverses text."""
    return output.replace("\n", "").isprintable()
