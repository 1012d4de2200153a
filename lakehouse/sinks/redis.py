"""Gold rows in Redis: never back to an older version, and all of them again where Redis has lost them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import redis
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.retry import Retry

from lakehouse.errors import ServiceError
from lakehouse.sinks.change import Change

PIPELINE_ROWS = 1_000
_PUT = Path(__file__).with_name("redis_put.lua")
_RETRIES = 8
_GLANCE_TIMEOUT_S = 1.0
_FILLING = "filling"


class RedisSink:
    """Writes rows to Redis with a time to live; a row is replaced only by a newer version of itself.

    A version is that of the Delta commit that wrote the row, within the table's `generation`: its time of
    creation in ms, because a table that is made anew counts its commits from zero. A newer generation
    replaces whatever an older one has left. The layout is RedisView's. A write is one script call, sent in
    pipelines, so a reader never sees half of it. Redis being away is retried with a growing pause,
    `retries` times: by default for half a minute.

    The key `lakehouse:<table>:filled`, without a time to live, says which run of the server holds every
    row that it should. Where it is gone, or names another run, rows may have been lost.
    """

    def __init__(self, url: str, table: str, ttl_s: int, *, generation: int, retries: int = _RETRIES) -> None:
        retry = Retry(ExponentialWithJitterBackoff(base=0.1, cap=10), retries)
        self._client = redis.Redis.from_url(
            url, retry=retry, retry_on_error=[redis.ConnectionError, redis.TimeoutError]
        )
        self._impatient = redis.Redis.from_url(
            url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=_GLANCE_TIMEOUT_S,
            socket_connect_timeout=_GLANCE_TIMEOUT_S,
        )
        self._put = self._client.register_script(_PUT.read_text(encoding="utf-8"))
        self._table = table
        self._ttl_s = ttl_s
        self._generation = generation

    def write(self, changes: Iterable[Change]) -> int:
        """Put the rows and return how many were new; older versions than what stands are left out.

        Raises ServiceError where Redis stays out of reach.
        """
        written = 0
        remaining = iter(changes)
        while chunk := list(islice(remaining, PIPELINE_ROWS)):
            with _reported(), self._client.pipeline(transaction=False) as pipeline:
                for change in chunk:
                    self._put(keys=self._keys(change), args=self._arguments(change), client=pipeline)
                written += sum(pipeline.execute())
        return written

    def is_filled(self) -> bool:
        """Tell whether every row that should be there is; raises ServiceError where Redis is out of reach."""
        with _reported():
            return self._holds_all(self._client)

    def seems_filled(self) -> bool:
        """Tell so at once, for when nothing is to be written: a Redis that does not answer is left alone."""
        try:
            return self._holds_all(self._impatient)
        except redis.RedisError:
            return True

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Say that every row is there once the block has put them, unless Redis lost its keys meanwhile."""
        name = filled_key(self._table)
        with _reported():
            run = _run_of(self._client)
            self._client.set(name, _FILLING)
        yield
        with _reported():
            self._client.set(name, run, xx=True)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._impatient.close()

    def _holds_all(self, client: redis.Redis) -> bool:
        found = client.get(filled_key(self._table))
        return isinstance(found, bytes) and found.decode() == _run_of(client)

    def _keys(self, change: Change) -> list[str]:
        latest = latest_key(self._table, change.group)
        return [row_key(self._table, change.row_key), latest, f"{latest}:stamps", f"{latest}:expiry"]

    def _arguments(self, change: Change) -> list[str | int]:
        row = as_stored(change, self._generation)
        return [self._generation, change.version, row, change.member, change.order, self._ttl_s]


def as_stored(change: Change, generation: int) -> str:
    """Return the row's JSON with generation and version as its last fields, where the script looks."""
    row = change.value or '{"deleted":true}'
    return f'{row[:-1]},"generation":{generation},"version":{change.version}}}'


def read_rows(url: str, table: str, row_keys: Sequence[str]) -> list[str | None]:
    """Return what Redis has under the rows' own keys, in their order; null for nothing.

    Raises ServiceError where Redis is out of reach.
    """
    with _reported(), redis.Redis.from_url(url) as client:
        found = client.mget([row_key(table, row) for row in row_keys])
    return [None if value is None else value.decode() for value in found]


def scan_rows(url: str, table: str) -> Iterator[tuple[str, str]]:
    """Yield every row that Redis has of the table, by its own key; none is left out that stays meanwhile.

    Raises ServiceError where Redis is out of reach.
    """
    prefix = row_key(table, "")
    with _reported(), redis.Redis.from_url(url) as client:
        names = client.scan_iter(f"{prefix}*", count=PIPELINE_ROWS)
        while chunk := list(islice(names, PIPELINE_ROWS)):
            for name, value in zip(chunk, client.mget(chunk), strict=True):
                if value is not None:
                    yield name.decode().removeprefix(prefix), value.decode()


def row_key(table: str, row: str) -> str:
    """Return the Redis key of one gold row."""
    return f"lakehouse:{table}:row:{row}"


def latest_key(table: str, group: str) -> str:
    """Return the Redis key of the hash of a group's latest row per member."""
    return f"lakehouse:{table}:latest:{group}"


def filled_key(table: str) -> str:
    """Return the Redis key that stands as long as no row of the table has been lost."""
    return f"lakehouse:{table}:filled"


def _run_of(client: redis.Redis) -> str:
    """Return what names the server's run; a server that tells nobody has the same name for ever."""
    try:
        return str(client.info("server").get("run_id", "unknown"))
    except redis.ResponseError:
        return "unknown"


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise ServiceError(f"export to Redis failed: {error}; is LAKEHOUSE_REDIS_URL right?") from error
