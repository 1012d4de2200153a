"""Separate Redis databases, of which a server has sixteen, for test files that count or clear keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis


def url_of(server: str, database: int) -> str:
    """Return the URL of a database on the server that a given URL names."""
    return f"{server.rpartition('/')[0]}/{database}"


@contextmanager
def emptied(server: str, database: int) -> Iterator[str]:
    """Yield the URL of a database, emptied before the block and after it."""
    url = url_of(server, database)
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        try:
            yield url
        finally:
            client.flushdb()
