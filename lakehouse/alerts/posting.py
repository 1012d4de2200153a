"""One notification by HTTP: no redirect is followed, credentials are sent as Basic, the body is signed.

Signatures are those of Standard Webhooks (https://www.standardwebhooks.com): HMAC-SHA256 of
`<webhook-id>.<webhook-timestamp>.<body>`, base64, as `v1,…` in the header webhook-signature, one for each
secret. So a secret can be exchanged while receivers know both.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from lakehouse.errors import LakehouseError, SettingsError
from lakehouse.settings import SECRET_PREFIX, Settings

_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Posting:
    """How every webhook is reached.

    `secrets` sign what is sent. `ca` is a file of the authorities that are trusted in place of the system's.
    `proxy` is a proxy's URL; null takes https_proxy and the like from the environment, as curl does.
    """

    secrets: tuple[str, ...] = field(default=(), repr=False)
    ca: Path | None = None
    proxy: str | None = field(default=None, repr=False)

    def require(self) -> None:
        """Raise SettingsError if the file of authorities cannot be used."""
        try:
            self._context()
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(
                f"alert_webhook_ca: {self.ca} is no PEM file of certificates: {error}"
            ) from error

    def opener(self) -> urllib.request.OpenerDirector:
        """Return what sends requests; files are read anew."""
        proxies = None if self.proxy is None else {"http": self.proxy, "https": self.proxy}
        return urllib.request.build_opener(
            urllib.request.ProxyHandler(proxies),
            urllib.request.HTTPSHandler(context=self._context()),
            _NoRedirects,
        )

    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca)


PLAIN = Posting()
"""Without a secret; the system's authorities and proxy."""


def posting(settings: Settings) -> Posting:
    """Return how the settings reach webhooks; raises SettingsError if a file cannot be used."""
    found = Posting(
        tuple(settings.alert_webhook_secret.get_secret_value().split()),
        settings.alert_webhook_ca,
        settings.alert_webhook_proxy.get_secret_value() or None,
    )
    found.require()
    return found


class Receiver:
    """A webhook's URL; credentials in it go into a header, and nowhere else."""

    def __init__(self, url: str, how: Posting) -> None:
        parts = urlsplit(url)
        credentials, _, place = parts.netloc.rpartition("@")
        self.url = parts._replace(netloc=place, fragment="").geturl()
        self.name = f"webhook at {parts.hostname}"  # the rest of a URL may be secret
        self._how = how
        self._basic = base64.b64encode(unquote_to_bytes(credentials)).decode() if credentials else None

    def post(self, body: bytes, event_id: str) -> None:
        """Deliver a notification; raises AwayError unless the answer is 2xx."""
        request = urllib.request.Request(  # noqa: S310 - the setting takes http and https only
            self.url, data=body, headers=self._headers(body, event_id)
        )
        try:
            with self._how.opener().open(request, timeout=_TIMEOUT_S):
                pass
        except urllib.error.HTTPError as error:
            raise AwayError(f"it answered {error.code}") from None
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            raise AwayError(str(getattr(error, "reason", error))) from None

    def _headers(self, body: bytes, event_id: str) -> dict[str, str]:
        headers = {"Content-Type": "application/json; charset=utf-8", "Idempotency-Key": event_id}
        if self._basic is not None:
            headers["Authorization"] = f"Basic {self._basic}"
        if self._how.secrets:
            at = str(int(time.time()))
            signed = " ".join(signature(one, event_id, at, body) for one in self._how.secrets)
            headers |= {"webhook-id": event_id, "webhook-timestamp": at, "webhook-signature": signed}
        return headers


class AwayError(LakehouseError):
    """The webhook has not accepted a notification."""


def signature(secret: str, event_id: str, at: str, body: bytes) -> str:
    """Return the signature of a notification that is sent at this Unix time, in seconds."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    made = hmac.digest(key, b".".join((event_id.encode(), at.encode(), body)), hashlib.sha256)
    return f"v1,{base64.b64encode(made).decode()}"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Takes a redirect for what it is here: an answer that is not 2xx."""

    def redirect_request(self, *_: object) -> None:
        """Follow nothing."""
