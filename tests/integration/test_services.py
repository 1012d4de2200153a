"""The local services, with real processes; each test has its own home."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import redis
from kafka import KafkaAdminClient
from typer.testing import CliRunner, Result

from lakehouse.cli.commands.services import NOT_ALL_RUNNING, app
from lakehouse.common.errors import ServiceError
from lakehouse.dev.services.processes import stop_process
from lakehouse.dev.services.services import Ports, local_services
from lakehouse.settings import Settings, load_settings, services_file
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.sinks.redis.client import require_redis
from lakehouse.storage.kafka.probe import require_broker
from lakehouse.storage.kafka.topics import create_topics
from lakehouse.storage.spark import jars
from tests.support.pipeline import await_
from tests.support.processes import closed_port, processes_of, unused_port
from tests.support.streams import STREAMS

if TYPE_CHECKING:
    from collections.abc import Iterator

START_TIMEOUT_S = 300.0
RUN_APP = "from lakehouse.cli.commands.services import app; app()"
# The thread that starts the services ends long before the process; the services must not end with it.
HOLD_FROM_A_THREAD = """
import threading, time
from lakehouse.dev.services.services import local_services
from lakehouse.settings import load_settings
running = local_services(load_settings())
thread = threading.Thread(target=running.__enter__)
thread.start()
thread.join()
print("holding", flush=True)
time.sleep(60)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a home with a name that is hard to quote, and kill whatever still runs in it afterwards."""
    path = tmp_path / "höme [1] of one"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKEHOUSE_HOME", str(path))
    monkeypatch.setenv("COLUMNS", "300")
    yield path
    for process in processes_of(path):
        process.kill()


@pytest.mark.soak
def test_services_come_up_once_are_started_again_where_one_died_and_keep_ports_and_data_over_a_stop(
    home: Path,
) -> None:
    assert run("status").exit_code == NOT_ALL_RUNNING

    # Two simultaneous starts start each service once.
    command = [sys.executable, "-c", RUN_APP, "up"]
    with (
        killed_at_the_end(subprocess.Popen(command, stdout=subprocess.DEVNULL)) as one,
        killed_at_the_end(subprocess.Popen(command, stdout=subprocess.DEVNULL)) as other,
    ):
        assert (one.wait(START_TIMEOUT_S), other.wait(START_TIMEOUT_S)) == (0, 0)
    pids = recorded_pids(home)
    assert sorted(process.pid for process in processes_of(home)) == sorted(pids.values())
    first = load_settings()
    topics = {name: 4 for stream in STREAMS for name in stream.topics}
    assert create_topics(first.kafka.access, topics) == []  # a producer need not wait for a run
    again = run("up")
    assert again.exit_code == 0
    assert again.stdout.count("already running") == 2
    assert recorded_pids(home) == pids

    shown = run("status")
    assert shown.exit_code == 0
    for text in (*map(str, pids.values()), first.kafka.bootstrap_servers, str(home / "kafka" / "data")):
        assert text in shown.stdout
    assert create_topics(first.kafka.access, {"calls": 3, "sales": 1}) == ["calls", "sales"]
    assert create_topics(first.kafka.access, {"calls": 5, "late": 1}) == ["late"]

    # A service that died is reported, and restarted beside the other.
    psutil.Process(pids["redis"]).kill()
    await_(lambda: run("status").exit_code == NOT_ALL_RUNNING, timeout_s=60)
    assert "died" in run("status").stdout
    assert run("up").exit_code == 0
    after = recorded_pids(home)
    assert after["kafka"] == pids["kafka"]
    assert after["redis"] != pids["redis"]
    client(first).set("row", "kept")

    assert run("down").exit_code == 0
    assert processes_of(home) == []
    assert not services_file(home).exists()
    assert "nothing was running" in run("down").stdout
    assert run("status").exit_code == NOT_ALL_RUNNING

    assert run("up").exit_code == 0
    second = load_settings()
    assert second.kafka.bootstrap_servers == first.kafka.bootstrap_servers
    assert second.redis.url == first.redis.url
    assert client(second).get("row") == b"kept"
    assert partitions(second, "calls") == 3
    assert run("down").exit_code == 0


@pytest.mark.soak
def test_an_embedded_run_adopts_what_runs_and_stops_only_what_it_started_even_where_it_fails(
    home: Path,
) -> None:
    port = unused_port()
    settings, ports = Settings(home=home), Ports(kafka=port)

    def fail() -> None:
        with local_services(settings, ports=ports) as outer:
            assert outer.kafka == f"127.0.0.1:{port}"  # as configured
            require_broker(KafkaAccess(outer.kafka))
            require_redis(outer.redis)
            with local_services(settings, ports=ports) as inner:
                assert inner == outer
            assert len(processes_of(home)) == 2
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert processes_of(home) == []
    assert not services_file(home).exists()


@pytest.mark.soak
def test_services_of_a_killed_embedding_process_end_with_it(home: Path) -> None:
    command = [sys.executable, "-c", HOLD_FROM_A_THREAD]
    with killed_at_the_end(subprocess.Popen(command, stdout=subprocess.PIPE)) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"holding\n"
        assert len(processes_of(home)) == 2
        parent.kill()
    await_(lambda: processes_of(home) == [], timeout_s=60)


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("kafka: preparing", signal.SIGINT),
        ("kafka: starting", signal.SIGTERM),
    ],
)
def test_an_interrupted_start_leaves_nothing_running(home: Path, moment: str, number: signal.Signals) -> None:
    command = [sys.executable, "-c", RUN_APP, "up"]
    with killed_at_the_end(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as up:
        assert up.stdout is not None
        assert any(line.startswith(moment) for line in up.stdout)
        assert processes_of(home) != []
        up.send_signal(number)
        assert "ready" not in up.stdout.read()
        up.wait(START_TIMEOUT_S)
    assert up.returncode in {128 + number, -number}
    assert processes_of(home) == []
    assert not services_file(home).exists()


@pytest.mark.parametrize("command", ["up", "down"])
def test_a_home_that_others_may_write_is_refused_and_nothing_is_started(home: Path, command: str) -> None:
    home.mkdir()
    home.chmod(0o777)

    ended = run(command)

    assert isinstance(ended.exception, ServiceError)
    assert str(ended.exception) == (
        f"refusing to start or stop the local services in {home}: anyone can write to it (mode 0777). Make "
        "sure that you own it and only you can write to it (chown, chmod go-w), or set `home` "
        "(LAKEHOUSE_HOME) to another directory"
    )
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("name", ["kafka", "redis"])
def test_a_configured_port_in_use_is_one_line_and_nothing_is_started(home: Path, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = failure("up", f"--{name}-port", str(port))
    assert f"port {port}" in message
    assert f"--{name}-port" in message
    assert "\n" not in message
    assert processes_of(home) == []


@pytest.mark.parametrize(("guard", "command"), [("creation time", "up"), ("command line", "down")])
def test_a_stranger_with_a_recorded_pid_is_not_touched(
    home: Path, monkeypatch: pytest.MonkeyPatch, guard: str, command: str
) -> None:
    properties = home / "kafka" / "server.properties"
    properties.parent.mkdir(parents=True)
    looks_like_kafka = ["kafka.Kafka", str(properties)] if guard == "creation time" else []
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)", *looks_like_kafka]
    # With this, `up` fails after it has read the pid file and before it starts anything.
    monkeypatch.setenv("JAVA_HOME", str(home))
    with killed_at_the_end(subprocess.Popen(sleeper)) as stranger:
        created = psutil.Process(stranger.pid).create_time() - (600 if guard == "creation time" else 0)
        record = {"pid": stranger.pid, "created": created, "port": 9}
        (home / "kafka" / "kafka.pid").write_text(json.dumps(record))
        assert "died" in run("status").stdout
        result = run(command)
        assert stranger.poll() is None
        assert f"pid {stranger.pid}" not in result.stdout
        assert not (home / "kafka" / "kafka.pid").exists()


def test_a_recorded_process_that_ignores_sigterm_is_killed() -> None:
    ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True)"
    command = [sys.executable, "-c", f"{ignore}; time.sleep(60)"]
    with killed_at_the_end(subprocess.Popen(command, stdout=subprocess.PIPE)) as stubborn:
        assert stubborn.stdout is not None
        stubborn.stdout.readline()
        assert stop_process("kafka", psutil.Process(stubborn.pid), timeout_s=0.5)
    assert stubborn.returncode == -signal.SIGKILL


def test_a_service_that_dies_at_its_start_shows_the_end_of_its_log(home: Path) -> None:
    data = home / "redis" / "data"
    data.mkdir(parents=True)
    (data / "appendonly.aof").write_bytes(b"not what Redis writes\r\n")
    message = failure("up")
    assert "Bad file format" in message
    assert str(home / "logs" / "redis.log") in message
    assert processes_of(home) == []


def test_a_java_that_does_not_start_stops_what_was_started_before_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xmx10x")
    message = failure("up")
    assert "Invalid maximum heap size" in message
    assert str(home / "logs" / "kafka-console.log") in message
    assert processes_of(home) == []


def test_missing_java_and_missing_jars_say_what_to_install(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(home))
        assert "install Java 17" in failure("up")
    with monkeypatch.context() as patch:
        patch.setattr(jars.sys, "prefix", str(home))  # type: ignore[attr-defined]
        assert "run `lakehouse setup`" in failure("up")
    assert processes_of(home) == []


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "file" / "home"))
    assert "set `home` (LAKEHOUSE_HOME)" in failure("up")


@pytest.mark.parametrize("servers", ["127.0.0.1:{closed}", "127.0.0.1:{silent}", "no-such-host.invalid:9092"])
def test_an_unreachable_broker_is_one_line_that_says_how_to_get_one(servers: str) -> None:
    with closed_port() as closed, socket.create_server(("127.0.0.1", 0)) as silent:
        address = servers.format(closed=closed, silent=silent.getsockname()[1])
        with pytest.raises(ServiceError, match="lakehouse services up") as caught:
            require_broker(KafkaAccess(address), timeout_s=1)
    assert f"no Kafka broker at {address}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("servers", ["", "host:", ":9092", "host:port", "host:70000", "one:1,,two:2"])
def test_malformed_bootstrap_servers_are_refused_by_name(servers: str) -> None:
    with pytest.raises(ServiceError, match=r"kafka\.bootstrap_servers"):
        require_broker(KafkaAccess(servers))


def test_an_unreachable_redis_is_one_line_without_the_password() -> None:
    with closed_port() as port, pytest.raises(ServiceError, match="lakehouse services up") as caught:
        require_redis(f"redis://user:secret@127.0.0.1:{port}/0")
    assert f"no Redis at 127.0.0.1:{port}" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@contextmanager
def killed_at_the_end(process: subprocess.Popen[Any]) -> Iterator[subprocess.Popen[Any]]:
    """Kill the process after the block; Popen would wait for its end, even after a failed assertion."""
    with process:
        try:
            yield process
        finally:
            process.kill()


def run(*command: str) -> Result:
    return CliRunner().invoke(app, command)


def failure(*command: str) -> str:
    """Return the message of the ServiceError that a command ends with."""
    error = run(*command).exception
    assert isinstance(error, ServiceError)
    return str(error)


def recorded_pids(home: Path) -> dict[str, int]:
    found = json.loads(services_file(home).read_text(encoding="utf-8"))
    return {name: entry["pid"] for name, entry in found.items()}


def client(settings: Settings) -> redis.Redis:
    return redis.Redis.from_url(settings.redis.url.get_secret_value())


def partitions(settings: Settings, topic: str) -> int:
    admin = KafkaAdminClient(bootstrap_servers=settings.kafka.bootstrap_servers)
    try:
        return len(admin.describe_topics([topic])[0]["partitions"])
    finally:
        admin.close()
