"""A proxy between a client and its store: it delays, counts requests, and loses responses."""

from __future__ import annotations

import hashlib
import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

_CONDITION = "if-none-match"
_OF_THE_CONNECTION = {"connection", "keep-alive", "transfer-encoding"}


@dataclass(frozen=True)
class Request:
    """A request and its status; LIST is a GET of a bucket's list."""

    method: str
    path: str
    status: int
    is_conditional: bool


@dataclass
class Faults:
    """The proxy's behaviour.

    `loses` selects the responses that are lost: the client only gets a closed connection. With
    `hides_refusals`, writes that were refused by a condition appear accepted, as in older stores; the
    condition itself cannot be removed, because it is signed.
    """

    endpoint: str
    wait_s: float = 0.0
    hides_refusals: bool = False
    loses: Callable[[Request], bool] = lambda _request: False
    seen: list[Request] = field(default_factory=list)

    def counts(self) -> Counter[str]:
        """Return the number of requests by method."""
        return Counter(request.method for request in self.seen)


@contextmanager
def before(store: str) -> Iterator[Faults]:
    """Run a proxy in front of a store until the end of the block."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.store = urlsplit(store).netloc
    server.faults = Faults(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.faults
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    store: str
    faults: Faults


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _pass_on(self) -> None:
        body = self._body()
        time.sleep(self.server.faults.wait_s)
        connection = http.client.HTTPConnection(self.server.store, timeout=60)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        is_list = "list-type" in parse_qs(urlsplit(self.path).query)
        is_conditional = _CONDITION in self.headers
        request = Request("LIST" if is_list else self.command, self.path, answer.status, is_conditional)
        self.server.faults.seen.append(request)
        if self.server.faults.loses(request):
            self.close_connection = True
        elif self.server.faults.hides_refusals and answer.status == HTTPStatus.PRECONDITION_FAILED:
            self.send_response_only(HTTPStatus.OK)
            self.send_header("ETag", f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"')
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._answer(answer, content)

    def _body(self) -> bytes:
        """Read the request's body; if it is chunked, include everything between the chunks."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = list[bytes]()
        while True:
            head = self.rfile.readline()
            size = int(head.partition(b";")[0], 16)
            parts += [head, self.rfile.read(size), self.rfile.readline()]
            if not size:
                return b"".join(parts)

    def _answer(self, answer: http.client.HTTPResponse, content: bytes) -> None:
        has_content = self.command != "HEAD"
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            is_length = has_content and name.lower() == "content-length"
            if name.lower() not in _OF_THE_CONNECTION and not is_length:
                self.send_header(name, value)
        if has_content:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on  # noqa: N815 - names of the base class

    def log_message(self, *_: object) -> None:
        """Log nothing."""
