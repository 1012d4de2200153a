"""Shell blocks whose `lakehouse` commands with Spark run in this process, without starting a JVM each.

All other commands, and `lakehouse` commands that need no Spark, run as processes as usual.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from tests.support.commands import Ended, run_command
from tests.support.processes import LAKEHOUSE, ROOT

_ON_SPARK = ("audit", "dead-letters", "expect", "maintain", "rebuild", "run", "sql")
_LOOK_S = 0.1


def run_block(block: str, environment: Mapping[str, str], spark: SparkSession, timeout_s: float) -> Ended:
    """Run a block in bash, which stops at the first command that fails."""
    with TemporaryDirectory() as name, socket.socket(socket.AF_UNIX) as server:
        directory, deadline = Path(name), time.monotonic() + timeout_s
        server.bind(str(directory / "socket"))
        server.listen()
        server.settimeout(_LOOK_S)
        _write_command(directory)
        with (directory / "stdout").open("w+b") as stdout, (directory / "stderr").open("w+b") as stderr:
            shell = subprocess.Popen(
                ["/bin/bash", "-e", "-c", block],
                cwd=ROOT,
                env={**environment, "PATH": f"{directory}:{environment['PATH']}"},
                stdout=stdout,
                stderr=stderr,
            )
            try:
                while shell.poll() is None:
                    assert time.monotonic() < deadline, f"{block} takes longer than {timeout_s:.0f} s"
                    _answer(server, spark)
            finally:
                shell.kill()
                shell.wait()
        said = ((directory / name).read_text(encoding="utf-8") for name in ("stdout", "stderr"))
        return Ended(shell.returncode, *said)


def _write_command(directory: Path) -> None:
    client = f"exec {sys.executable} -S -m tests.support.shell_client {directory / 'socket'}"
    command = directory / "lakehouse"
    command.write_text(
        f'#!/bin/sh\ncase "$1" in\n{"|".join(_ON_SPARK)}) PYTHONPATH={ROOT} {client} "$@" ;;\n'
        f'*) exec {LAKEHOUSE} "$@" ;;\nesac\n'
    )
    command.chmod(0o700)


def _answer(server: socket.socket, spark: SparkSession) -> None:
    """Run the command that a client requests, if one does so within a moment."""
    try:
        client, _ = server.accept()
    except TimeoutError:
        return
    with client, client.makefile("rw", encoding="utf-8") as lines:
        directory, environment, arguments = json.loads(lines.readline())
        own = {name: value for name, value in environment.items() if name.startswith("LAKEHOUSE_")}
        with chdir(directory):
            ended = run_command(own, *arguments, spark=spark)
        json.dump([ended.returncode, ended.stdout, ended.stderr], lines)
