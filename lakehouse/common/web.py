"""HTTP requests under a single policy, for OAuth tokens, the schema registry and webhooks.

- Redirects are not followed, so no secret reaches another host. A redirect is an error that names the host.
- A response, including its headers, has a size limit. Connecting, sending and reading share one deadline.
  An endless or slow response therefore cannot block the caller indefinitely.
- URLs begin with https://. `needs_permission` reports any other URL, unless it points to this machine.
- A URL's user and password are sent only in a header (`split_credentials`); messages quote only its host.
- The server's certificate must be signed by one of the system's authorities, or by a given authority.

A request is not retried, except once if the server has closed a kept-alive connection in the meantime.
Callers retry after a pause.
"""

from __future__ import annotations

import base64
import http.client
import io
import ipaddress
import re
import socket
import ssl
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import unquote_to_bytes, urlsplit
from urllib.request import getproxies, proxy_bypass

from lakehouse.common.errors import ServiceError, first_line
from lakehouse.common.printable import printable

DEADLINE_S = 10.0
MOST_BYTES = 8 << 20
_MOST_SAID = 200  # a message quotes at most this many characters of a server's text
_PORTS = {"http": 80, "https": 443}
_UNSAFE = re.compile(r"[^!-~]")
_REDIRECTS = range(300, 400)
_SUCCESSES = range(200, 300)


class WebError(ServiceError):
    """An HTTP request failed, or the policy forbids it."""


@dataclass(frozen=True)
class Answer:
    """A server's complete response. `body` is empty if it was not requested."""

    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        """True if the status is 2xx."""
        return self.status in _SUCCESSES


def check_url(url: str, *, credentials: bool = False, query: bool = True) -> None:
    """Raise ValueError unless `url` is an http or https URL. The message quotes no part of the URL.

    With `credentials`, the URL may contain a user and password. With `query`, the URL may contain a query or
    fragment.
    """
    try:
        parts = urlsplit(url)
        is_web = parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_web = False
    if not is_web:
        raise ValueError("it must start with http:// or https:// and name a host")
    if _UNSAFE.search(url):
        raise ValueError("it has characters that must be percent-encoded in a URL, such as a space (%20)")
    if "@" in parts.netloc and not credentials:
        raise ValueError("it contains a user name or password (`@` before the host); set these separately")
    if not query and (parts.query or parts.fragment):
        raise ValueError("it has a query or a fragment (`?` or `#`), so no path can be appended")


def needs_permission(url: str, hosts: Collection[str]) -> bool:
    """Return whether requests to a URL would send unencrypted data to a remote machine not in `hosts`."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return parts.scheme == "http" and not is_loopback(host) and host not in {one.lower() for one in hosts}


def is_loopback(host: str) -> bool:
    """Return whether a URL's host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def split_credentials(url: str) -> tuple[str, dict[str, str]]:
    """Return the URL without credentials or fragment, and an Authorization header with any credentials."""
    parts = urlsplit(url)
    credentials, at, place = parts.netloc.rpartition("@")
    bare = parts._replace(netloc=place, fragment="").geturl()
    return bare, {"Authorization": _basic(unquote_to_bytes(credentials))} if at else {}


def authorization(user: str, password: str) -> dict[str, str]:
    """Return an Authorization header for a user and password, or no headers if the user is empty."""
    return {"Authorization": _basic(f"{user}:{password}".encode())} if user else {}


def trusted(authorities: str) -> ssl.SSLContext:
    """Return a TLS context that trusts these PEM certificate authorities, or the system's if none are given.

    Raises ValueError if the text does not consist of PEM certificates.
    """
    try:
        return ssl.create_default_context(cadata=authorities or None)
    except ssl.SSLError as error:
        raise ValueError(str(error)) from None


def cut(text: object) -> str:
    """Return the first line of a server's text, truncated and escaped for use in a message."""
    line = printable(first_line(text))
    return line if len(line) <= _MOST_SAID else f"{line[:_MOST_SAID]}…"


def said(answer: Answer) -> str:
    """Return the start of a response's body, for a message, or `nothing else` if the body is empty."""
    return (
        cut(answer.body[: 4 * _MOST_SAID].decode(errors="replace")) if answer.body.strip() else "nothing else"
    )


