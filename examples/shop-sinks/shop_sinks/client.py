"""A client for the HTTP endpoint in [sinks.http].

- Every network operation has a timeout. A response has a size limit. Redirects are not followed, so the
  token reaches no other host.
- The token is read from its file for each request, so a new token needs no restart. No message contains it.
- A request is repeated once if the server has closed a kept-alive connection. Every request of the sink
  can be repeated without harm.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

from lakehouse.sinks import Settings, SettingsError, SinkTroubleError, StoreWord
from shop_sinks.keys import keys_of

_URL, _TOKEN_FILE = "sinks.http.url", "sinks.http.token_file"
_TIMEOUT_S = 10.0
_MOST_BYTES = 64 << 20
_MOST_SAID = 200
_PRINTABLE = re.compile(r"[!-~]+")


class Client:
    """A connection to the endpoint, opened at the first request. Not thread-safe.

    Raises SettingsError if a key of [sinks.http] is missing or malformed.
    """

    def __init__(self, settings: Settings) -> None:
        keys = keys_of(settings, "http", required="url", optional=["token_file"])
        url = _checked(keys["url"], settings)
        self._path, self._token_file = url.path.rstrip("/"), keys.get("token_file")
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(url.hostname or "", url.port, timeout=_TIMEOUT_S)
        self._place = f"the HTTP endpoint at {url.hostname}"

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return the JSON object at a path. Raises SinkTroubleError with one line."""
        return self._answer("GET", f"{path}?{urlencode(query)}" if query else path)

    def post(self, path: str, value: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        """Post a value as JSON, and return the answer. Raises SinkTroubleError with one line."""
        body = json.dumps(value, ensure_ascii=False).encode()
        return self._answer("POST", path, body, {"Content-Type": "application/json", **headers})

    def close(self) -> None:
        """Close the connection. The next request opens it again."""
        self._connection.close()

    def _answer(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        token = self._token()
        sent = dict(headers or {}) | ({} if token is None else {"Authorization": f"Bearer {token}"})
        with self._told():
            status, text = self._exchanged(method, f"{self._path}{path}", body, sent)
        if status != http.client.OK:
            asked, said = f"{method} {urlsplit(path).path}", _said(text, token)
            raise SinkTroubleError(f"{self._place} answers {status} to {asked}: {said}", _word_of(status))
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise SinkTroubleError(f"{self._place} answers without a JSON object; is {_URL} right?")
        return found

    def _exchanged(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        is_reused = self._connection.sock is not None
        try:
            return self._exchange(method, target, body, headers)
        except ConnectionError:
            self.close()
            if not is_reused:
                raise
        return self._exchange(method, target, body, headers)

    def _exchange(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        self._connection.request(method, target, body, dict(headers))
        response = self._connection.getresponse()
        text = response.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise http.client.HTTPException(f"the response is longer than {_MOST_BYTES} bytes")
        return response.status, text

    def _token(self) -> str | None:
        if self._token_file is None:
            return None
        try:
            token = Path(self._token_file).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise SinkTroubleError(f"cannot read the file in {_TOKEN_FILE}: {why}") from None
        if not _PRINTABLE.fullmatch(token):
            raise SinkTroubleError(f"the file in {_TOKEN_FILE} must contain one token without spaces")
        return token

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            self.close()
            why = " ".join(str(error).split()) or type(error).__name__
            said = f"{self._place} is unreachable: {why}; is {_URL} right?"
            raise SinkTroubleError(said, StoreWord.AWAY) from None


def _word_of(status: int) -> StoreWord:
    if status == http.client.INSUFFICIENT_STORAGE:
        return StoreWord.FULL
    return StoreWord.AWAY if status >= http.client.INTERNAL_SERVER_ERROR else StoreWord.REFUSED


def _checked(url: str, settings: Settings) -> SplitResult:
    """Return a URL's parts. Raises SettingsError, also if rows and token would be sent unencrypted."""
    try:
        parts = urlsplit(url)
        is_web = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_web = False
    if not is_web or not _PRINTABLE.fullmatch(url) or {"@", "?", "#"}.intersection(url):
        raise SettingsError(f"{_URL} must be http:// or https:// with a host, without a user or a query")
    host = parts.hostname or ""
    if parts.scheme == "http" and not _is_this_machine(host) and host not in settings.http_hosts:
        raise SettingsError(f"{_URL} is http://{host}…: use https://, or add {host} to http_hosts")
    return parts


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _said(text: bytes, token: str | None) -> str:
    """Return the start of a response on one line, without the token."""
    said = text.decode(errors="replace")
    said = said if token is None else said.replace(token, "…")
    return "".join(one if one.isprintable() else " " for one in said[:_MOST_SAID]).strip() or "nothing else"
