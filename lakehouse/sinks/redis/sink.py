"""Send a gold table's rows to Redis, where each row expires after the time to live."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, closing
from datetime import datetime, timedelta

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.settings import Settings
from lakehouse.sinks.change import Change
from lakehouse.sinks.outgoing import changes_of, group_of, leaves, newest_since, outgoing
from lakehouse.sinks.port import Exported, Sending, SinkKind
from lakehouse.sinks.redis import audit as audit_redis
from lakehouse.sinks.redis.client import RedisTroubleError, doubts_of_redis, require_redis
from lakehouse.sinks.redis.contents import contents
from lakehouse.sinks.redis.rows import Put, RedisSink, unfit
from lakehouse.storage import tables
from lakehouse.storage.spark.query_errors import are_files_gone
from lakehouse.storage.tables import Position
from lakehouse.streams.definition import MergedTable

_LOOK_EVERY_S = 5.0
_EVICTED_EVERY_S = 600.0  # a Redis that is too small evicts rows as fast as they are written


class ToRedis:
    """The Redis sink. It writes rows with their versions, and refills Redis from the table's change feed."""

    name = "redis"

    def __init__(self, exported: Exported) -> None:
        table, settings = exported.table, exported.settings
        self._exported = exported
        self._redis = RedisSink(
            settings.redis.url.get_secret_value(),
            table.name,
            settings.redis.ttl_s,
            generation=exported.generation,
            rows_move=table.export.redis.rows_move,
        )
        self._kept = timedelta(seconds=settings.redis.ttl_s)
        self._looked: float | None = None  # on the monotonic clock, like _filled_at
        self._filled_at: float | None = None
        self._sending: Sending | None = None
        self._put, self._filling, self._is_whole = Put(), ExitStack(), False

    def begin(self, sending: Sending) -> None:
        """Begin a micro-batch. If the micro-batch contains all rows of the table, it also fills Redis.

        Like `end` and `fill`, raises RedisTroubleError if Redis has rows of this table from a newer lake.
        """
        self._put, self._filling, self._sending = Put(), ExitStack(), sending
        is_filled = self._redis.is_filled()
        fills = not is_filled and sending.is_first and not sending.span.after.is_beginning
        if fills:
            self._filling.enter_context(self._redis.filling())
        self._is_whole = is_filled or fills

    def write(self, changes: Sequence[Change]) -> None:
        """Write the micro-batch's next rows."""
        self._put = self._redis.write(changes, after=self._put)

    def end(self) -> int:
        """Resend rows that are now the latest of a member, and return how many rows were new to Redis."""
        self._redis.refuse_held(self._put)
        self._filling.close()
        self._looked = time.monotonic() if self._is_whole else None
        sending, self._sending = self._sending, None
        if sending is None:
            raise TypeError("end was called before begin")
        return self._put.rows + self._put_next(self._put.open, sending.now)

    def lacks_rows(self) -> bool:
        """Return whether Redis lacks rows, or false if it is unreachable.

        Redis is queried at most every five seconds.
        """
        if self._looked is not None and time.monotonic() - self._looked < _LOOK_EVERY_S:
            return False
        self._looked = time.monotonic()
        return not self._redis.seems_filled() and not self._waits_after_evictions()

    def require(self) -> None:
        """Raise RedisTroubleError unless Redis answers promptly."""
        self._redis.require()

    def fill(self, reached: Position | None, now: datetime) -> int:  # noqa: ARG002 - it sends all rows
        """Resend every row that changed within the time to live, and return the number of new rows."""
        evicted = self._redis.evictions()
        if evicted is not None:
            self._exported.notice(
                f"{self._exported.name}: {evicted}; rows from the last {self._kept} are written again, at "
                f"most every {_EVICTED_EVERY_S / 60:g} minutes. Give Redis more memory, or shorten redis.ttl"
            )
        with self._redis.filling():
            rows = self._put_again(now)
        self._filled_at = time.monotonic()
        return rows

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def _waits_after_evictions(self) -> bool:
        """Return whether Redis has evicted rows, but was filled so recently that it is not refilled yet."""
        if self._filled_at is None or time.monotonic() - self._filled_at >= _EVICTED_EVERY_S:
            return False
        try:
            return self._redis.evictions() is not None
        except RedisTroubleError:
            return True

    def _put_next(self, open_: Collection[tuple[str, str]], now: datetime) -> int:
        """Resend the remaining rows for members whose latest row was deleted, to find the new latest row."""
        if not open_:
            return 0
        table, spark = self._exported.table, self._exported.spark
        places = {"group": group_of(table), "member": table.export.redis.member()}
        members = spark.createDataFrame(sorted(open_), "_group string, _member string")
        theirs = [place == F.col(f"_{name}") for name, place in places.items()]

        def standing(leaving: DataFrame) -> DataFrame:
            kept = leaving.where(F.col("_change_type") != "delete")
            return kept.join(F.broadcast(members), theirs, "left_semi")

        return self._put_again(now, standing)

    def _put_again(self, now: datetime, chosen: Callable[[DataFrame], DataFrame] = lambda rows: rows) -> int:
        """Resend the rows that Redis should contain: all rows last changed within the time to live.

        If VACUUM has removed some changes, the remaining changes are sent, and a notice states since when.
        """
        since, exported = now - self._kept, self._exported
        try:
            return self._put_since(since, chosen)
        except (PySparkException, Py4JError) as error:
            if not are_files_gone(error):
                raise
        since = tables.readable_since(exported.spark, exported.path, since)
        exported.notice(
            f"{exported.name}: Redis is missing rows from gold.{exported.table.name}; those last changed "
            f"before {since:%F %T} UTC reappear only when they change again, because VACUUM has removed "
            "their changes. Set redis.ttl to less than maintenance.keep_versions"
        )
        return self._put_since(since, chosen)

    def _put_since(self, since: datetime, chosen: Callable[[DataFrame], DataFrame]) -> int:
        table = self._exported.table
        newest = newest_since(self._exported.spark, self._exported.path, table, since)
        with outgoing(chosen(newest.where(leaves(table))), changes_of(table)) as rows:
            # Send each member's latest row first. In a new generation, an older row that is sent first would
            # count as the latest.
            put = self._redis.write(rows.latest_first(), are_all=True)
        self._redis.refuse_held(put)
        return put.rows


def _url(settings: Settings) -> str:
    return settings.redis.url.get_secret_value()


def _try_row(_table: MergedTable, settings: Settings) -> None:
    """Write a test row that expires after a second, under a name that no table has."""
    row = Change("doctor", '{"doctor":true}', 1, row_key="doctor", group="doctor", member="doctor", order=1)
    sink = RedisSink(_url(settings), "_doctor", 1, generation=time.time_ns() // 1_000_000, retries=0)
    with closing(sink):
        sink.write([row])


KIND = SinkKind(
    "redis",
    "Redis",
    is_set=lambda settings: bool(_url(settings)),
    require=lambda settings: require_redis(_url(settings)),
    doubts=lambda settings: doubts_of_redis(_url(settings)),
    reads_back=lambda settings: timedelta(seconds=settings.redis.ttl_s),
    make=ToRedis,
    audit=audit_redis.compare,
    unfit=unfit,
    try_row=_try_row,
    contents=lambda settings: contents(_url(settings)),
)
