"""API tokens: a name, its scopes and the SHA-256 of the secret, in a file that only its owner can read.

A secret is 256 random bits, so a plain hash is as good as a slow one: there is no list of likely secrets to
try. Reading the file does not allow anybody to call the API.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from lakehouse.errors import SettingsError
from lakehouse.files import OWNER_ONLY, make_home, write_whole

_PREFIX = "lakehouse_"
_SECRET_BYTES = 32


class Scope(StrEnum):
    """What a token allows: read rows, see raw bytes of records, run commands."""

    READ = "read"
    PAYLOAD = "payload"
    OPERATE = "operate"


@dataclass(frozen=True)
class Caller:
    """Who calls: the token's name, and what it allows."""

    name: str
    scopes: frozenset[Scope]


@dataclass(frozen=True)
class _Token:
    name: str
    sha256: str
    scopes: tuple[Scope, ...]


class Tokens:
    """The tokens in a file; added and removed ones take effect at once."""

    def __init__(self, home: Path) -> None:
        self.path = home / "tokens.json"
        self._read_at: tuple[int, int, int] | None = None
        self._tokens: tuple[_Token, ...] = ()

    def add(self, name: str, scopes: Sequence[Scope]) -> str:
        """Add a token and return its secret, kept nowhere; raises SettingsError if the name is in use."""
        secret = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        with self._changing():
            standing = self.read()
            if any(one.name == name for one in standing):
                raise SettingsError(
                    f"there is a token {name} already; `lakehouse tokens remove {name}` first"
                )
            self._write((*standing, _Token(name, hashed(secret), tuple(dict.fromkeys(scopes)))))
        return secret

    def remove(self, name: str) -> None:
        """Remove a token; raises SettingsError if there is none of that name."""
        with self._changing():
            standing = self.read()
            if not any(one.name == name for one in standing):
                raise SettingsError(f"there is no token {name}; `lakehouse tokens list` shows them")
            self._write(tuple(one for one in standing if one.name != name))

    def read(self) -> tuple[_Token, ...]:
        """Return the tokens, none if there is no file; raises SettingsError if it cannot be read."""
        try:
            state = self.path.stat()
            stamp = (state.st_mtime_ns, state.st_ino, state.st_size)
            if stamp != self._read_at:
                self._tokens = tuple(map(_token, json.loads(self.path.read_text(encoding="utf-8"))))
                self._read_at = stamp
        except FileNotFoundError:
            self._tokens, self._read_at = (), None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SettingsError(
                f"{self.path} cannot be read, so nobody is let in: {error}. Put a copy of it back, or delete "
                "it and add every token again by `lakehouse tokens add`"
            ) from error
        return self._tokens

    def caller(self, secret: str) -> Caller | None:
        """Return whose secret it is, null for nobody's, in a time that does not depend on the secret."""
        return self.caller_of_hash(hashed(secret))

    def caller_of_hash(self, sha256: str) -> Caller | None:
        """Return whose secret has this hash, as `caller` does."""
        found = None
        for one in self.read():
            if hmac.compare_digest(one.sha256, sha256):
                found = Caller(one.name, frozenset(one.scopes))
        return found

    @contextmanager
    def _changing(self) -> Iterator[None]:
        make_home(self.path.parent)
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write(self, tokens: Sequence[_Token]) -> None:
        """Replace the file; nothing else has what it says, so it must outlive a power failure."""
        text = json.dumps([vars(one) for one in tokens], indent=1)
        write_whole(self.path, text, lasting=True, mode=OWNER_ONLY)


def hashed(secret: str) -> str:
    """Return the hash that is kept of a secret."""
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def _token(entry: Any) -> _Token:
    return _Token(str(entry["name"]), str(entry["sha256"]), tuple(map(Scope, entry["scopes"])))
