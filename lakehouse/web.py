"""Requests by HTTP with one policy, for OAuth's tokens, the schema registry and webhooks.

- No redirect is followed: it is an error that names the other host. So no secret goes there.
- An answer has a limit of bytes, with its head, and a deadline that covers connecting, sending and reading.
  So neither an endless answer nor one that comes in drops holds anything up.
- URLs begin with https://. `needs_permission` tells which do not, and are not of this machine either.
- A URL's user and password are for a header alone (`split_credentials`); no message has any part of a URL but
  its host.
- The certificate must lead to the system's authorities, or to given ones instead.

A request is not repeated, but for one on a kept connection that the server has closed meanwhile. Whoever asks
waits, and asks again.
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

from lakehouse.errors import ServiceError, first_line
from lakehouse.printable import printable

DEADLINE_S = 10.0
MOST_BYTES = 8 << 20
_MOST_SAID = 200  # characters of another's text in a message
_PORTS = {"http": 80, "https": 443}
_UNSAFE = re.compile(r"[^!-~]")
_REDIRECTS = range(300, 400)
_SUCCESSES = range(200, 300)


class WebError(ServiceError):
    """A server does not answer by HTTP, or not as the policy wants it."""


@dataclass(frozen=True)
class Answer:
    """A server's whole answer; `body` is empty if it was not asked for."""

    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx."""
        return self.status in _SUCCESSES


def check_url(url: str, *, credentials: bool = False, query: bool = True) -> None:
    """Raise ValueError, which quotes no part of it, for text that is not the URL of a web server.

    `credentials`, `query`: whether it may have a user and password, or a query.
    """
    try:
        parts = urlsplit(url)
        is_web = parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_web = False
    if not is_web:
        raise ValueError("it must start with http:// or https:// and name a host")
    if _UNSAFE.search(url):
        raise ValueError("it has characters that a URL has percent-encoded, such as %20 for a space")
    if "@" in parts.netloc and not credentials:
        raise ValueError(
            "it has a user or a password (`@` before the host), which have settings of their own"
        )
    if not query and (parts.query or parts.fragment):
        raise ValueError("it has a query or a fragment (`?` or `#`), to which no path can be added")


def needs_permission(url: str, hosts: Collection[str]) -> bool:
    """Tell whether a URL sends unencrypted what leaves this machine, to none of these hosts."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return parts.scheme == "http" and not is_loopback(host) and host not in {one.lower() for one in hosts}


def is_loopback(host: str) -> bool:
    """Tell whether a host of a URL is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def split_credentials(url: str) -> tuple[str, dict[str, str]]:
    """Return the URL without its user, password and fragment, and the header that has them, if any."""
    parts = urlsplit(url)
    credentials, at, place = parts.netloc.rpartition("@")
    bare = parts._replace(netloc=place, fragment="").geturl()
    return bare, {"Authorization": _basic(unquote_to_bytes(credentials))} if at else {}


def authorization(user: str, password: str) -> dict[str, str]:
    """Return the header by which a user and a password are sent; none without a user."""
    return {"Authorization": _basic(f"{user}:{password}".encode())} if user else {}


def trusted(authorities: str) -> ssl.SSLContext:
    """Return what checks certificates by these authorities, in PEM; empty: by the system's.

    Raises ValueError if they are no certificates.
    """
    try:
        return ssl.create_default_context(cadata=authorities or None)
    except ssl.SSLError as error:
        raise ValueError(str(error)) from None


def cut(text: object) -> str:
    """Return the first line of another's text as a message can show it."""
    line = printable(first_line(text))
    return line if len(line) <= _MOST_SAID else f"{line[:_MOST_SAID]}…"


def said(answer: Answer) -> str:
    """Return what an answer says, as a message can show it: the beginning of its body."""
    return (
        cut(answer.body[: 4 * _MOST_SAID].decode(errors="replace")) if answer.body.strip() else "nothing else"
    )


def host_of(url: str) -> str:
    """Return a URL's host, for messages."""
    return urlsplit(url).hostname or ""


