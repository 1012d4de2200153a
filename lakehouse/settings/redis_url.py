"""Redis URLs, for a single server or for a primary that Sentinels monitor.

    redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE][?OPTION=VALUE&…]
    unix://[USER:PASSWORD@]/PATH[?db=DATABASE]
    redis+sentinel://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT]…/NAME[/DATABASE][?…]

With rediss:// and rediss+sentinel://, connections use TLS. User, password, database and options apply to the
primary, except sentinel_username and sentinel_password, which apply to the Sentinels. The TLS files apply to
both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

_PORTS = {"redis": 6379, "rediss": 6379, "redis+sentinel": 26_379, "rediss+sentinel": 26_379}
_SOCKET = "unix"
_HOSTS = re.compile(r"[^:/?#]*://(?:[^/?#]*@)?([^/?#]*)")
_NUMBER = r"[0-9]+(\.[0-9]+)?"
_OPTIONS: Mapping[str, str] = {
    "client_name": r"\S+",
    "db": r"[0-9]+",
    "health_check_interval": r"[0-9]+",
    "socket_connect_timeout": _NUMBER,
    "socket_timeout": _NUMBER,
}
_TLS_OPTIONS: Mapping[str, str] = {
    "ssl_ca_certs": ".+",
    "ssl_ca_path": ".+",
    "ssl_cert_reqs": "none|optional|required",
    "ssl_certfile": ".+",
    "ssl_check_hostname": "true|false",
    "ssl_ciphers": ".+",
    "ssl_keyfile": ".+",
    "ssl_password": ".+",
}
_SENTINEL_OPTIONS: Mapping[str, str] = {"sentinel_password": ".+", "sentinel_username": ".+"}
_FILES = frozenset({"ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"})
_UNREADABLE = "it is not a valid URL; in a password, write / ? # @ and % as %2F %3F %23 %40 and %25"


@dataclass(frozen=True)
class RedisUrl:
    """The parts of a Redis URL. `plain` is the whole URL for redis-py.

    With Sentinels, `master` is the name by which they know the primary, and `plain` contains everything
    except the primary's address. `files` contains the paths of the TLS files, keyed by option.
    """

    hosts: tuple[tuple[str, int], ...]
    socket: str
    plain: str = field(repr=False)
    master: str | None
    has_tls: bool
    files: Mapping[str, str]
    sentinel_username: str | None
    sentinel_password: str | None = field(repr=False)

    @property
    def address(self) -> str:
        """The address without credentials: hosts and ports, or the socket's path."""
        hosts = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return self.socket or ",".join(hosts)


def parse_redis_url(text: str) -> RedisUrl:
    """Parse a Redis URL. Raises ValueError with a message that quotes nothing that could be in a password."""
    listed = _HOSTS.match(text)
    each = listed[1].split(",") if listed else [""]
    # Keep only the first host: newer Python versions refuse an [IPv6 address] after other hosts.
    shorter = text if listed is None else f"{text[: listed.start(1)]}{each[0]}{text[listed.end(1) :]}"
    try:
        parts = urlsplit(shorter)
        hosts = tuple(_hosts(parts.scheme, each))
    except ValueError:
        raise ValueError(_UNREADABLE) from None
    scheme = parts.scheme
    if scheme not in {*_PORTS, _SOCKET}:
        raise ValueError(f"it must start with one of {', '.join(f'{one}://' for one in (*_PORTS, _SOCKET))}")
    if parts.fragment or (scheme != _SOCKET and "@" in parts.path + parts.query):
        raise ValueError(_UNREADABLE)
    has_tls, has_sentinels = scheme.startswith("rediss"), scheme.endswith("+sentinel")
    options = _options(parts, has_tls=has_tls, has_sentinels=has_sentinels)
    files = {name: path for name, path in options.items() if name in _FILES}
    own = {name: options.pop(name, None) for name in _SENTINEL_OPTIONS}
    if not has_sentinels:
        if len(hosts) > 1:
            raise ValueError(f"it names several hosts; only {scheme}+sentinel:// allows that")
        if scheme != _SOCKET:
            _require_database(parts.path.removeprefix("/"))
        return RedisUrl(
            hosts, unquote(parts.path) if scheme == _SOCKET else "", text, None, has_tls, files, **own
        )
    name, _, database = parts.path.removeprefix("/").partition("/")
    if not name:
        raise ValueError(f"the primary's name is missing; expected {scheme}://HOST:26379,HOST:26379/NAME/0")
    _require_database(database)
    userinfo, at, _ = parts.netloc.rpartition("@")
    query = urlencode(options, quote_via=quote)
    plain = f"{scheme.removesuffix('+sentinel')}://{userinfo}{at}/{database}?{query}"
    return RedisUrl(hosts, "", plain, unquote(name), has_tls, files, **own)


def _hosts(scheme: str, listed: Sequence[str]) -> list[tuple[str, int]]:
    if scheme == _SOCKET:
        return []
    default = _PORTS.get(scheme, 0)
    each = [urlsplit(f"//{one}") for one in listed]
    if any(one.port == 0 for one in each) or (len(each) > 1 and not all(one.hostname for one in each)):
        raise ValueError
    return [(unquote(one.hostname or "localhost"), one.port or default) for one in each]


def _require_database(path: str) -> None:
    if not re.fullmatch(r"[0-9]*/?", path):
        raise ValueError("its path must be a database number, as in redis://HOST:6379/0")


def _options(parts: SplitResult, *, has_tls: bool, has_sentinels: bool) -> dict[str, str]:
    known = {**_OPTIONS, **(_TLS_OPTIONS if has_tls else {}), **(_SENTINEL_OPTIONS if has_sentinels else {})}
    found = dict[str, str]()
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in _TLS_OPTIONS and not has_tls:
            raise ValueError(f"its option {name} needs TLS; use {parts.scheme.replace('redis', 'rediss')}://")
        if name in _SENTINEL_OPTIONS and not has_sentinels:
            raise ValueError(f"its option {name} is only for {parts.scheme}+sentinel://")
        if name not in known:
            raise ValueError(f"it has an unknown option {name!r}; known: {', '.join(sorted(known))}")
        if name in found:
            raise ValueError(f"it has the option {name} twice")
        if not re.fullmatch(known[name], value):
            raise ValueError(f"its option {name} must match {known[name]}")
        found[name] = value
    return found
