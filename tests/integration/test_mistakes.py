"""A mistake by a user is one line that says so, with its exit code."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from lakehouse.dev.services.services import Endpoints
from tests.support.commands import run_command
from tests.support.processes import NOISE, Place, closed_port, finish, submit


@dataclass(frozen=True)
class Mistake:
    """Arguments and environment that cannot work, and what must be said about them.

    `said_before` is the standard output: what the run waited for before it failed.
    """

    arguments: list[str]
    environment: dict[str, str]
    exit_code: int
    says: list[str]
    said_before: str = ""


MISTAKES = {
    "unknown stream": Mistake(
        ["run", "bronze", "--stream", "metrix"],
        {},
        2,
        ["unknown stream metrix", "known: calls, metrics, sales, transactions"],
    ),
    "bad trigger": Mistake(
        ["run", "all", "--trigger", "sometimes"], {}, 2, ['unknown trigger "sometimes"', "available-now"]
    ),
    "no broker": Mistake(
        ["run", "bronze"],
        {"LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:{closed}"},
        1,
        ["no Kafka broker at 127.0.0.1:{closed}", "lakehouse services up"],
        "connecting to Kafka\n",
    ),
    "dead letters among alerts": Mistake(
        ["run", "all", "--dead-letter-topic", "told"],
        {"LAKEHOUSE_ALERTS_TOPIC": "told"},
        2,
        ["topic told has 2 uses: dead letters go to it", "; alerts go to it"],
    ),
    "dead letters among alerts, by hand": Mistake(
        ["run", "export", "--trigger", "available-now", "--dead-letter-topic", "told"],
        {"LAKEHOUSE_ALERTS_TOPIC": "told"},
        2,
        ["topic told has 2 uses: dead letters go to it", "; alerts go to it"],
    ),
    "no Redis": Mistake(
        ["run", "export"],
        {"LAKEHOUSE_REDIS_URL": "redis://user:hunter2@127.0.0.1:{closed}/0"},
        1,
        ["no Redis at 127.0.0.1:{closed}", "LAKEHOUSE_REDIS_URL"],
        "connecting to Kafka, Redis\n",
    ),
    "not a Redis URL": Mistake(
        ["run", "export"], {"LAKEHOUSE_REDIS_URL": "localhost:6379"}, 2, ["LAKEHOUSE_REDIS_URL"]
    ),
    "unknown variable": Mistake(
        ["run", "bronze"],
        {"LAKEHOUSE_KAFKA_SERVERS": "x"},
        2,
        ["LAKEHOUSE_KAFKA_SERVERS", "did you mean LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS?"],
    ),
    "unknown key in the file": Mistake(
        ["run", "bronze"], {"LAKEHOUSE_CONFIG": "{file}"}, 2, ["unknown key grace", "{file}"]
    ),
    "missing file": Mistake(
        ["run", "bronze"], {"LAKEHOUSE_CONFIG": "nowhere.toml"}, 2, ["nowhere.toml, which does not exist"]
    ),
}


@pytest.fixture
def here(services: Endpoints, tmp_path: Path) -> Place:
    return Place(tmp_path / "home", services, services.redis, uuid.uuid4().hex[:8])


@pytest.fixture
def mistake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mistake]:
    """Yield a mistake with a port that remains closed and with this test's own configuration file."""
    (tmp_path / "lakehouse.toml").write_text("grace = 5\n")
    with closed_port() as closed:
        facts = {"closed": closed, "file": tmp_path / "lakehouse.toml"}
        raw: Mistake = request.param
        yield Mistake(
            raw.arguments,
            {name: value.format(**facts) for name, value in raw.environment.items()},
            raw.exit_code,
            [text.format(**facts) for text in raw.says],
            raw.said_before,
        )


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys(), indirect=True)
def test_a_mistake_is_one_line_with_its_exit_code(here: Place, mistake: Mistake) -> None:
    ended = run_command(here.environment | mistake.environment, *mistake.arguments)

    assert ended.returncode == mistake.exit_code, ended.stderr
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.count("\n") == 1
    assert ended.stdout == mistake.said_before
    for text in mistake.says:
        assert text in ended.stderr
    assert "hunter2" not in ended.stderr


def test_a_file_that_is_not_toml_is_named_wherever_the_command_is_run(
    here: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lakehouse.toml").write_text("grace_s == 5\n")
    monkeypatch.chdir(tmp_path)

    ended = run_command(here.environment, "run", "bronze")

    assert ended.returncode == 2
    assert ended.stderr.startswith("error: lakehouse.toml could not be read: ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.soak
def test_a_mistake_under_spark_submit_is_one_line_too(here: Place) -> None:
    ended = finish(submit("silver", "--stream", "metrix"), here.environment)

    assert ended.returncode == 2
    # spark-submit passes Python's stdout and stderr on as its own stdout.
    assert ended.stdout == (
        "error: unknown stream metrix; known: calls, metrics, sales, transactions. To add a stream, "
        "declare it in [streams.metrix]\n"
    )
    assert not NOISE.search(ended.stderr), ended.stderr


@pytest.mark.soak
def test_a_jvm_that_does_not_come_up_is_given_up_in_one_line(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexec sleep 600\n")
    java.chmod(0o755)
    environment = {**os.environ, "JAVA_HOME": str(tmp_path), "LAKEHOUSE_HOME": str(tmp_path / "home")}
    names = "from lakehouse.cli import main as cli; from lakehouse.storage.spark import session"
    hasty = f"{names}; session._JVM_TIMEOUT_S = 1; cli.main()"

    ended = finish([sys.executable, "-c", hasty, "sql", "SELECT 1"], environment)

    assert ended.returncode != 0
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: Spark's JVM did not start within 1 s")
    assert not [process for process in psutil.process_iter(["environ"]) if is_of(process, tmp_path)]


def is_of(process: psutil.Process, java_home: Path) -> bool:
    return bool(process.info["environ"] and process.info["environ"].get("JAVA_HOME") == str(java_home))
