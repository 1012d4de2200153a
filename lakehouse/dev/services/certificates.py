"""Certificates for the local broker and its clients, signed by an authority for this home directory only.

    HOME/kafka/security/ca.pem            the authority
                        broker.pem        the broker's key (PKCS#8) and certificate chain
                        <user>.pem, <user>-key.pem
                        <user>.password   a SCRAM user's password

Only the owner can read the files. They are created once, and expire after ten years. If the directory is
deleted, the next start creates new files.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lakehouse.common.state_files import OWNER_ONLY, write_whole
from lakehouse.dev.services.processes import LOOPBACK

_LIFE = timedelta(days=3_650)
_EARLIER = timedelta(days=1)  # tolerates small clock differences


class Authority:
    """A certificate authority for this machine only."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("lakehouse local authority")
        now = datetime.now(UTC)
        self._certificate = (
            x509.CertificateBuilder(self._name, self._name, self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _EARLIER)
            .not_valid_after(now + _LIFE)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> str:
        """The certificate of the authority, in PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    def issue(self, name: str, *, until: datetime | None = None) -> tuple[str, str]:
        """Return a certificate for a name on this machine and its key, both in PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        start = datetime.now(UTC) - _EARLIER
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(LOOPBACK))]
        certificate = (
            x509.CertificateBuilder(self._name, _name(name), key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start if until is None else until - timedelta(days=30))
            .not_valid_after(until or start + _LIFE)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return certificate.public_bytes(serialization.Encoding.PEM).decode(), secret.decode()


def make_security(directory: Path, users: Iterable[str]) -> None:
    """Create the authority, passwords, and certificates for broker and users, unless they already exist."""
    if (directory / "ca.pem").exists():
        return
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority = Authority()
    for user in users:
        certificate, key = authority.issue(user)
        write_whole(directory / f"{user}.pem", certificate, mode=OWNER_ONLY)
        write_whole(directory / f"{user}-key.pem", key, mode=OWNER_ONLY)
        write_whole(directory / f"{user}.password", secrets.token_urlsafe(24), mode=OWNER_ONLY)
    certificate, key = authority.issue("broker")
    write_whole(directory / "broker.pem", key + certificate + authority.pem, mode=OWNER_ONLY)
    write_whole(directory / "ca.pem", authority.pem, mode=OWNER_ONLY)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
