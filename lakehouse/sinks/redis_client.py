"""A short-lived Redis client, and the check that a server answers."""

from __future__ import annotations

from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from lakehouse.errors import ServiceError


def require_redis(url: str, timeout_s: float = 15.0) -> None:
    """Raise ServiceError, naming the address but no password, unless a Redis answers at the URL."""
    try:
        client = connect(url, timeout_s=timeout_s)
    except ValueError:  # the error quotes what it could not read, perhaps a part of the password
        raise ServiceError("LAKEHOUSE_REDIS_URL is not a Redis URL, like redis://127.0.0.1:6379/0") from None
    try:
        client.ping()
    except redis.AuthenticationError as error:
        raise ServiceError(
            f"Redis at {_address(url)} refused the credentials of LAKEHOUSE_REDIS_URL: {error}"
        ) from None
    except redis.RedisError as error:
        raise ServiceError(
            f"no Redis at {_address(url)} ({error}); start one with `lakehouse services up` or "
            "set LAKEHOUSE_REDIS_URL"
        ) from None
    finally:
        client.close()


def connect(url: str, *, timeout_s: float) -> redis.Redis:
    """Return a client that tries once and waits no longer than this."""
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
    )


def _address(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]
