"""What `lakehouse run` shows on a terminal before Spark has started."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.beside import beside
from tests.support.terminals import SHOWN_AGAIN, Terminal, left, terminal

STREAMS = ["metrics", "calls", "sales", "transactions"]
HEAVY = ["pyspark", "py4j", "deltalake", "kafka", "confluent_kafka", "pyarrow", "pandas", "psutil"]
NOTING = """
import json, os, sys

heavy = json.loads(sys.argv.pop(1))

class Noting:
    def find_spec(self, name, path=None, target=None):
        if name in heavy:
            os.write(1, f"<imports {name}>".encode())

sys.meta_path.insert(0, Noting())
from lakehouse.cli.main import main

main()
"""
"""Run a command line, and print the name of each heavy package when it is imported."""


@pytest.fixture
def silent() -> Iterator[str]:
    """Return the address of a broker that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed() -> str:
    """Return an address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def started(home: Path, broker: str, *arguments: str) -> Iterator[Terminal]:
    """Start `lakehouse run` on a terminal, and kill it after the block if it has not ended."""
    command = [sys.executable, "-c", NOTING, json.dumps(HEAVY), "run", *arguments]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LAKEHOUSE_")}
    places = {"LAKEHOUSE_HOME": str(home), "LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS": broker}
    with terminal(command, kept | places) as process:
        yield process


def pressing(run: Terminal, number: signal.Signals) -> Callable[[threading.Event], None]:
    """Return work that sends a signal every two seconds: Python loses one that a finalizer receives."""

    def press(over: threading.Event) -> None:
        run.process.send_signal(number)
        while not over.wait(2):
            run.process.send_signal(number)

    return press


def test_every_stream_is_on_the_screen_before_anything_heavy_is_imported(tmp_path: Path, closed: str) -> None:
    with started(tmp_path, closed, "all") as run:
        run.await_("<imports pyspark>")
        before, _, _ = run.output.partition("<imports")
        drawn = [line.split()[:2] for line in left(before)]
        assert [words for words in drawn if "starting" in words] == [[name, "starting"] for name in STREAMS]
        assert drawn[-1] == ["loading", "(0"]


def test_a_start_that_fails_ends_with_its_message_and_no_lines(tmp_path: Path, closed: str) -> None:
    with started(tmp_path, closed, "bronze", "--stream", "sales") as run:
        assert run.ended() == 1
        lines = [line for line in left(re.sub(r"<imports \w+>", "", run.output)) if line]
        assert [line[: len("error: ")] for line in lines] == ["error: "]
        assert closed in lines[0]
        assert run.output.rindex(SHOWN_AGAIN) < run.output.index("error: ")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_start_that_is_interrupted_ends_at_once_and_leaves_nothing(
    tmp_path: Path, silent: str, number: signal.Signals, status: int
) -> None:
    with started(tmp_path, silent, "bronze") as run:
        run.await_("connecting to Kafka")
        with beside(pressing(run, number)):
            assert run.ended() == status
        assert [line for line in left(re.sub(r"<imports \w+>", "", run.output)) if line] == []
        assert run.output.rstrip().rfind(SHOWN_AGAIN) > run.output.rindex("connecting to Kafka")


def test_an_unknown_stream_is_refused_before_anything_is_drawn(tmp_path: Path, closed: str) -> None:
    with started(tmp_path, closed, "all", "--stream", "sale") as run:
        assert run.ended() == 2
        assert "starting" not in run.output
        assert "error: unknown stream sale; known: calls, metrics, sales, transactions." in run.output
