"""A Redis server has sixteen databases; a file of tests that counts or clears keys has one of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis


def url_of(server: str, database: int) -> str:
    """Return the URL of a database of the server that any of its URLs names."""
    return f"{server.rpartition('/')[0]}/{database}"


@contextmanager
def emptied(server: str, database: int) -> Iterator[str]:
    """Yield the URL of a database that is empty, before the block and after it."""
    url = url_of(server, database)
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        try:
            yield url
        finally:
            client.flushdb()
