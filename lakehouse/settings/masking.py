"""Mask secrets for `lakehouse settings`. In URLs, only passwords are masked."""

from __future__ import annotations

import re
from urllib.parse import unquote

from lakehouse.settings.keys import Key

URL_KEYS = frozenset({"redis.url", "postgres.url", "alerts.webhooks", "alerts.webhook_proxy"})
"""The keys of those secrets that are URLs."""
MASK = "***"

_URL = re.compile(r"(?P<scheme>[a-z0-9+]+://)((?P<user>[^/?#:]*)(?P<password>:[^/?#]*)?@)?(?P<rest>[^@]*)")
_HOST = re.compile(r"[^/?#]*")


def masked(key: Key, secret: str) -> str:
    """Mask a secret. An empty secret remains empty.

    In a URL, only passwords are masked, including passwords in its options. For a webhook, only the host is
    shown, because the path is often secret.
    """
    found = _URL.fullmatch(secret) if str(key) in URL_KEYS else None
    if not secret or found is None:
        return MASK if secret else ""
    user = f"{found['user']}:{MASK}@" if found["password"] else f"{found['user']}@" if found["user"] else ""
    return f"{found['scheme']}{user}{_rest(key, found['rest'])}"


def _rest(key: Key, rest: str) -> str:
    """Return the host, path and options of a URL, with secrets masked."""
    if key.has_several:
        host = _HOST.match(rest)
        return rest if host is None or host[0] == rest else f"{host[0]}/{MASK}"
    address, mark, options = rest.partition("?")
    return address + mark + "&".join(map(_option, options.split("&")))


def _option(option: str) -> str:
    name, equals, _ = option.partition("=")
    return f"{name}{equals}{MASK}" if equals and "password" in unquote(name).lower() else option
