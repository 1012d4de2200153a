"""Web servers that misbehave: they respond endlessly, byte by byte, or with a redirect."""

from __future__ import annotations

import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_DROP_S = 0.01
_DROPS = 3_000  # a client without a deadline waits for all of them, and gets a whole answer
_MUCH = 64 << 20

Behave = Callable[[socket.socket], None]


class Hostile:
    """A server on a loopback port that treats all clients alike; `requests` contains what they sent."""

    def __init__(self, behave: Behave) -> None:
        self.requests: list[bytes] = []
        hostile = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                request = b""
                while b"\r\n\r\n" not in request and (more := self.request.recv(65_536)):
                    request += more
                head, _, body = request.partition(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: (\d+)", head)
                while length and len(body) < int(length[1]) and (more := self.request.recv(65_536)):
                    body += more
                hostile.requests.append(head + b"\r\n\r\n" + body)
                with suppress(OSError):
                    behave(self.request)

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/here"


@contextmanager
def hostile(behave: Behave) -> Iterator[Hostile]:
    """Run a server until the end of the block."""
    made = Hostile(behave)
    threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.socket.close()  # server_close would wait for clients that are still being answered


def redirecting(url: str, status: int = 307) -> Behave:
    """Return a behaviour that redirects elsewhere."""

    def behave(to: socket.socket) -> None:
        to.sendall(f"HTTP/1.1 {status} Elsewhere\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n".encode())

    return behave


def answering(body: bytes, status: int = 200) -> Behave:
    """Return a behaviour that responds properly."""

    def behave(to: socket.socket) -> None:
        to.sendall(f"HTTP/1.1 {status} So\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

    return behave


def with_an_endless_body(to: socket.socket) -> None:
    """Send an endless body."""
    to.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(_MUCH >> 16):
        to.sendall(b"10000\r\n" + bytes(65_536) + b"\r\n")


def with_a_body_of_a_petabyte(to: socket.socket) -> None:
    """Announce more bytes than fit into any memory."""
    to.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000000\r\n\r\n")
    for _ in range(_MUCH >> 16):
        to.sendall(bytes(65_536))


def with_endless_headers(to: socket.socket) -> None:
    """Send an endless header line."""
    to.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    for _ in range(_MUCH >> 16):
        to.sendall(b"x" * 65_536)


def with_many_headers(to: socket.socket) -> None:
    """Send an endless number of header lines."""
    to.sendall(b"HTTP/1.1 200 OK\r\n")
    for _ in range(_MUCH >> 16):
        to.sendall(b"X: y\r\n" * 10_000)


def with_endless_promises(to: socket.socket) -> None:
    """Announce forever that a response will follow."""
    for _ in range(_MUCH >> 16):
        to.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 2_600)


def with_a_slow_head(to: socket.socket) -> None:
    """Send the headers byte by byte."""
    to.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    for _ in range(_DROPS):
        to.sendall(b"x")
        time.sleep(_DROP_S)
    to.sendall(b"\r\nContent-Length: 2\r\n\r\n{}")


def with_a_slow_body(to: socket.socket) -> None:
    """Send the body byte by byte."""
    to.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {_DROPS}\r\n\r\n".encode())
    for _ in range(_DROPS):
        to.sendall(b" ")
        time.sleep(_DROP_S)


def cut_off(to: socket.socket) -> None:
    """Announce more bytes than are sent."""
    to.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"a": 1}')
