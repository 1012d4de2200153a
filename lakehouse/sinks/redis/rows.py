"""Write gold rows to Redis. An older row never overwrites a newer row, and lost rows are written again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from lakehouse.common.printable import printable
from lakehouse.sinks.change import Change, next_chunk
from lakehouse.sinks.redis.client import (
    WRONG_TYPE,
    RedisTroubleError,
    impatient,
    redis_client,
    reported,
    told,
)
from lakehouse.streams.definition import MergedTable

CALL_ROWS = 500  # rows per script call; a call blocks Redis for about 5 ms
_SCANNED = 1_000
_PUT = Path(__file__).with_name("put.lua")
_OLDER, _NEW, _OPEN, _HELD = 0, 2, 4, 8  # the script's answers; 1 means the same version
_PURGED_AT_ONCE = 100
_EXPIRY = 2  # index of the sorted set among a group's keys, after two hashes
_LAYOUT = "layout 3"
_RETRIES = 8
_GLANCE_TIMEOUT_S = 1.0
_FILLING = "filling"
_GENERATION, _VERSION, _IS_DELETED = "_generation", "_version", "_deleted"
STAMP = re.compile(rf',"{_GENERATION}":(\d+),"{_VERSION}":(\d+)}}$')
"""Matches the end of a row's text in Redis, which contains the row's generation and version."""
DELETED = f'{{"{_IS_DELETED}":true'
"""The beginning of the text that Redis stores for a deleted row."""
_EVICTED = ", evicted "
_LIVES = ", time to live "
_MADE = ", generation "
_GENERATION_OF_MARK = re.compile(rf"{_MADE}([0-9]{{1,14}})$")


@dataclass(frozen=True)
class Put:
    """The result of writing changes: the number of new rows, and the open members as (group, member).

    A member is open if its latest row was deleted, because an older row might now be the latest. `held` is
    the number of rows held back by another lake's rows with a newer generation, and `held_key` is the key of
    such a row.
    """

    rows: int = 0
    open: frozenset[tuple[str, str]] = frozenset()
    held: int = 0
    held_key: str = ""


class RedisSink:
    """A Redis writer for a table's rows. Rows have a time to live, and only a newer version replaces a row.

    A row's version is the version of the Delta commit that wrote it. Versions are compared within the table's
    `generation` (ms since the epoch), because a recreated table counts its commits from zero. A row
    from a newer generation replaces any row from an older one. RedisView defines the layout. One script call
    writes many rows, each under its own key and into its group's hash. If Redis is unreachable, calls are
    retried `retries` times with increasing delays, for half a minute by default.

    The key `lakehouse:<table>:filled` marks a server that contains all expected rows. Its value consists of
    the server's run id, the version of the key layout, the number of keys evicted before the fill, the time
    to live, and the generation. If the key is missing or has a different value, rows might have been lost.
    The key expires like the rows, so a Redis that evicts only expiring keys can also evict this key.

    If the key has a newer generation, a newer lake is filling the same keys. This lake then writes nothing
    and does not renew the key: its rows would be rejected as older, or mixed with the other lake's rows.
    """

    def __init__(
        self,
        url: str,
        table: str,
        ttl_s: int,
        *,
        generation: int,
        rows_move: bool = False,
        retries: int = _RETRIES,
    ) -> None:
        retry = Retry(ExponentialWithJitterBackoff(base=0.1, cap=10), retries)
        self._client = redis_client(
            url, retry=retry, retry_on_error=[redis.ConnectionError, redis.TimeoutError]
        )
        self._impatient = redis_client(url, **impatient(_GLANCE_TIMEOUT_S))
        self._script = self._client.register_script(_PUT.read_text(encoding="utf-8"))
        self._table = table
        self._ttl_s = ttl_s
        self._generation = generation
        self._rows_move = rows_move
        self._place = ""

    def write(self, changes: Iterable[Change], *, are_all: bool = False, after: Put | None = None) -> Put:
        """Write the rows in order, and skip rows that are older than the rows in Redis.

        are_all  no member has any other rows, so every latest row is known, and no member remains open
        after    the result of writing earlier rows; the new result is added to it

        Raises RedisTroubleError if Redis remains unreachable or refuses rows. Some rows may already
        have been written.
        """
        put = after or Put()
        written, open_ = put.rows, set(put.open)
        remaining = iter(changes)
        while chunk := next_chunk(remaining, CALL_ROWS):
            with reported():
                found = self._put(chunk, are_all=are_all)
            for change, how in zip(chunk, found, strict=True):
                if how & _HELD:
                    put = replace(put, held=put.held + 1, held_key=row_key(self._table, change.row_key))
                if how not in {_OLDER, _HELD}:
                    written += bool(how & _NEW)
                    (open_.add if how & _OPEN else open_.discard)((change.group, change.member))
        return replace(put, rows=written, open=frozenset(open_))

    def refuse_held(self, put: Put) -> None:
        """Raise RedisTroubleError if rows of a newer lake have prevented some rows from being written."""
        if put.held:
            rows = f"{put.held:,} row{'s' if put.held > 1 else ''}"
            held = f"which hold back {rows} of this lake, such as {printable(put.held_key)}"
            raise RedisTroubleError(self._of_newer_lake(held))

    def is_filled(self) -> bool:
        """Return whether Redis contains all expected rows.

        Raises RedisTroubleError as `write` does, and if a newer lake fills the table's keys.
        """
        with reported():
            mark = self._mark(self._client)
            self._refuse_newer(mark)
            return mark == self._place_of(self._client)

    def seems_filled(self) -> bool:
        """Return whether Redis contains all expected rows, or true if it is unreachable. Does not retry."""
        try:
            return self._mark(self._impatient) == self._place_of(self._impatient)
        except (redis.RedisError, OSError):
            return True

    def require(self) -> None:
        """Raise RedisTroubleError unless Redis answers promptly and no newer lake fills the table's keys."""
        with reported():
            self._refuse_newer(self._mark(self._impatient))

    def evictions(self) -> str | None:
        """Return a message about the keys evicted since the last fill, or None if there are none."""
        with reported():
            server, mark = told(self._client), self._mark(self._client)
        known = (mark if mark is not None and _EVICTED in mark else self._place).partition(_LIVES)[0]
        (run, _, had), (now, _, has) = (place.partition(_EVICTED) for place in (known, _place(server)))
        count = int(has) - int(had or 0)
        if run != now or count <= 0:
            return None
        policy, most = (server.get(name, "unknown") for name in ("maxmemory_policy", "maxmemory_human"))
        return f"Redis has evicted {count:,} keys (maxmemory {most}, maxmemory-policy {policy})"

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Mark Redis as filled after the block, which writes all rows, unless Redis has lost keys by then."""
        name = filled_key(self._table)
        with reported():
            place = self._place_of(self._client)
            self._client.set(name, f"{_FILLING}{_MADE}{self._generation}", ex=self._ttl_s)
        self._place = place
        yield
        with reported():
            self._client.set(name, place, xx=True, ex=self._ttl_s)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._impatient.close()

    def _mark(self, client: redis.Redis) -> str | None:
        """Return the filled key's value, and renew the key's time to live unless it is from a newer lake."""
        (found,) = _get(client, [filled_key(self._table)])  # an error in a pipeline names the key
        mark = None if found is None else found.decode(errors="replace")
        if mark is not None and _generation_in(mark) <= self._generation:
            client.expire(filled_key(self._table), self._ttl_s)
        return mark

    def _place_of(self, client: redis.Redis) -> str:
        """Return the filled key's expected value, which is constant if the user may not run INFO."""
        return f"{_place(told(client))}{_LIVES}{self._ttl_s}{_MADE}{self._generation}"

    def _refuse_newer(self, mark: str | None) -> None:
        generation = 0 if mark is None else _generation_in(mark)
        if generation > self._generation:
            at = datetime.fromtimestamp(generation / 1000, UTC)
            raise RedisTroubleError(self._of_newer_lake(f"created or adopted at {at:%F %T} UTC"))

    def _of_newer_lake(self, more: str) -> str:
        return (
            f"Redis has rows of gold.{self._table} from a lake that is newer than this one, {more}; each "
            "lake needs its own database (redis.url). If the newer lake is gone, empty the database "
            "(FLUSHDB), or wait until its rows expire (docs/redis.md)"
        )

    def _put(self, changes: Sequence[Change], *, are_all: bool) -> list[int]:
        """Write rows in one script call, and return the script's answer for each row."""
        names = dict.fromkeys(change.group for change in changes)
        groups = {name: number for number, name in enumerate(names, start=1)}
        keys = [row_key(self._table, change.row_key) for change in changes]
        for name in groups:
            latest = latest_key(self._table, name)
            keys += [latest, f"{{{latest}}}:stamps", f"{{{latest}}}:expiry"]
        arguments: list[str | int] = [len(changes), self._generation, self._ttl_s, _PURGED_AT_ONCE]
        arguments += [int(are_all), int(self._rows_move)]
        for change in changes:
            arguments += [change.version, as_stored(change, self._generation), int(change.value is None)]
            arguments += [groups[change.group], change.member, change.order]
        try:
            found: list[int] = self._script(keys=keys, args=arguments)
        except redis.ResponseError as error:
            key = self._of_another_type(keys, len(changes)) if WRONG_TYPE in str(error) else None
            if key is None:
                raise
            raise redis.ResponseError(f"{WRONG_TYPE} {printable(key)}") from error
        return found

    def _of_another_type(self, keys: Sequence[str], rows: int) -> str | None:
        """Return the first of a call's keys with a type that the script does not expect, or None."""
        with self._client.pipeline(transaction=False) as pipeline:
            for number, key in enumerate(keys):
                if number < rows:
                    pipeline.get(key)
                elif (number - rows) % 3 == _EXPIRY:
                    pipeline.zrangebyscore(key, 0, 0, start=0, num=1)
                else:
                    pipeline.hget(key, "")
            answers = pipeline.execute(raise_on_error=False)
        found = (key for key, one in zip(keys, answers, strict=True) if isinstance(one, redis.ResponseError))
        return next(found, None)