def host_of(url: str) -> str:
    """Return a URL's host for use in messages."""
    return urlsplit(url).hostname or ""


class WebClient:
    """A client for one web server. Within a `with` block, the connection is kept alive between requests.

    `url` must not contain credentials. `proxy` is the proxy's URL, possibly with credentials; if None or
    empty, the environment's proxy is used.
    """

    def __init__(
        self,
        url: str,
        *,
        tls: ssl.SSLContext | None = None,
        proxy: str | None = None,
    ) -> None:
        parts = urlsplit(url)
        self._scheme, self._host = parts.scheme, parts.hostname or ""
        self._port = parts.port or _PORTS[parts.scheme]
        self._path, self._query = parts.path, parts.query
        self._tls, self._proxy = tls, proxy
        self._connection: _Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection if it is open."""
        if self._connection is not None:
            self._connection.end()
            self._connection = None

    def ask(
        self,
        method: str,
        below: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        reads_body: bool = True,
    ) -> Answer:
        """Send a request to the URL, or to a path below it, and return the response.

        Raises WebError if the request fails or times out, or the response is a redirect or too large.
        """
        try:
            answer, location = self._asked(method, below, dict(headers or {}), body, reads_body=reads_body)
        except _TooLargeError:
            raise WebError(f"its answer has more than {MOST_BYTES:,} bytes") from None
        except TimeoutError:
            raise WebError(f"it did not send a complete response within {DEADLINE_S:g} s") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise WebError(cut(str(error) or type(error).__name__)) from None
        if answer.status in _REDIRECTS:
            raise WebError(f"it answered {answer.status}, {_where(location)}, which is not followed")
        return answer

    def _asked(
        self, method: str, below: str, headers: dict[str, str], body: bytes | None, *, reads_body: bool
    ) -> tuple[Answer, str]:
        was_kept = self._connection is not None
        try:
            return self._asked_once(method, below, headers, body, reads_body=reads_body)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            if not was_kept:
                raise
        return self._asked_once(method, below, headers, body, reads_body=reads_body)

    def _asked_once(
        self, method: str, below: str, headers: dict[str, str], body: bytes | None, *, reads_body: bool
    ) -> tuple[Answer, str]:
        limits = _Limits(time.monotonic() + DEADLINE_S, MOST_BYTES)
        # Keep the connection only if it cannot contain unread data from this response.
        connection, self._connection = self._connection or self._made(), None
        path = f"{self._path.rstrip('/')}{below}" if below else self._path or "/"
        target = f"{connection.before_path}{path}{f'?{self._query}' if self._query else ''}"
        try:
            connection.limits = limits
            connection.request(method, target, body, {**headers, **connection.of_relay})
            answer = connection.getresponse()
            content = _whole(answer) if reads_body else b""
        except BaseException:
            connection.end()
            raise
        if reads_body and not answer.will_close:
            self._connection = connection
        else:
            connection.end()
        return Answer(answer.status, content), answer.headers.get("Location", "")

    def _made(self) -> _Connection:
        tls = None if self._scheme == "http" else self._tls or trusted("")
        proxy = self._proxy or getproxies().get(self._scheme, "")
        # Unencrypted requests to this machine bypass the proxy.
        is_direct = not proxy or proxy_bypass(self._host) or (tls is None and is_loopback(self._host))
        return _Connection(self._host, self._port, tls, None if is_direct else _relay(proxy))


def _whole(answer: http.client.HTTPResponse) -> bytes:
    content = answer.read(MOST_BYTES)  # the headers also count, so a longer body exceeds the limit first
    if answer.length:
        raise ConnectionError("its answer is cut off")
    return content


@dataclass(frozen=True)
class _Relay:
    """A proxy. `headers` contains its credentials."""

    host: str
    port: int
    headers: Mapping[str, str]


def _relay(url: str) -> _Relay:
    """Parse a proxy's URL. Raises WebError for a TLS proxy or a malformed URL."""
    bare, credentials = split_credentials(url if "://" in url else f"http://{url}")
    parts = urlsplit(bare)
    try:
        port = parts.port or _PORTS["http"]
    except ValueError:
        port = 0
    if parts.scheme != "http" or not parts.hostname or not port:
        raise WebError("the proxy's URL must be http://host:port; HTTPS traffic is tunneled through it")
    headers = {f"Proxy-{name}": value for name, value in credentials.items()}
    return _Relay(parts.hostname, port, headers)


