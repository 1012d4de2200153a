"""SeaweedFS for tests: an S3 store that supports conditional writes, from a binary in a wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyarrow.fs import S3FileSystem
from pydantic import SecretStr

from lakehouse.settings.s3_access import S3Access
from tests.support.processes import unused_ports

BUCKET = "lake"
WRITER = ("writer", "writers-key")
READER = ("reader", "readers-key")
"""A key that may only list and read."""

_RIGHTS = {WRITER: ["Admin", "Read", "Write", "List", "Tagging"], READER: ["Read", "List"]}
_HOST = "127.0.0.1"
_SERVERS = ("master", "volume", "filer", "s3")
_START_TIMEOUT_S = 60.0


def settings_of(endpoint: str, prefix: str, key: tuple[str, str] = WRITER) -> dict[str, str]:
    """Return the settings of a lake under a prefix, as environment variables."""
    return {
        "LAKEHOUSE_LAKE": f"s3a://{BUCKET}/{prefix}",
        "LAKEHOUSE_S3_ENDPOINT": endpoint,
        "LAKEHOUSE_S3_ACCESS_KEY": key[0],
        "LAKEHOUSE_S3_SECRET_KEY": key[1],
    }


def options_of(endpoint: str) -> dict[str, str]:
    """Return deltalake's options for the store."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": WRITER[0],
        "AWS_SECRET_ACCESS_KEY": WRITER[1],
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


def files_of(endpoint: str) -> S3FileSystem:
    """Return the store's files, listed by a client that the pipeline does not use."""
    scheme, _, address = endpoint.partition("://")
    return S3FileSystem(
        access_key=WRITER[0],
        secret_key=WRITER[1],
        scheme=scheme,
        endpoint_override=address,
        region="us-east-1",
        allow_bucket_creation=True,
        allow_bucket_deletion=True,
    )


@contextmanager
def running(directory: Path) -> Iterator[str]:
    """Run a store with an empty bucket until the end of the block; yield its URL."""
    (directory / "data").mkdir(parents=True)
    users = [
        {
            "name": name,
            "credentials": [{"accessKey": name, "secretKey": secret}],
            "actions": _RIGHTS[name, secret],
        }
        for name, secret in _RIGHTS
    ]
    (directory / "s3.json").write_text(json.dumps({"identities": users}))
    listening = [f"-{name}.port{kind}" for name in _SERVERS for kind in ("", ".grpc")]
    ports = dict(zip(listening, unused_ports(len(listening)), strict=True))
    options = ["-dir=data", f"-ip={_HOST}", f"-ip.bind={_HOST}", "-master.telemetry=false", "-s3"]
    options += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
    server = f"{sys.prefix}/bin/weed"
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [server, "-logdir=.", "server", *options, "-s3.config=s3.json"]
            + [f"{name}={port}" for name, port in ports.items()],
            cwd=directory,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    endpoint = f"http://{_HOST}:{ports['-s3.port']}"
    try:
        _make_bucket(endpoint, process)
        yield endpoint
    finally:
        process.kill()
        process.wait()


def _make_bucket(endpoint: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            files_of(endpoint).create_dir(BUCKET)
        except OSError:
            assert process.poll() is None, "the store has ended; its log says why"
            assert time.monotonic() < deadline, f"the store at {endpoint} does not answer"
            time.sleep(0.1)
        else:
            return


def driver(name: str, rows: int) -> list[str]:
    """Return the command of a driver that appends the given number of rows (tests/support/s3_driver.py)."""
    return [sys.executable, "-m", "tests.support.s3_driver", name, str(rows)]


def environment(directory: Path, endpoint: str, prefix: str, **more: str) -> dict[str, str]:
    """Return a process's environment: the current one without settings, plus a lake in the store."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LAKEHOUSE_", "AWS_"))}
    return kept | {"LAKEHOUSE_HOME": str(directory / "home")} | settings_of(endpoint, prefix) | more


def reach(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure readers in this process to use the store."""
    key, secret = WRITER
    access = S3Access(endpoint, access_key=key, secret_key=SecretStr(secret))
    for name, value in access.for_environment().items():
        monkeypatch.setenv(name, value)