def as_stored(change: Change, generation: int) -> str:
    """Return the row's JSON with the generation and the version at the end, where the script expects them."""
    row = change.value or f"{DELETED}}}"
    return f'{row[:-1]},"{_GENERATION}":{generation},"{_VERSION}":{change.version}}}'


def unfit(table: MergedTable) -> Iterator[str]:
    """Yield the reasons why Redis cannot store the table as declared."""
    for name in sorted({_GENERATION, _VERSION, _IS_DELETED}.intersection(table.export.value.values)):
        yield f"its message has a field {name}, which is reserved for the export"


def read_rows(url: str, table: str, row_keys: Sequence[str]) -> list[str | None]:
    """Return the texts of rows in Redis, in the order of the given row keys, with None for each missing row.

    Raises ServiceError if Redis is unreachable.
    """
    with reported(), redis_client(url) as client:
        found = _get(client, [row_key(table, row) for row in row_keys])
    return [None if value is None else value.decode() for value in found]


def scan_rows(url: str, table: str) -> Iterator[tuple[str, str]]:
    """Yield the row key and text of each row in Redis. Includes every row that exists throughout the scan.

    Raises ServiceError if Redis is unreachable.
    """
    prefix = row_key(table, "")
    with reported(), redis_client(url) as client:
        names = client.scan_iter(f"{prefix}*", count=_SCANNED)
        while chunk := list(islice(names, _SCANNED)):
            for name, value in zip(chunk, _get(client, chunk), strict=True):
                if value is not None:
                    yield name.decode().removeprefix(prefix), value.decode()


