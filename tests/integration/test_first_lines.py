"""What a live run shows while Kafka, Spark and the tables come up. Kafka, Redis and Spark are real."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from lakehouse.dev.services.services import Endpoints
from tests.support.processes import LAKEHOUSE, place, running
from tests.support.terminals import left, terminal

COMMAND = [LAKEHOUSE, "run", "all", "--stream", "metrics", "--stream", "sales"]


@pytest.mark.soak
def test_a_terminal_shows_the_streams_at_once_and_what_they_wait_for(
    services: Endpoints, tmp_path: Path
) -> None:
    with (
        place(tmp_path / "home", services, database=12) as here,
        terminal(COMMAND, here.environment) as run,
    ):
        for phase in ("loading", "starting Spark", "creating tables"):  # Kafka may answer between two redraws
            run.await_(f"{phase} (")
        run.await_("running; Ctrl-C stops after the current micro-batch")
        run.await_(" empty ")
        os.kill(run.process.pid, signal.SIGINT)
        assert run.ended() == 0

        lines = [" ".join(line.split()[:2]) for line in left(run.output)]
        assert lines[-3:] == ["stream health", "metrics empty", "sales empty"]
        assert re.search(r"^sales +starting +0 +-", run.output, re.MULTILINE)


@pytest.mark.soak
def test_a_pipe_gets_a_plain_line_for_each_phase(services: Endpoints, tmp_path: Path) -> None:
    with (
        place(tmp_path / "home", services, database=12) as here,
        running(COMMAND, here.environment, tmp_path / "run") as run,
    ):
        run.await_output("creating tables")
        os.kill(run.pid, signal.SIGINT)
        assert run.wait() == 0, run.everything()
        lines = run.output.splitlines()
        assert lines[0] == "connecting to Kafka, Redis"
        assert lines[1].startswith("all layers of metrics, sales, trigger 1 second, lake ")
        assert lines[2] == "starting Spark"
        assert lines.index("running; Ctrl-C stops after the current micro-batch") < lines.index(
            "creating tables"
        )
        assert all(line.isprintable() for line in lines)
