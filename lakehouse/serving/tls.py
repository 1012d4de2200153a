"""HTTPS by the server itself; renewed certificates are loaded without a restart."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from lakehouse.errors import SettingsError

LOOK_S = 30
_log = logging.getLogger(__name__)


class Certificate:
    """A certificate with its chain, and its key, in PEM files; `context` has what they last held."""

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
                "are PEM files: the certificate with its chain, and its key without a password"
            ) from error

    async def look(self) -> None:
        """Load the files again if they have changed; if they are no pair, new connections get the old one."""
        try:
            self._load()
        except (OSError, ValueError) as error:
            _log.warning("the renewed certificate %s cannot be used: %s", self._certificate, error)

    def _load(self) -> None:
        stamps = [(path.stat().st_mtime_ns, path.stat().st_ino) for path in (self._certificate, self._key)]
        if stamps != self._held:
            # A context that refuses a pair may be left with half of it, so it is tried in another one first.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
                context.load_cert_chain(self._certificate, self._key, password=_no_password)
            self._held = stamps


def _no_password() -> str:
    """Refuse to ask on the terminal."""
    raise ValueError("the key has a password")
