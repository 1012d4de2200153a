"""Browser sessions, in which a cookie replaces the token.

Some clients, such as EventSource, cannot send headers. The cookie is a random id. Only this process knows the
token behind it, and all sessions end with the process. A cookie expires after 12 hours or together with its
token, and always has the token's current scopes. The number of sessions is limited per token, so the holder
of one token cannot end another holder's sessions.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

from lakehouse.serving.security.tokens import Caller, Tokens, hashed

LASTS_S = 12 * 3600
MOST_OF_A_TOKEN = 200
_ID_BYTES = 32


def cookie_of(*, is_https: bool) -> str:
    """Return the name of the cookie. Browsers accept the prefix `__Host-` only over HTTPS."""
    return "__Host-lakehouse_session" if is_https else "lakehouse_session"


class Sessions:
    """All open sessions. If a token has more than 200 sessions, the oldest ones end."""

    def __init__(self, tokens: Tokens, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokens = tokens
        self._clock = clock
        self._begun = OrderedDict[str, tuple[str, float]]()
        """Maps the hash of a session id to the token's hash and the end of the session, sorted by end."""

    def begin(self, token: str) -> str:
        """Begin a session for a token's holder, and return its id."""
        self._forget_ended()
        id_, holder = secrets.token_urlsafe(_ID_BYTES), hashed(token)
        others = [one for one, (of, _) in self._begun.items() if of == holder]
        for one in others[: max(0, len(others) + 1 - MOST_OF_A_TOKEN)]:
            del self._begun[one]
        self._begun[hashed(id_)] = (holder, self._clock() + LASTS_S)
        return id_

    def caller(self, id_: str) -> Caller | None:
        """Return the session's caller, or None if the session has ended or its token is no longer valid."""
        known, ends = self._begun.get(hashed(id_), (None, 0.0))
        if known is None or self._clock() >= ends:
            self.end(id_)
            return None
        return self._tokens.caller_of_hash(known)

    def end(self, id_: str) -> None:
        """End a session, if it exists."""
        self._begun.pop(hashed(id_), None)

    def _forget_ended(self) -> None:
        now = self._clock()
        while self._begun and next(iter(self._begun.values()))[1] <= now:
            self._begun.popitem(last=False)
