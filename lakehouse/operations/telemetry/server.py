"""Serve a process's metrics and health over HTTP, in background threads.

/metrics        OpenMetrics, or Prometheus' text format on request
/health/live    200 while the process answers
/health/ready   200 while the process does its work, else 503; both health paths return reasons as JSON

There is no authentication, so the server limits the number of connections, in total and per peer, and the
size and duration of each request. When a limit is reached, a new connection replaces the oldest connection
that is waiting for its peer. Only one request at a time collects metrics.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any

from prometheus_client import CollectorRegistry, make_wsgi_app

from lakehouse.common.errors import ServiceError
from lakehouse.common.printable import printable_json
from lakehouse.storage.spark.query_errors import what_of

MOST_CONNECTIONS = 48
MOST_OF_A_PEER = 16
MOST_HEAD = 16 * 1024
HEAD_S = 5.0
"""The time limit in seconds for a peer to send its whole request after connecting."""
STALLED_S = 10.0
"""The time limit in seconds for a peer to accept the whole response."""
_PIECE = 4096
_ENDS = (b"\r\n\r\n", b"\n\n")


@dataclass(frozen=True)
class Limits:
    """A peer's time limits in seconds: `head_s` for sending a request, `stalled_s` for reading a response."""

    head_s: float = HEAD_S
    stalled_s: float = STALLED_S


LIMITS = Limits()


@dataclass(frozen=True)
class Readiness:
    """Whether a process is doing its work, and the reasons if it is not."""

    is_ready: bool
    reasons: tuple[str, ...] = ()


def as_json(status: str, reasons: tuple[str, ...]) -> bytes:
    """Return the JSON response to a probe."""
    return printable_json({"status": status, "reasons": list(reasons)}).encode()


def exposed(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Return a registry's metrics in the format that an Accept header requests, and their Content-Type."""
    headers: dict[str, str] = {}
    request = {"REQUEST_METHOD": "GET", "PATH_INFO": "/metrics", "HTTP_ACCEPT": accept}
    (text,) = make_wsgi_app(registry)(request, lambda _status, given: headers.update(given))
    return text, headers["Content-Type"]


@contextmanager
def serving(
    registry: CollectorRegistry,
    ready: Callable[[], Readiness],
    port: int,
    host: str = "127.0.0.1",
    limits: Limits = LIMITS,
) -> Iterator[int]:
    """Serve during the block and yield the port. Port 0 picks a free port.

    Raises ServiceError if the port is in use.
    """
    given: dict[str, Any] = {
        "registry": registry,
        "ready": staticmethod(ready),
        "limits": limits,
        "collecting": threading.Lock(),
    }
    try:
        server = _Server((host, port), type("Handler", (_Handler,), given))
    except OSError as error:
        raise ServiceError(
            f"telemetry cannot be served at {host}:{port} ({error.strerror}); "
            "choose another port with --telemetry-port or telemetry.port, or 0 for any free port"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="telemetry", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class _Connection:
    """An open connection. `is_waiting` says whether it is waiting for its peer to send or read."""

    peer: str
    is_waiting: bool = True


class _Server(ThreadingHTTPServer):
    """A server with a thread per connection and a limited number of connections."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *args: Any) -> None:
        self._lock = threading.Lock()
        self._open = dict[socket.socket, _Connection]()  # oldest first
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a request in a thread if the limits allow it, or if another connection can be closed."""
        if self._take_place(request, client_address[0]):
            super().process_request(request, client_address)
        else:
            super().shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, so that it no longer counts towards the limits."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error unless it is a connection error."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def computing(self, request: socket.socket, *, is_computing: bool) -> None:
        """Record whether a response is being computed. Closing that connection would not free its thread."""
        with self._lock:
            if (one := self._open.get(request)) is not None:
                one.is_waiting = not is_computing

    def _take_place(self, request: socket.socket, peer: str) -> bool:
        with self._lock:
            of_peer = [one for one, known in self._open.items() if known.peer == peer]
            crowded = (
                of_peer
                if len(of_peer) >= MOST_OF_A_PEER
                else list(self._open)
                if len(self._open) >= MOST_CONNECTIONS
                else None
            )
            if crowded is not None:
                oldest = next((one for one in crowded if self._open[one].is_waiting), None)
                if oldest is None:
                    return False
                del self._open[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread then closes the connection
            self._open[request] = _Connection(peer)
            return True


class _Handler(BaseHTTPRequestHandler):
    registry: CollectorRegistry
    ready: Callable[[], Readiness]
    limits: Limits
    collecting: threading.Lock
    connection: socket.socket
    server: _Server

    def handle(self) -> None:
        """Read a complete request head, then answer the request."""
        self.close_connection = True
        head, ends = b"", time.monotonic() + self.limits.head_s
        while not any(end in head for end in _ENDS):
            if len(head) > MOST_HEAD:
                self._refuse(431, f"a request may be at most {MOST_HEAD:,} bytes long")
                return
            self.connection.settimeout(max(0.001, ends - time.monotonic()))
            try:
                piece = self.connection.recv(_PIECE)
            except TimeoutError:
                self._refuse(408, f"the request did not arrive within {self.limits.head_s:g} s")
                return
            if not piece:
                return
            head += piece
        self.connection.settimeout(self.limits.stalled_s)
        self.rfile = BytesIO(head)
        self.handle_one_request()

    def do_GET(self) -> None:
        """Answer a scrape or a probe. A failure results in status 500."""
        try:
            self._get(self.path.partition("?")[0])
        except ConnectionError:  # the client has disconnected
            self.close_connection = True
        except Exception as error:  # noqa: BLE001 - collectors may raise anything
            self._say(500, "failed", (what_of(error),))

    def _get(self, path: str) -> None:
        if path == "/metrics":
            with self._computing(), self.collecting:
                text, content_type = exposed(self.registry, self.headers.get("Accept", ""))
            self._answer(200, content_type, text)
        elif path == "/health/live":
            self._say(200, "live", ())
        elif path == "/health/ready":
            with self._computing():
                found = self.ready()
            self._say(
                200 if found.is_ready else 503, "ready" if found.is_ready else "not ready", found.reasons
            )
        else:
            self._say(404, "unknown", ("this server has only /metrics, /health/live and /health/ready",))

    @contextmanager
    def _computing(self) -> Iterator[None]:
        self.server.computing(self.connection, is_computing=True)
        try:
            yield
        finally:
            self.server.computing(self.connection, is_computing=False)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Do not log requests."""

    def _refuse(self, code: int, why: str) -> None:
        """Answer an invalid request head."""
        self.connection.settimeout(self.limits.stalled_s)
        self.requestline = self.request_version = self.command = ""
        self._say(code, "refused", (why,))

    def _say(self, code: int, status: str, reasons: tuple[str, ...]) -> None:
        self._answer(code, "application/json", as_json(status, reasons))

    def _answer(self, code: int, content_type: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
