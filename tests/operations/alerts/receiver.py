"""The other end of a webhook."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple


class Request(NamedTuple):
    """A request that a server received."""

    method: str
    path: str
    headers: Message
    body: bytes


class Receiver:
    """A webhook that answers with `status` and keeps what it receives."""

    def __init__(self) -> None:
        self.status = 200
        self.got: list[tuple[str, dict[str, Any]]] = []
        self.requests: list[Request] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append(Request("POST", self.path, self.headers, body))
                if receiver.status == 200:
                    receiver.got.append((self.headers["Idempotency-Key"], json.loads(body)))
                self.send_response(receiver.status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def do_GET(self) -> None:
                receiver.requests.append(Request("GET", self.path, self.headers, b""))
                self.send_response(200)  # a client that follows a redirect arrives here, without a body
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        self.url = f"http://{self.address}/hook?key=secret"

    def use_tls(self, certificate: Path, key: Path) -> None:
        """Speak TLS from now on."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"https://{self.address}/hook?key=secret"


class Proxy:
    """A proxy for HTTPS that keeps the requests it receives."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_CONNECT(self) -> None:
                proxy.requests.append(Request("CONNECT", self.path, self.headers, b""))
                host, _, port = self.path.rpartition(":")
                with socket.create_connection((host, int(port))) as there:
                    self.send_response(200)
                    self.end_headers()
                    back = threading.Thread(target=relay, args=(there, self.connection))
                    back.start()
                    relay(self.connection, there)
                    back.join()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"


def relay(here: socket.socket, there: socket.socket) -> None:
    """Relay bytes until one side closes."""
    with suppress(OSError):
        while data := here.recv(65536):
            there.sendall(data)
        there.shutdown(socket.SHUT_WR)


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Yield a webhook that answers inside the block."""
    made = Receiver()
    with answering(made.server):
        yield made


@contextmanager
def proxying() -> Iterator[Proxy]:
    """Yield a proxy that answers inside the block."""
    made = Proxy()
    with answering(made.server):
        yield made


@contextmanager
def answering(server: ThreadingHTTPServer) -> Iterator[None]:
    """Run a server inside the block."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