class _TooLargeError(Exception):
    """The response is larger than the size limit."""


class _Limits:
    """The deadline and the size limit of one response."""

    def __init__(self, until: float, most_bytes: int) -> None:
        self._until, self._left = until, most_bytes

    def left_s(self) -> float:
        """Return the remaining seconds. Raises TimeoutError once the deadline has passed."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def count(self, size: int) -> None:
        """Count received bytes. Raises _TooLargeError when they exceed the limit."""
        self._left -= size
        if self._left < 0:
            raise _TooLargeError


class _Connection(http.client.HTTPConnection):
    """A connection on which every socket call respects `limits`. Call `end` to close the connection."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, relay: _Relay | None) -> None:
        super().__init__(host, port)
        self.limits = _Limits(0, 0)
        self._tls, self._relay = tls, relay
        self._open: socket.socket | None = None
        is_relayed = relay is not None and tls is None
        named = f"[{host}]" if ":" in host else host
        self.before_path = f"http://{named}:{port}" if is_relayed else ""
        self.of_relay = relay.headers if relay is not None and is_relayed else {}

    def connect(self) -> None:
        """Open the socket, through the proxy and with TLS if these are configured."""
        relay = self._relay
        self._open = self._reached((self.host, self.port) if relay is None else (relay.host, relay.port))
        if relay is not None and self._tls is not None:
            self._pass_through(relay)
        if self._tls is not None:
            self._open.settimeout(self.limits.left_s())
            self._open = self._tls.wrap_socket(self._open, server_hostname=self.host)
        self.sock = cast("socket.socket", _Socket(self._open, self))

    def end(self) -> None:
        """Close the socket, even if unread data remains."""
        self.close()
        if self._open is not None:
            self._open.close()
            self._open = None

    def _reached(self, place: tuple[str, int]) -> socket.socket:
        failed = OSError("its host name has no address")
        for *_, address in socket.getaddrinfo(*place, type=socket.SOCK_STREAM):
            try:
                return socket.create_connection((str(address[0]), int(address[1])), self.limits.left_s())
            except OSError as error:
                failed = error
        raise failed

    def _pass_through(self, relay: _Relay) -> None:
        """Open a tunnel to the server through the proxy."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        place = f"{host}:{self.port}"
        lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}"]
        lines += [f"{name}: {value}" for name, value in relay.headers.items()]
        there = _Socket(cast("socket.socket", self._open), self)
        there.sendall("".join(f"{line}\r\n" for line in [*lines, ""]).encode("ascii"))
        answer = http.client.HTTPResponse(cast("socket.socket", there), method="CONNECT")
        answer.begin()
        if answer.status not in _SUCCESSES:
            raise OSError(f"the proxy answered {answer.status}")


class _Socket:
    """The part of the socket interface that http.client uses. The connection closes the socket itself."""

    def __init__(self, inner: socket.socket, owner: _Connection) -> None:
        self._inner, self._owner = inner, owner

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a reader for the response."""
        return io.BufferedReader(_Incoming(self._inner, self._owner.limits))

    def sendall(self, data: bytes) -> None:
        """Send all bytes."""
        view = memoryview(data)
        while view:
            self._inner.settimeout(self._owner.limits.left_s())
            view = view[self._inner.send(view) :]

    def close(self) -> None:
        """Do nothing, because the connection closes the socket itself."""


class _Incoming(io.RawIOBase):
    """The bytes received from the socket, subject to the connection's limits."""

    def __init__(self, inner: socket.socket, limits: _Limits) -> None:
        super().__init__()
        self._inner, self._limits = inner, limits

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for data, then read the available bytes."""
        self._inner.settimeout(self._limits.left_s())
        size = self._inner.recv_into(buffer)
        self._limits.count(size)
        return size


def _where(location: str) -> str:
    try:
        host = urlsplit(location).hostname
    except ValueError:
        host = None
    return f"a redirect to {cut(host)}" if host else "a redirect"


def _basic(credentials: bytes) -> str:
    return f"Basic {base64.b64encode(credentials).decode()}"