def read_latest(url: str, table: str, members: Sequence[tuple[str, str]]) -> list[str | None]:
    """Return the latest row's text for each (group, member), in order, with None for each missing row.

    Raises ServiceError if Redis is unreachable.
    """
    with reported(), redis_client(url) as client, client.pipeline(transaction=False) as pipeline:
        for group, member in members:
            pipeline.hget(latest_key(table, group), member)
        found = pipeline.execute()
    return [None if value is None else value.decode() for value in found]


def scan_latest(url: str, table: str) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield every (group, member) of the table in Redis, with the text of its latest row.

    Raises ServiceError if Redis is unreachable.
    """
    prefix = latest_key(table, "")
    with reported(), redis_client(url) as client:
        for name in client.scan_iter(f"{prefix}*", count=_SCANNED, _type="hash"):
            group = name.decode().removeprefix(prefix)
            if ":" in group:  # the writer's keys from an earlier layout, which will expire
                continue
            for member, row in client.hscan_iter(name, count=_SCANNED):
                yield (group, member.decode()), row.decode()


def row_key(table: str, row: str) -> str:
    """Return the Redis key for a gold row."""
    return f"lakehouse:{table}:row:{row}"


def latest_key(table: str, group: str) -> str:
    """Return the Redis key for the hash that contains each group member's latest row."""
    return f"lakehouse:{table}:latest:{group}"


def filled_key(table: str) -> str:
    """Return the Redis key that exists only while no row of the table has been lost."""
    return f"lakehouse:{table}:filled"


def is_place_of(filled: bytes | None, server: Mapping[str, Any]) -> bool:
    """Return whether Redis contains all expected rows, given the value of the filled key and the INFO.

    Only the `server` and `stats` sections of INFO are required.
    """
    return filled is not None and filled.decode(errors="replace").partition(_LIVES)[0] == _place(server)


def _get(client: redis.Redis, names: Sequence[str | bytes]) -> list[bytes | None]:
    """Return the values of the given keys, which can be in different cluster slots."""
    with client.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.get(name)
        return list(pipeline.execute())


def _generation_in(mark: str) -> int:
    """Return the generation in the filled key's value, or 0 if there is none (earlier lakehouse versions)."""
    found = _GENERATION_OF_MARK.search(mark)
    return 0 if found is None else int(found[1])


def _place(server: Mapping[str, Any]) -> str:
    return f"{server.get('run_id', 'unknown')} {_LAYOUT}{_EVICTED}{server.get('evicted_keys', 0)}"
