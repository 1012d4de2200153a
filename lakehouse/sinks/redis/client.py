"""Redis clients for a single server or a primary behind Sentinels, and their error messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import AskError, ClusterCrossSlotError, ClusterError, NoPermissionError, ReadOnlyError
from redis.retry import Retry
from redis.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)

from lakehouse.common.errors import ServiceError, SinkTroubleError, StoreWord
from lakehouse.settings.redis_url import RedisUrl, parse_redis_url

CLUSTER = (
    "Redis is a cluster, but the export needs one server, or a primary with replicas behind one address "
    "(redis.url)"
)
REPLICA = "Redis is a replica, but redis.url must name the primary, even after a failover"
WRONG_TYPE = "WRONGTYPE"
"""The error code for a key of the wrong type. The message contains it even if a script accessed the key."""

_ACCESS = "docs/redis.md (Access) lists the rights that the user in redis.url needs"
_REFUSED = "has refused the user in redis.url", "check its name and password", StoreWord.REFUSED
_LOADING = "is loading its data, so rows wait", "they are sent once Redis is ready", StoreWord.AWAY
_MEANINGS = {
    "NOAUTH": _REFUSED,
    "WRONGPASS": _REFUSED,
    "NOPERM": ("denies a permission", _ACCESS, StoreWord.REFUSED),
    "no permissions": ("denies a permission", _ACCESS, StoreWord.REFUSED),
    "can't access": ("denies a permission", _ACCESS, StoreWord.REFUSED),
    WRONG_TYPE: (
        "has a key of a different type under a name that the export uses, so rows wait",
        "another application wrote it: delete the key (DEL), or give each application its own database",
        StoreWord.REFUSED,
    ),
    "used memory > 'maxmemory'": (
        "is full, so rows wait",
        "give Redis more memory, or shorten redis.ttl (docs/redis.md)",
        StoreWord.FULL,
    ),
    "MISCONF": (
        "cannot save its data and accepts no rows, so rows wait",
        "is its disk full?",
        StoreWord.REFUSED,
    ),
    "NOREPLICAS": (
        "has too few replicas to accept rows (min-replicas-to-write), so rows wait",
        "start a replica",
        StoreWord.REFUSED,
    ),
    "LOADING": _LOADING,
    "loading the dataset": _LOADING,
    "BUSY ": ("is busy with another client's script, so rows wait", "SCRIPT KILL ends it", StoreWord.AWAY),
    "max number of clients": (
        "has reached its connection limit, so rows wait",
        "raise maxclients, or close other connections",
        StoreWord.AWAY,
    ),
}
"""Explanations of error messages, keyed by a part of the message: what Redis does, the remedy, and its
state.

A code such as NOPERM is usually a message's first word. However, redis-py strips some codes, and an error
from a script in Redis 6 has its code in the middle of the message.
"""


class RedisTroubleError(SinkTroubleError):
    """Redis is unreachable or full, or refuses a command."""

    word = StoreWord.REFUSED


@contextmanager
def reported() -> Iterator[None]:
    """Translate redis-py's errors into RedisTroubleError with one-line messages."""
    try:
        yield
    except (redis.RedisError, OSError) as error:
        raise _trouble(error) from error


def what_failed(error: Exception) -> str:
    """Return an error's message on one line."""
    if isinstance(error, MasterNotFoundError):  # the rest of the error's message lists the Sentinel clients
        return str(error).partition(" : ")[0]
    return " ".join(str(error).split())


def _trouble(error: Exception) -> RedisTroubleError:
    said = what_failed(error)
    if isinstance(error, (ClusterCrossSlotError, ClusterError, AskError)):
        return RedisTroubleError(f"{CLUSTER}: {said}")
    # Before Redis 7, a read-only error from a script is a plain ResponseError.
    if isinstance(error, ReadOnlyError) or "READONLY" in said:
        return RedisTroubleError(REPLICA)
    known = (meaning for part, meaning in _MEANINGS.items() if part in said)
    if meaning := _REFUSED if isinstance(error, redis.AuthenticationError) else next(known, None):
        does, todo, word = meaning
        return RedisTroubleError(f"Redis {does}: {said}; {todo}", word)
    if isinstance(error, (redis.ConnectionError, redis.TimeoutError, OSError)):
        return RedisTroubleError(f"Redis is unreachable: {said}; is redis.url right?", StoreWord.AWAY)
    return RedisTroubleError(f"Redis has refused one of the export's commands: {said}")


_SENTINEL_TIMEOUT_S = 2.0
_REQUIRED_WITHIN_S = 15.0
_NEVER_EVICTS = "noeviction"


class _AskingAgain(SentinelManagedConnection):
    """A connection that queries the Sentinels before every attempt, not only the first (redis-py #3874)."""

    def send_packed_command(self, command: Any, check_health: Any = True) -> Any:  # noqa: FBT002 - redis-py's
        """Connect if necessary, and send a command."""
        base: Any = super()
        if not self.is_connected:  # only once: the command itself is retried
            base.connect_to(self.connection_pool.get_master_address())
        return base.send_packed_command(command, check_health)


