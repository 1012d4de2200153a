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
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes, urlsplit

from pydantic import SecretStr

from lakehouse.errors import LakehouseError, SettingsError
from lakehouse.settings import SECRET_PREFIX, Settings

NONE = SecretStr("")
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Posting:
    """How every webhook is reached; each value is read again for each notification.

    `secret` signs what is sent, two of them twice. `ca` are the authorities that are trusted in place of the
    system's, in PEM. `proxy` is a proxy's URL; none takes https_proxy and the like from the environment.
    """

    secret: SecretStr = NONE
    ca: SecretStr = NONE
    proxy: SecretStr = NONE

    def require(self) -> None:
        """Raise SettingsError if the authorities are no certificates."""
        self._context()

    def opener(self) -> urllib.request.OpenerDirector:
        """Return what sends requests."""
        proxy = self.proxy.get_secret_value()
        return urllib.request.build_opener(
            urllib.request.ProxyHandler({"http": proxy, "https": proxy} if proxy else None),
            urllib.request.HTTPSHandler(context=self._context()),
            _NoRedirects,
        )

    def signed(self, body: bytes, event_id: str) -> dict[str, str]:
        """Return the headers that sign a body; none without a secret."""
        secrets = self.secret.get_secret_value().split()
        if not secrets:
            return {}
        at = str(int(time.time()))
        found = " ".join(signature(one, event_id, at, body) for one in secrets)
        return {"webhook-id": event_id, "webhook-timestamp": at, "webhook-signature": found}

    def _context(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cadata=self.ca.get_secret_value() or None)
        except (ssl.SSLError, ValueError) as error:
            raise SettingsError(f"alert_webhook_ca has no certificates in PEM: {error}") from None


PLAIN = Posting()
"""Without a secret; the system's authorities and proxy."""


def posting(settings: Settings) -> Posting:
    """Return how the settings reach webhooks; raises SettingsError if the authorities are no certificates."""
    found = Posting(settings.alert_webhook_secret, settings.alert_webhook_ca, settings.alert_webhook_proxy)
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
        headers = {"Content-Type": "application/json; charset=utf-8", "Idempotency-Key": event_id}
        if self._basic is not None:
            headers["Authorization"] = f"Basic {self._basic}"
        try:
            request = urllib.request.Request(  # noqa: S310 - the setting takes http and https only
                self.url, data=body, headers=headers | self._how.signed(body, event_id)
            )
            with self._how.opener().open(request, timeout=_TIMEOUT_S):
                pass
        except urllib.error.HTTPError as error:
            raise AwayError(f"it answered {error.code}") from None
        except (urllib.error.URLError, http.client.HTTPException, OSError, SettingsError) as error:
            raise AwayError(str(getattr(error, "reason", error))) from None


class AwayError(LakehouseError):
    """The webhook has not accepted a notification."""


def signature(secret: str, event_id: str, at: str, body: bytes) -> str:
    """Return the signature of a notification that is sent at this Unix time, in seconds.

    Raises SettingsError if the secret is none.
    """
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        raise SettingsError(f"alert_webhook_secret is no {SECRET_PREFIX} and base64") from None
    made = hmac.digest(key, b".".join((event_id.encode(), at.encode(), body)), hashlib.sha256)
    return f"v1,{base64.b64encode(made).decode()}"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Takes a redirect for what it is here: an answer that is not 2xx."""

    def redirect_request(self, *_: object) -> None:
        """Follow nothing."""
