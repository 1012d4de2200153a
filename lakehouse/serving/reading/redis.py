"""Read rows from Redis. After a failed request, no further request is sent for one second."""

from __future__ import annotations

import heapq
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, RedisError

from lakehouse.sinks.redis.client import async_redis_client
from lakehouse.sinks.redis.rows import DELETED, STAMP, filled_key, is_place_of, latest_key, row_key

TIMEOUT_S = 0.2
_LEFT_ALONE_S = 1.0


class RedisAwayError(Exception):
    """Redis does not answer. The error contains the client's message."""


@dataclass(frozen=True)
class Stored:
    """A row in Redis: its message as JSON, and the table generation and version that wrote the row."""

    message: str
    generation: int
    version: int


@dataclass(frozen=True)
class StoredRows:
    """The requested rows, with None for each missing row.

    `holds_all` means that Redis has lost no rows. In that case, a missing row has not changed within the time
    to live.
    """

    rows: tuple[Stored | None, ...]
    holds_all: bool


@dataclass(frozen=True)
class StoredMembers:
    """The latest rows of a group's members, keyed by member.

    `has_more` means that the group has more members. `holds_all` means that Redis has lost no rows.
    """

    rows: dict[str, Stored]
    has_more: bool
    holds_all: bool


class Live:
    """Gold rows in Redis, stored in the layout of `lakehouse.streams.definition.RedisView`."""

    def __init__(self, redis_url: str, timeout_s: float = TIMEOUT_S) -> None:
        self._client = async_redis_client(
            redis_url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            health_check_interval=0,
        )
        self._away_until = 0.0
        self._why = ""

    async def row(self, table: str, row: str) -> Stored | None:
        """Return the row with this row key. Raises RedisAwayError, as all other reads do."""
        return stored(await self._answer(self._client.get(row_key(table, row))))

    async def rows(self, table: str, rows: Sequence[str]) -> StoredRows:
        """Return the rows with these row keys."""
        async with self._client.pipeline(transaction=False) as pipeline:
            for row in rows:
                pipeline.get(row_key(table, row))
            _ask_whether_filled(pipeline, table)
            *values, filled, server = await self._answer(_executed(pipeline))
        return StoredRows(tuple(map(stored, values)), is_place_of(filled, server))

    async def latest(self, table: str, group: str, member: str) -> Stored | None:
        """Return the latest row of one member of a group."""
        return stored(await self._answer(self._client.hget(latest_key(table, group), member)))

    async def members(self, table: str, group: str, after: str | None, most: int) -> StoredMembers:
        """Return the latest row of each of a group's first `most` members after the name `after`."""
        key, beyond = latest_key(table, group), None if after is None else after.encode()
        async with self._client.pipeline(transaction=False) as pipeline:
            pipeline.hkeys(key)
            _ask_whether_filled(pipeline, table)
            names, filled, server = await self._answer(_executed(pipeline))
        first = heapq.nsmallest(most + 1, (one for one in names if beyond is None or one > beyond))
        wanted = first[:most]
        values = await self._answer(self._client.hmget(key, wanted)) if wanted else []
        found = {name.decode(): stored(value) for name, value in zip(wanted, values, strict=True)}
        rows = {name: one for name, one in found.items() if one is not None}
        return StoredMembers(rows, len(first) > most, is_place_of(filled, server))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _answer(self, asked: Any) -> Any:
        if time.monotonic() < self._away_until:
            if hasattr(asked, "close"):
                asked.close()
            raise RedisAwayError(self._why)
        try:
            return await cast("Awaitable[Any]", asked)
        except (RedisError, OSError) as error:
            self._why = f"Redis does not answer: {error}"
            self._away_until = time.monotonic() + _LEFT_ALONE_S
            raise RedisAwayError(self._why) from error


def stored(value: bytes | None) -> Stored | None:
    """Parse a stored row. Return None for a missing value, a deleted row, or an unknown format."""
    text = "" if value is None else value.decode(errors="replace")
    found = STAMP.search(text)
    if found is None or text.startswith(DELETED):
        return None
    return Stored(text[: found.start()] + "}", int(found[1]), int(found[2]))


def _ask_whether_filled(pipeline: Any, table: str) -> None:
    pipeline.get(filled_key(table))
    pipeline.info("server")
    pipeline.info("stats")


async def _executed(pipeline: Any) -> list[Any]:
    """Execute a Redis pipeline, and return the answers. The last answer merges the sections of INFO.

    The last answer is empty if the Redis user is not allowed to run INFO.
    """
    *answers, server, stats = await pipeline.execute(raise_on_error=False)
    may_tell = not isinstance(server, NoPermissionError)
    for answer in [*answers, *((server, stats) if may_tell else ())]:
        if isinstance(answer, Exception):
            raise answer
    return [*answers, server | stats if may_tell else {}]