class _AskingAgainWithTls(_AskingAgain, SentinelManagedSSLConnection):
    """Like _AskingAgain, but with TLS."""


def redis_client(url: str, **options: Any) -> redis.Redis:
    """Return a Redis client. `options` are redis-py's connection options."""
    where = parse_redis_url(url)
    if where.master is None:
        return redis.Redis.from_url(where.plain, **options)
    asked = {"retry": Retry(NoBackoff(), 0), **_for_sentinels(where, options)}
    sentinel: Any = Sentinel(  # type: ignore[no-untyped-call]
        where.hosts, sentinel_kwargs=asked, **_for_primary(where, options)
    )
    kind = _AskingAgainWithTls if where.has_tls else _AskingAgain
    found: redis.Redis = sentinel.master_for(where.master, connection_class=kind)
    return found


def async_redis_client(url: str, **options: Any) -> redis.asyncio.Redis:
    """Return an asyncio Redis client. `options` are redis-py's connection options."""
    where = parse_redis_url(url)
    if where.master is None:
        return redis.asyncio.Redis.from_url(where.plain, **options)
    asked = {"retry": AsyncRetry(NoBackoff(), 0), **_for_sentinels(where, options)}
    sentinel: Any = AsyncSentinel(  # type: ignore[no-untyped-call]
        where.hosts, sentinel_kwargs=asked, **_for_primary(where, options)
    )
    found: redis.asyncio.Redis = sentinel.master_for(where.master)
    return found


def impatient(timeout_s: float) -> dict[str, Any]:
    """Return options for a client that does not retry and waits at most `timeout_s` seconds."""
    return {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
    }


def require_redis(url: str) -> None:
    """Raise ServiceError unless the URL points to a writable Redis. The message omits the password."""
    where = parse_redis_url(url)
    for name, path in where.files.items():
        if not Path(path).exists():
            raise ServiceError(f"redis.url: {name} names {path}, which does not exist")
    try:
        with redis_client(url, **impatient(_REQUIRED_WITHIN_S)) as client:
            client.ping()
            server = told(client)
    except redis.AuthenticationError as error:
        raise ServiceError(
            f"Redis at {where.address} refused the credentials in redis.url, or requires some: {error}"
        ) from None
    except (redis.RedisError, OSError) as error:
        raise ServiceError(
            f"no Redis at {where.address} ({what_failed(error)}); start one with `lakehouse services up` or "
            "set redis.url (LAKEHOUSE_REDIS_URL)"
        ) from None
    if server.get("cluster_enabled"):
        raise RedisTroubleError(f"{CLUSTER} ({where.address})")
    if server.get("role") == "slave":
        raise RedisTroubleError(f"{REPLICA} ({where.address})")


def doubts_of_redis(url: str) -> list[str]:
    """Return warnings about the rows in a working Redis, one line each."""
    try:
        with redis_client(url, **impatient(_REQUIRED_WITHIN_S)) as client:
            return list(_doubts(told(client)))
    except (redis.RedisError, OSError):  # Redis has just become unreachable; the export reports that
        return []


def told(client: redis.Redis) -> Mapping[str, Any]:
    """Return the server's INFO, or an empty mapping if the user is not allowed to run INFO."""
    try:
        found: Mapping[str, Any] = client.info()
    except NoPermissionError:
        return {}
    return found


def _doubts(server: Mapping[str, Any]) -> Iterator[str]:
    if not server:
        yield (
            "Redis: the user in redis.url may not call INFO, so the export cannot notice a failover or "
            "evicted rows, and does not refill Redis. Give the user +info"
        )
    policy = server.get("maxmemory_policy", _NEVER_EVICTS)
    if server.get("maxmemory") and policy != _NEVER_EVICTS:
        yield (
            f"Redis evicts rows once it uses {server.get('maxmemory_human', server['maxmemory'])} "
            f"(maxmemory-policy {policy}). They are written again, at most every ten minutes; with "
            "noeviction, a full Redis keeps its rows (docs/redis.md)"
        )


def _for_primary(where: RedisUrl, options: Mapping[str, Any]) -> dict[str, Any]:
    of_url: dict[str, Any] = parse_url(where.plain)  # type: ignore[no-untyped-call]
    found = {**options, **of_url, "ssl": where.has_tls}
    found.pop("connection_class", None)
    return found


def _for_sentinels(where: RedisUrl, options: Mapping[str, Any]) -> dict[str, Any]:
    own = {"username": where.sentinel_username, "password": where.sentinel_password}
    primary = _for_primary(where, options)
    timeouts = {
        name: primary.get(name, _SENTINEL_TIMEOUT_S) for name in ("socket_timeout", "socket_connect_timeout")
    }
    return own | timeouts | {name: value for name, value in primary.items() if name.startswith("ssl")}
