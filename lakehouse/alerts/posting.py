"""One notification by HTTP (`lakehouse.web`): credentials are sent as Basic, the body is signed.

Signatures are those of Standard Webhooks (https://www.standardwebhooks.com): HMAC-SHA256 of
`<webhook-id>.<webhook-timestamp>.<body>`, base64, as `v1,…` in the header webhook-signature, one for each
secret. So a secret can be exchanged while receivers know both.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
import time
from dataclasses import dataclass

from pydantic import SecretStr

from lakehouse import web
from lakehouse.errors import LakehouseError, SettingsError
from lakehouse.settings import SECRET_PREFIX, Settings

NONE = SecretStr("")


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
        self._trusted()

    def client(self, url: str) -> web.WebClient:
        """Return what sends requests to a URL."""
        return web.WebClient(url, tls=self._trusted(), proxy=self.proxy.get_secret_value() or None)

    def signed(self, body: bytes, event_id: str) -> dict[str, str]:
        """Return the headers that sign a body; none without a secret."""
        secrets = self.secret.get_secret_value().split()
        if not secrets:
            return {}
        at = str(int(time.time()))
        found = " ".join(signature(one, event_id, at, body) for one in secrets)
        return {"webhook-id": event_id, "webhook-timestamp": at, "webhook-signature": found}

    def _trusted(self) -> ssl.SSLContext:
        try:
            return web.trusted(self.ca.get_secret_value())
        except ValueError as error:
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
        self.url, self._credentials = web.split_credentials(url)
        self.name = f"webhook at {web.host_of(url)}"  # the rest of a URL may be secret
        self._how = how

    def post(self, body: bytes, event_id: str) -> None:
        """Deliver a notification; raises AwayError unless the answer is 2xx. Its body is not read."""
        headers = {"Content-Type": "application/json; charset=utf-8", "Idempotency-Key": event_id}
        try:
            headers |= self._credentials | self._how.signed(body, event_id)
            with self._how.client(self.url) as client:
                answer = client.ask("POST", headers=headers, body=body, reads_body=False)
        except (web.WebError, SettingsError) as error:
            raise AwayError(str(error)) from None
        if not answer.is_success:
            raise AwayError(f"it answered {answer.status}")


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