class WebClient:
    """One web server; inside its block the connection stays open from request to request.

    `url` has no credentials. `proxy` is the URL of a proxy, which may have some; null: the environment's.
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
        """Close the connection, if there is one."""
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
        """Return the answer to a request for the URL, or for a path below it.

        Raises WebError for a redirect, for an answer that is too large, and if none comes in time.
        """
        try:
            answer, location = self._asked(method, below, dict(headers or {}), body, reads_body=reads_body)
        except _TooLargeError:
            raise WebError(f"its answer has more than {MOST_BYTES:,} bytes") from None
        except TimeoutError:
            raise WebError(f"it has not answered whole within {DEADLINE_S:g} s") from None
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
        # Kept again when nothing of this answer can be left in it.
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
        # What is not encrypted never takes the way out of this machine and back.
        is_direct = not proxy or proxy_bypass(self._host) or (tls is None and is_loopback(self._host))
        return _Connection(self._host, self._port, tls, None if is_direct else _relay(proxy))


def _whole(answer: http.client.HTTPResponse) -> bytes:
    content = answer.read(MOST_BYTES)  # with the head, the limit is reached before
    if answer.length:
        raise ConnectionError("its answer is cut off")
    return content


@dataclass(frozen=True)
class _Relay:
    """A proxy; `headers` has its user and password."""

    host: str
    port: int
    headers: Mapping[str, str]


def _relay(url: str) -> _Relay:
    """Return a proxy by its URL; raises WebError for one that speaks TLS, or none."""
    bare, credentials = split_credentials(url if "://" in url else f"http://{url}")
    parts = urlsplit(bare)
    try:
        port = parts.port or _PORTS["http"]
    except ValueError:
        port = 0
    if parts.scheme != "http" or not parts.hostname or not port:
        raise WebError("the proxy's URL is not http://host:port, which passes TLS on")
    headers = {f"Proxy-{name}": value for name, value in credentials.items()}
    return _Relay(parts.hostname, port, headers)


class _TooLargeError(Exception):
    """More bytes came than may."""


class _Limits:
    """How long one answer may take, and how many bytes of it may come."""

    def __init__(self, until: float, most_bytes: int) -> None:
        self._until, self._left = until, most_bytes

    def left_s(self) -> float:
        """Return the seconds that are left; raises TimeoutError if there are none."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def count(self, size: int) -> None:
        """Note so many bytes; raises _TooLargeError for one too many."""
        self._left -= size
        if self._left < 0:
            raise _TooLargeError


class _Connection(http.client.HTTPConnection):
    """A connection whose every call of its socket is within `limits`; `end` closes it."""

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
        """Open the socket, through the proxy and by TLS if there are any."""
        relay = self._relay
        self._open = self._reached((self.host, self.port) if relay is None else (relay.host, relay.port))
        if relay is not None and self._tls is not None:
            self._pass_through(relay)
        if self._tls is not None:
            self._open.settimeout(self.limits.left_s())
            self._open = self._tls.wrap_socket(self._open, server_hostname=self.host)
        self.sock = cast("socket.socket", _Socket(self._open, self))

    def end(self) -> None:
        """Close the socket, whatever is still to come."""
        self.close()
        if self._open is not None:
            self._open.close()
            self._open = None

    def _reached(self, place: tuple[str, int]) -> socket.socket:
        failed = OSError("its name leads nowhere")
        for *_, address in socket.getaddrinfo(*place, type=socket.SOCK_STREAM):
            try:
                return socket.create_connection((str(address[0]), int(address[1])), self.limits.left_s())
            except OSError as error:
                failed = error
        raise failed

    def _pass_through(self, relay: _Relay) -> None:
        """Have the proxy pass on what is sent from now on."""
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
    """What http.client asks of a socket. It is closed by its owner, when an answer has been read."""

    def __init__(self, inner: socket.socket, owner: _Connection) -> None:
        self._inner, self._owner = inner, owner

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return what reads an answer."""
        return io.BufferedReader(_Incoming(self._inner, self._owner.limits))

    def sendall(self, data: bytes) -> None:
        """Send everything."""
        view = memoryview(data)
        while view:
            self._inner.settimeout(self._owner.limits.left_s())
            view = view[self._inner.send(view) :]

    def close(self) -> None:
        """Leave it open."""


class _Incoming(io.RawIOBase):
    """The bytes that come, within limits."""

    def __init__(self, inner: socket.socket, limits: _Limits) -> None:
        super().__init__()
        self._inner, self._limits = inner, limits

    def readable(self) -> bool:
        """Tell that it is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what there is; waits for the first byte."""
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
