"""Post notifications to a webhook, with optional Basic authentication and signatures.

Signatures follow Standard Webhooks (https://www.standardwebhooks.com). A signature is the base64 HMAC-SHA256
of `<webhook-id>.<webhook-timestamp>.<body>`. The header webhook-signature contains one signature per secret,
each as `v1,…`. While two secrets are set, receivers can switch from the old to the new secret at any time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
import time
from dataclasses import dataclass

from pydantic import SecretStr

from lakehouse.common import web
from lakehouse.common.errors import LakehouseError, SettingsError
from lakehouse.settings import SECRET_PREFIX, Settings

NONE = SecretStr("")


@dataclass(frozen=True)
class Posting:
    """Connection options for all webhooks. The values are reread for every notification.

    `secret` contains the signing secrets, separated by whitespace. `ca` contains the PEM certificates of the
    authorities to trust instead of the system's. `proxy` is the proxy's URL. If it is empty, the environment
    variables https_proxy, http_proxy and no_proxy apply.
    """

    secret: SecretStr = NONE
    ca: SecretStr = NONE
    proxy: SecretStr = NONE

    def require(self) -> None:
        """Raise SettingsError if `ca` contains no valid certificates."""
        self._trusted()

    def client(self, url: str) -> web.WebClient:
        """Return an HTTP client for a URL."""
        return web.WebClient(url, tls=self._trusted(), proxy=self.proxy.get_secret_value() or None)

    def signed(self, body: bytes, event_id: str) -> dict[str, str]:
        """Return the signature headers for a body, or no headers if no secret is set."""
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
            raise SettingsError(f"alerts.webhook_ca contains no valid PEM certificates: {error}") from None


PLAIN = Posting()
"""Options for unsigned notifications, with the system's certificate authorities and proxy."""


def posting(settings: Settings) -> Posting:
    """Return the webhook options from the settings. Raises SettingsError for invalid certificates."""
    found = Posting(
        settings.alerts.webhook_secret, settings.alerts.webhook_certificates, settings.alerts.webhook_proxy
    )
    found.require()
    return found


class Receiver:
    """A webhook at a URL. The URL's credentials are sent only in a header, and are never logged."""

    def __init__(self, url: str, how: Posting) -> None:
        self.url, self._credentials = web.split_credentials(url)
        self.name = f"webhook at {web.host_of(url)}"  # the rest of the URL may be secret
        self._how = how

    def post(self, body: bytes, event_id: str) -> None:
        """Deliver a notification. Raises AwayError unless the status is 2xx. The body is not read."""
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
    """The webhook is unreachable or rejected a notification."""


def signature(secret: str, event_id: str, at: str, body: bytes) -> str:
    """Return the signature for a notification sent at the Unix time `at`, in seconds.

    Raises SettingsError if the secret is not valid base64.
    """
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        raise SettingsError(f"alerts.webhook_secret is not {SECRET_PREFIX} followed by base64") from None
    made = hmac.digest(key, b".".join((event_id.encode(), at.encode(), body)), hashlib.sha256)
    return f"v1,{base64.b64encode(made).decode()}"
