"""Connections of slow clients over real sockets, and HTTPS by the server itself."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from cryptography.hazmat.primitives import serialization

from lakehouse.cli.commands.serve import networks
from lakehouse.common.errors import SettingsError
from lakehouse.serving.security.connections import DeadlineProtocol
from lakehouse.serving.security.tls import Certificate
from tests.support.certificates import certified

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
LARGE = b"x" * 16_000_000


class Hasty(DeadlineProtocol):
    """The protocol with deadlines short enough for a test."""

    head_s = 0.1
    stalled_s = 0.3


async def answers(scope: Any, _receive: Any, send: Any) -> None:
    """Answer without reading a body."""
    assert scope["type"] == "http"
    body = {"/large": LARGE, "/who": str(scope["client"][0]).encode()}.get(scope["path"], b"here")
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def serving(**options: Any) -> Iterator[uvicorn.Server]:
    """Run a server of these answers in a thread, without a lake."""
    server = uvicorn.Server(
        uvicorn.Config(answers, port=0, lifespan="off", log_level="error", **{"http": Hasty, **options})
    )
    thread = threading.Thread(target=partial(asyncio.run, server.serve()))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
        yield server
    finally:
        server.should_exit = True
        thread.join()


def connected(server: uvicorn.Server, host: str = "127.0.0.1") -> socket.socket:
    port = server.servers[0].sockets[0].getsockname()[1]
    return socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(host, 0))


def until_cut(client: socket.socket, drops: Iterator[bytes]) -> bytes:
    """Send these until the server cuts the connection, and return what it has sent."""
    said = b""
    try:
        for drop in drops:
            client.settimeout(0.02)
            client.sendall(drop)
            try:
                said += (piece := client.recv(65_536))
            except TimeoutError:
                continue
            if not piece:
                return said
    except (ConnectionResetError, BrokenPipeError):
        return said
    client.settimeout(60)
    while True:
        try:
            piece = client.recv(65_536)
        except ConnectionResetError:
            return said
        if not piece:
            return said
        said += piece


@pytest.mark.parametrize(
    ("first", "drops"),
    [
        (b"", iter(())),
        (b"", repeat(b"G")),
        (HEAD, repeat(b"X-Drop: 1\r\n")),
        (HEAD + b"\r\n", repeat(b"G")),  # after an answer
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n\r\n", repeat(b"x")),
    ],
    ids=["nothing", "drops of a method", "drops of a head", "a second head", "a body behind its answer"],
)
def test_who_does_not_finish_a_request_is_cut(first: bytes, drops: Iterator[bytes]) -> None:
    with serving() as server, connected(server) as client:
        client.sendall(first)
        said = until_cut(client, drops)
    is_answered = first.endswith(b"\r\n\r\n")
    assert (b"here" in said) == is_answered


def test_who_does_not_read_an_answer_is_cut_and_who_reads_slowly_gets_it() -> None:
    with serving() as server, connected(server) as idle, connected(server) as slow:
        for client in (idle, slow):
            client.sendall(HEAD.replace(b"/ ", b"/large ") + b"Connection: close\r\n\r\n")
        read = 0
        while piece := slow.recv(100_000):
            read += len(piece)
            threading.Event().wait(0.005)  # in total, this takes longer than a reader may pause
        assert read > len(LARGE)
        while server.server_state.connections:
            pass
        assert sum(map(len, iter(partial(idle.recv, 1_000_000), b""))) < len(LARGE)


class Crowded(DeadlineProtocol):
    """The protocol with few places for waiting connections."""

    head_s = 600
    most_waiting, most_waiting_of_a_peer = 6, 4


def test_connections_without_a_request_give_way_first_those_of_the_same_peer() -> None:
    with serving(http=Crowded) as server, ExitStack() as stack:

        def waiting(host: str) -> socket.socket:
            client = stack.enter_context(connected(server, host))
            client.sendall(HEAD)
            return client

        def asked() -> bytes:
            with connected(server) as client:
                client.sendall(HEAD + b"Connection: close\r\n\r\n")
                return b"".join(iter(partial(client.recv, 1000), b""))

        other = waiting("127.0.0.3")
        assert asked().endswith(b"here")
        half = [waiting("127.0.0.2") for _ in range(60)]
        assert asked().endswith(b"here")
        assert [until_cut(client, iter(())) for client in half[:56]] == [b""] * 56
        for client in (other, *half[57:]):
            client.sendall(b"Connection: close\r\n\r\n")
            assert b"".join(iter(partial(client.recv, 1000), b"")).endswith(b"here")
        crowd = [waiting(f"127.0.0.{number}") for number in range(4, 20)]
        assert [until_cut(client, iter(())) for client in crowd[:10]] == [b""] * 10
        assert asked().endswith(b"here")


@pytest.mark.parametrize(("proxy", "client"), [("127.0.0.1", b"192.0.2.7"), ("10.0.0.0/8", b"127.0.0.1")])
def test_only_a_named_proxy_says_for_whom_it_asks(proxy: str, client: bytes) -> None:
    with (
        serving(proxy_headers=True, forwarded_allow_ips=networks([proxy])) as server,
        connected(server) as one,
    ):
        forwarded = b"X-Forwarded-For: 198.51.100.9, 192.0.2.7\r\nConnection: close\r\n\r\n"
        one.sendall(HEAD.replace(b"/ ", b"/who ") + forwarded)
        assert b"".join(iter(partial(one.recv, 1000), b"")).endswith(client)


def who_answers(server: uvicorn.Server, trusted: Path) -> str:
    """Return the name in the certificate of a server called localhost."""
    context = ssl.create_default_context(cafile=str(trusted))
    with context.wrap_socket(connected(server), server_hostname="localhost") as client:
        client.sendall(HEAD + b"Connection: close\r\n\r\n")
        said = b""
        while piece := client.recv(1000):
            said += piece
        assert said.endswith(b"here")
        found: Any = client.getpeercert()
    return str(found["subject"][0][0][1])


def test_a_renewed_certificate_is_used_and_a_broken_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served, first, renewed = (certified(tmp_path, name) for name in ("served", "first", "renewed"))
    shutil.copy(first.certificate, served.certificate)
    shutil.copy(first.key, served.key)
    certificate = Certificate(served.certificate, served.key)
    with serving(ssl_context_factory=lambda *_: certificate.context) as server:
        assert who_answers(server, first.authority) == "first"
        shutil.copy(renewed.certificate, served.certificate)  # its key is not there yet
        asyncio.run(certificate.look())
        assert f"the renewed certificate {served.certificate} cannot be used" in caplog.text
        assert who_answers(server, first.authority) == "first"
        shutil.copy(renewed.key, served.key)
        asyncio.run(certificate.look())
        assert who_answers(server, renewed.authority) == "renewed"


def test_files_that_are_no_pair_are_refused_with_both_names(tmp_path: Path) -> None:
    pair, other, locked = certified(tmp_path), certified(tmp_path, "other"), tmp_path / "locked.key"
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"secret")
    pkcs8 = serialization.PrivateFormat.PKCS8
    locked.write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, secret))
    for path, why in (
        (tmp_path / "none.key", "No such file"),
        (locked, "the key has a password"),
        (other.key, "mismatch"),
    ):
        with pytest.raises(
            SettingsError, match=f"--tls-cert {pair.certificate} and --tls-key {path}: .*{why}"
        ):
            Certificate(pair.certificate, path)
