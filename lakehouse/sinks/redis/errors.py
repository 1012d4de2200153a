"""Explains Redis's errors and what to do about them, in one line each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis
from redis.exceptions import AskError, ClusterCrossSlotError, ClusterError, ReadOnlyError
from redis.sentinel import MasterNotFoundError

from lakehouse.common.errors import SinkTroubleError

CLUSTER = (
    "Redis is a cluster, and the export needs one server, or a primary with replicas behind one address "
    "(LAKEHOUSE_REDIS_URL)"
)
REPLICA = "Redis is a replica, and LAKEHOUSE_REDIS_URL has to name the primary, also after a failover"
WRONG_TYPE = "WRONGTYPE"
"""In the error message of a command to a key of another type, also within a script."""

_ACCESS = "docs/redis.md, Access, lists what the user of LAKEHOUSE_REDIS_URL needs"
_REFUSED = "has refused the user of LAKEHOUSE_REDIS_URL", "are its name and password right?"
_MEANINGS = {
    "NOAUTH": _REFUSED,
    "WRONGPASS": _REFUSED,
    "NOPERM": ("denies a right", _ACCESS),
    "no permissions": ("denies a right", _ACCESS),
    "can't access": ("denies a right", _ACCESS),
    WRONG_TYPE: (
        "has a key of another type under a name that the export uses, so rows wait",
        "another application has written it: DEL it, or use another database for one of the two",
    ),
    "used memory > 'maxmemory'": (
        "is full, so rows wait",
        "give it more memory, or shorten LAKEHOUSE_REDIS_TTL_S (docs/redis.md)",
    ),
    "MISCONF": ("takes no rows because it cannot save its data, so rows wait", "is its disk full?"),
    "NOREPLICAS": ("has too few replicas to take rows (min-replicas-to-write), so rows wait", "start them"),
    "LOADING": ("is loading its data, so rows wait", "they are sent once it has"),
    "loading the dataset": ("is loading its data, so rows wait", "they are sent once it has"),
    "BUSY ": ("is busy with another client's script, so rows wait", "SCRIPT KILL ends it"),
    "max number of clients": ("has no connection to spare, so rows wait", "raise maxclients, or end others"),
}
"""By a part of the message: what Redis does, for a line that continues with its message, and what to do.

A code such as NOPERM is the first word of a message, but redis-py removes some codes, and in a script of
Redis 6 it is in the middle.
"""


class RedisTroubleError(SinkTroubleError):
    """Redis is out of reach or full, or refuses a command."""


@contextmanager
def reported() -> Iterator[None]:
    """Translate a client's failures into RedisTroubleError, in one line each."""
    try:
        yield
    except (redis.RedisError, OSError) as error:
        raise RedisTroubleError(_line(error)) from error


def what_failed(error: Exception) -> str:
    """Return an error's message in one line."""
    if isinstance(error, MasterNotFoundError):  # its message prints the clients of Sentinels
        return str(error).partition(" : ")[0]
    return " ".join(str(error).split())


def _line(error: Exception) -> str:
    said = what_failed(error)
    if isinstance(error, (ClusterCrossSlotError, ClusterError, AskError)):
        return f"{CLUSTER}: {said}"
    # Before Redis 7, the error has no class of its own within a script.
    if isinstance(error, ReadOnlyError) or "READONLY" in said:
        return REPLICA
    known = (meaning for part, meaning in _MEANINGS.items() if part in said)
    if meaning := _REFUSED if isinstance(error, redis.AuthenticationError) else next(known, None):
        does, todo = meaning
        return f"Redis {does}: {said}; {todo}"
    if isinstance(error, (redis.ConnectionError, redis.TimeoutError, OSError)):
        return f"Redis is out of reach: {said}; is LAKEHOUSE_REDIS_URL right?"
    return f"Redis has refused a command of the export: {said}"
