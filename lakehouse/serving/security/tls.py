"""HTTPS without a proxy. Renewed certificates are loaded without a restart."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from lakehouse.common.errors import SettingsError

LOOK_S = 30
_log = logging.getLogger(__name__)


class Certificate:
    """A certificate chain and its key, in PEM files. `context` contains the last pair that was valid."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._held: object = None
        try:
            self._load()
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"HTTPS cannot be served with --tls-cert {certificate} and --tls-key {key}: {error}. Both "
                "must be PEM files: the certificate with its chain, and its key without a password"
            ) from error

    async def look(self) -> None:
        """Reload files that have changed. If they are unusable, new connections use the previous pair."""
        try:
            self._load()
        except (OSError, ValueError) as error:
            _log.warning("the renewed certificate %s cannot be used: %s", self._certificate, error)

    def _load(self) -> None:
        stamps = [(path.stat().st_mtime_ns, path.stat().st_ino) for path in (self._certificate, self._key)]
        if stamps != self._held:
            # A failed load may leave a context with half of the pair, so a new context is tried first.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
                context.load_cert_chain(self._certificate, self._key, password=_no_password)
            self._held = stamps


def _no_password() -> str:
    """Raise ValueError, so that OpenSSL does not ask for a password on the terminal."""
    raise ValueError("the key has a password")
