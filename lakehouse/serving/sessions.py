"""Browser sessions: a cookie stands for a token, for clients that cannot send headers, such as EventSource.

The cookie is a random id. Only this process knows its token, and sessions end with the process. A cookie is
valid as long as its token, with the token's current scopes.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

from lakehouse.serving.tokens import Caller, Tokens, hashed

LASTS_S = 12 * 3600
_MOST = 10_000
_ID_BYTES = 32


def cookie_of(*, is_https: bool) -> str:
    """Return the cookie's name; a browser takes one of `__Host-` only from this very host, by HTTPS."""
    return "__Host-lakehouse_session" if is_https else "lakehouse_session"


class Sessions:
    """The open sessions; beyond ten thousand the oldest end."""

    def __init__(self, tokens: Tokens, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokens = tokens
        self._clock = clock
        self._begun = OrderedDict[str, tuple[str, float]]()  # by id: the token's hash and when it ends

    def begin(self, token: str) -> str:
        """Return the id of a new session for the holder of a token."""
        id_ = secrets.token_urlsafe(_ID_BYTES)
        self._begun[hashed(id_)] = (hashed(token), self._clock() + LASTS_S)
        while len(self._begun) > _MOST:
            self._begun.popitem(last=False)
        return id_

    def caller(self, id_: str) -> Caller | None:
        """Return the session's caller, null if the session has ended or its token is gone."""
        known, ends = self._begun.get(hashed(id_), (None, 0.0))
        if known is None or self._clock() >= ends:
            self.end(id_)
            return None
        return self._tokens.caller_of_hash(known)

    def end(self, id_: str) -> None:
        """End a session."""
        self._begun.pop(hashed(id_), None)
