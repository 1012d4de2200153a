"""A process's metrics and health over HTTP, in threads that block no layer.

/metrics        OpenMetrics, or Prometheus' text format on request
/health/live    200 while the process answers
/health/ready   200 while it does its work, else 503; both say why as JSON
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from lakehouse.errors import ServiceError
from lakehouse.printable import printable_json
from lakehouse.spark.query_errors import what_of


@dataclass(frozen=True)
class Readiness:
    """Whether a process does its work, and what prevents it."""

    is_ready: bool
    reasons: tuple[str, ...] = ()


def as_json(status: str, reasons: tuple[str, ...]) -> bytes:
    """Return the answer to a probe."""
    return printable_json({"status": status, "reasons": list(reasons)}).encode()


@contextmanager
def serving(
    registry: CollectorRegistry, ready: Callable[[], Readiness], port: int, host: str = "127.0.0.1"
) -> Iterator[int]:
    """Serve during the block and yield the port; 0 picks a free one.

    Raises ServiceError if the port is taken.
    """
    handler = type("Handler", (_Handler,), {"registry": registry, "ready": staticmethod(ready)})
    try:
        server = ThreadingHTTPServer((host, port), handler)
    except OSError as error:
        raise ServiceError(
            f"telemetry cannot be served at {host}:{port} ({error.strerror}); "
            "--telemetry-port takes another, 0 a free one"
        ) from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="telemetry", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    registry: CollectorRegistry
    ready: Callable[[], Readiness]
    timeout = 10  # seconds within which a client must send its request

    def do_GET(self) -> None:
        """Answer a scrape or a probe; a failure becomes the answer."""
        try:
            self._get(self.path.partition("?")[0])
        except ConnectionError:  # the client has disconnected
            self.close_connection = True
        except Exception as error:  # noqa: BLE001 - whatever a collector raises
            self._say(500, "failed", (what_of(error),))

    def _get(self, path: str) -> None:
        if path == "/metrics":
            encode, content_type = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, content_type, encode(self.registry))
        elif path == "/health/live":
            self._say(200, "live", ())
        elif path == "/health/ready":
            found = self.ready()
            self._say(
                200 if found.is_ready else 503, "ready" if found.is_ready else "not ready", found.reasons
            )
        else:
            self._say(404, "unknown", ("there are /metrics, /health/live and /health/ready",))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class calls it
        """Keep scrapes out of the log."""

    def _say(self, code: int, status: str, reasons: tuple[str, ...]) -> None:
        self._answer(code, "application/json", as_json(status, reasons))

    def _answer(self, code: int, content_type: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
