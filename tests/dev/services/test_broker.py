"""The ports of a local Kafka; tests/integration/test_services.py checks that it runs."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from lakehouse.common.errors import ServiceError
from lakehouse.dev.services.broker import KafkaServer
from lakehouse.dev.services.processes import LOOPBACK, free_port_after


def listening(port: int = 0) -> socket.socket:
    server = socket.socket()
    server.bind((LOOPBACK, port))
    server.listen()
    return server


def listeners(home: Path, port: int, port_of_redis: int) -> str:
    server = KafkaServer(home=home, configured_port=port, port_of_redis=port_of_redis)
    server.directory.mkdir(parents=True, exist_ok=True)
    server.configure(port)
    lines = (home / "kafka" / "server.properties").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith("listeners="))


def test_the_controller_takes_the_next_free_port_after_the_configured_one(tmp_path: Path) -> None:
    port = 20_500
    with listening(port + 1):
        assert listeners(tmp_path, port, port_of_redis=port + 2) == (
            f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 3}"
        )


def test_a_port_without_free_ones_after_it_is_refused() -> None:
    with pytest.raises(ServiceError, match=r"no port from 65536 to 65535 .* set --kafka-port"):
        free_port_after(65_535, other_than=())
