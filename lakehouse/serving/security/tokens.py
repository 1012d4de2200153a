"""API tokens, stored in a file that only its owner can read.

An entry consists of a name, scopes, an expiry time and the SHA-256 of the secret. A secret has 256 random
bits and cannot be guessed, so a fast hash is as safe as a slow one. The file contains only hashes, which
do not give access to the API.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakehouse.common.errors import SettingsError
from lakehouse.common.state_files import OWNER_ONLY, make_home, write_whole

if TYPE_CHECKING:
    from lakehouse.settings import Settings

_PREFIX = "lakehouse_"
_SECRET_BYTES = 32


def _now() -> datetime:
    return datetime.now(UTC)


class Scope(StrEnum):
    """A permission that a token grants: read rows, read raw record bytes, or run commands."""

    READ = "read"
    PAYLOAD = "payload"
    OPERATE = "operate"


@dataclass(frozen=True)
class Caller:
    """The caller of a request: the name and scopes of the token."""

    name: str
    scopes: frozenset[Scope]


@dataclass(frozen=True)
class Token:
    """A stored token. `expires_at` is None if it never expires."""

    name: str
    sha256: str
    scopes: tuple[Scope, ...]
    expires_at: datetime | None = None

    def is_valid(self, now: datetime) -> bool:
        """Return whether the token is valid at this time."""
        return self.expires_at is None or now < self.expires_at


class Tokens:
    """The tokens in the file. Additions, removals and expiry take effect immediately."""

    def __init__(self, home: Path, clock: Callable[[], datetime] = _now) -> None:
        self.path = home / "tokens.json"
        self._clock = clock
        self._read_at: tuple[int, int, int] | None = None
        self._tokens: tuple[Token, ...] = ()

    def add(self, name: str, scopes: Sequence[Scope], *, lasts: timedelta | None = None) -> str:
        """Add a token, and return its secret. The secret is not stored.

        The token is valid for `lasts`, by default until it is removed. Raises SettingsError if the name is in
        use.
        """
        secret = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        ends = None if lasts is None else self._clock() + lasts
        with self._changing():
            standing = self.read()
            if any(one.name == name for one in standing):
                raise SettingsError(
                    f"the token {name} already exists; run `lakehouse tokens remove {name}` first"
                )
            self._write((*standing, Token(name, hashed(secret), tuple(dict.fromkeys(scopes)), ends)))
        return secret

    def remove(self, name: str) -> None:
        """Remove a token. Raises SettingsError if there is no token with this name."""
        with self._changing():
            standing = self.read()
            if not any(one.name == name for one in standing):
                raise SettingsError(f"there is no token {name}; `lakehouse tokens list` lists all tokens")
            self._write(tuple(one for one in standing if one.name != name))

    def read(self) -> tuple[Token, ...]:
        """Return all tokens, or none if there is no file. Raises SettingsError if the file is unreadable."""
        try:
            state = self.path.stat()
            stamp = (state.st_mtime_ns, state.st_ino, state.st_size)
            if stamp != self._read_at:
                self._tokens = tuple(map(_token, json.loads(self.path.read_text(encoding="utf-8"))))
                self._read_at = stamp
        except FileNotFoundError:
            self._tokens, self._read_at = (), None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SettingsError(
                f"{self.path} cannot be read, so no token is accepted: {error}. Restore a copy of it, or "
                "delete it and add every token again with `lakehouse tokens add`"
            ) from error
        return self._tokens

    def valid(self) -> list[Token]:
        """Return all tokens that have not expired."""
        now = self._clock()
        return [one for one in self.read() if one.is_valid(now)]

    def caller(self, secret: str) -> Caller | None:
        """Return the caller with this secret, or None. The search takes the same time for every secret."""
        return self.caller_of_hash(hashed(secret))

    def caller_of_hash(self, sha256: str) -> Caller | None:
        """Return the caller whose secret has this hash, or None if there is no such valid token."""
        found = None
        for one in self.valid():
            if hmac.compare_digest(one.sha256, sha256):
                found = Caller(one.name, frozenset(one.scopes))
        return found

    @contextmanager
    def _changing(self) -> Iterator[None]:
        make_home(self.path.parent)
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write(self, tokens: Sequence[Token]) -> None:
        """Replace the file durably, because its contents are stored nowhere else."""
        text = json.dumps([vars(one) for one in tokens], indent=1, default=datetime.isoformat)
        write_whole(self.path, text, lasting=True, mode=OWNER_ONLY)


def tokens_of(settings: Settings) -> Tokens:
    """Return the tokens stored in `server_home`, or in `home` if `server_home` is not set."""
    return Tokens(settings.server_home or settings.home)


def hashed(secret: str) -> str:
    """Return the hash under which a secret is stored."""
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def _token(entry: Any) -> Token:
    ends = entry.get("expires_at")  # missing in files of earlier versions
    moment = None if ends is None else datetime.fromisoformat(ends).astimezone(UTC)
    return Token(str(entry["name"]), str(entry["sha256"]), tuple(map(Scope, entry["scopes"])), moment)
