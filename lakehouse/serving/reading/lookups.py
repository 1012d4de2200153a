"""Choose where to read the rows for a response: Redis, or gold if Redis lacks rows or is unavailable.

Both sources return rows as exported messages. A response reports its source, the table's generation and a
version. For rows from Redis, the version is the newest commit that wrote one of them. For rows from gold, it
is the table's version.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import accumulate
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread

from lakehouse.common.errors import LakehouseError
from lakehouse.serving.answers import Origin
from lakehouse.serving.problems import Problem
from lakehouse.serving.reading.delta import NoTableError, TableAwayError
from lakehouse.serving.reading.gold import Gold, GoldRows, RowSelection
from lakehouse.serving.reading.redis import Live, RedisAwayError, Stored
from lakehouse.streams.definition import MergedTable
from lakehouse.streams.messages.key_names import escaped_text
from lakehouse.streams.messages.layout import GROUP_SEPARATORS, Equals, Row

REDIS, GOLD = "redis", "gold"
_AT_ONCE, _WAITING = 4, 32
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Said:
    """One row: its exported message as JSON, whether the row is final, and its columns.

    `is_final` is None if that is unknown. `row`, the columns, is None for a row from Redis.
    """

    message: str
    is_final: bool | None
    row: Row | None = None


@dataclass(frozen=True)
class Answer:
    """Rows and their source. `has_more` is true if there are more rows."""

    source: str
    generation: int
    version: int
    rows: tuple[Said, ...]
    has_more: bool = False

    @property
    def is_final(self) -> bool | None:
        """Whether all rows are final, or None if there are no rows or if this is unknown for any row."""
        states = {one.is_final for one in self.rows}
        return None if not states or None in states else states == {True}

    @property
    def origin(self) -> Origin:
        """The origin that the response reports."""
        return Origin(self.source, self.generation, self.version, self.is_final)


class Lookups:
    """Row lookups in Redis and gold.

    They raise Problem 404 if neither store has the rows, and Problem 503 if both stores are unavailable.

    Redis contains every window that starts within the last `whole_s` seconds, unless Redis has lost rows.
    """

    def __init__(self, tables: Iterable[MergedTable], gold: Gold, live: Live, *, whole_s: int) -> None:
        self._whole_s = whole_s
        self.tables = {table.name: table for table in tables}
        self._gold = gold
        self._live = live
        self._scans, self._large = Scans(), Scans(at_once=1)

    async def row(self, table: MergedTable, key: Row) -> Answer:
        """Return the row with this key."""
        name = _named(table.export.redis.row_key.of(key))
        found, why = None, None
        try:
            found = await self._live.row(table.name, name)
        except RedisAwayError as error:
            why = error
        if found is not None:
            return _of_redis(table, [found])
        return await self._from_gold(table, why, lambda: self._gold.row(table, key), name)

    async def latest(self, table: MergedTable, keys: Row) -> Answer:
        """Return the latest row of one member. `keys` contains the key values of its group and the member."""
        view, why, found = table.export.redis, None, None
        group, member = group_of(table, keys), _named(view.member.of(keys))
        try:
            found = await self._live.latest(table.name, group, member)
        except RedisAwayError as error:
            why = error
        if found is not None:
            return _of_redis(table, [found])
        what = ", ".join(map(str, keys.values()))
        return await self._from_gold(table, why, lambda: self._gold.latest(table, keys), what)

    async def members(self, table: MergedTable, keys: Row, after: str | None, most: int) -> Answer:
        """Return the latest rows of a group's first `most` members after the name `after`, sorted by name.

        `keys` contains the key values of the group.
        """
        why, found = None, None
        try:
            found = await self._live.members(table.name, group_of(table, keys), after, most)
        except RedisAwayError as error:
            why = error
        if found is not None and found.rows and found.holds_all:
            return _of_redis(table, list(found.rows.values()), has_more=found.has_more)
        what = ", ".join(map(str, keys.values()))
        return await self._from_gold(
            table, why, lambda: self._gold.latest_of_members(table, keys, after, most), what
        )

    async def series(self, table: MergedTable, keys: Row, windows: int) -> Answer:
        """Return the last `windows` windows of the series with these keys, newest first.

        Windows without events are left out. Redis cannot distinguish such a window from an expired one, so a
        series that has gaps and reaches back further than the time to live is read from gold.
        """
        assert table.window is not None  # noqa: S101 - only windowed tables have series
        column, window = table.keys[-1], table.window
        newest = (await self.latest(table, keys)).rows[0]
        last = int(json.loads(newest.message)[_name_of(table, column)]) * 1000
        starts = list(accumulate(range(1, windows), lambda start, _: window.previous(start), initial=last))
        names = [_named(table.export.redis.row_key.of({**keys, column: start})) for start in starts]
        why = None
        try:
            found = await self._live.rows(table.name, names)
            there = [one for one in found.rows if one is not None]
            is_whole = found.holds_all and starts[-1] > (time.time() - self._whole_s) * 1_000_000
            if there and (len(there) == windows or is_whole):
                return _of_redis(table, there)
        except RedisAwayError as error:
            why = error
        what = ", ".join(map(str, keys.values()))
        answer = await self._from_gold(
            table, why, lambda: self._gold.rows_of(table, keys, starts[-1], window.end_of(last)), what
        )
        newest_first = sorted(answer.rows, key=lambda said: -(said.row or {})[column])
        return Answer(answer.source, answer.generation, answer.version, tuple(newest_first))

    async def page(self, table: MergedTable, span: RowSelection, most: int) -> Answer:
        """Return a page of selected rows, read from gold."""
        return _of_gold(table, await self._scan(lambda: self._gold.page(table, span, most)))

    async def scan(self, read: Callable[[], _T]) -> _T:
        """Run a table scan in a thread, a few at a time. Raises Problem 429 if too many scans are waiting."""
        return await self._scan(read)

    async def scan_large(self, read: Callable[[], _T]) -> _T:
        """Run a table scan as `scan` does, but only one at a time, because the rows can be large."""
        return await self._scan(read, self._large)

    async def _from_gold(
        self, table: MergedTable, why: RedisAwayError | None, read: Callable[[], GoldRows], what: str
    ) -> Answer:
        try:
            answer = _of_gold(table, await self._scan(read))
        except Problem as problem:
            if why is not None and problem.status in {HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE}:
                raise away(f"{why}; {problem.detail}") from problem
            raise
        if not answer.rows:
            raise Problem(HTTPStatus.NOT_FOUND, f"{table.name} has no row for {what}")
        return answer

    async def _scan(self, read: Callable[[], _T], scans: Scans | None = None) -> _T:
        try:
            return await (scans or self._scans).run(read)
        except NoTableError as error:
            raise Problem(HTTPStatus.NOT_FOUND, f"{error}: nothing has been written to it yet") from error
        except (TableAwayError, LakehouseError) as error:
            _log.warning("the requested store is unavailable: %s", error)
            raise away(str(error)) from error


class Scans:
    """A limited queue of table scans that runs a few at a time. Raises Problem 429 if the queue is full."""

    def __init__(self, at_once: int = _AT_ONCE, waiting: int = _WAITING) -> None:
        self._limiter = CapacityLimiter(at_once)
        self._waiting = waiting

    async def run(self, read: Callable[[], _T]) -> _T:
        """Run a blocking function in a thread."""
        if self._limiter.statistics().tasks_waiting >= self._waiting:
            detail = "too many table scans are waiting; try again in a second"
            raise Problem(HTTPStatus.TOO_MANY_REQUESTS, detail, headers={"Retry-After": "1"})
        return await to_thread.run_sync(read, limiter=self._limiter)


def group_of(table: MergedTable, keys: Row) -> str:
    """Return the name of a group, as used in Redis keys."""
    return escaped_text(_named(table.export.redis.group.of(keys)), GROUP_SEPARATORS)


def _named(key: str | None) -> str:
    assert key is not None  # noqa: S101 - parameters are never None
    return key


def _name_of(table: MergedTable, column: str) -> str:
    """Return the name of the message field that holds this column."""
    named: Mapping[str, Any] = table.export.value.values
    return next(name for name, value in named.items() if value.columns == (column,))


def _of_redis(table: MergedTable, found: Sequence[Stored], *, has_more: bool = False) -> Answer:
    newest = max((one.generation, one.version) for one in found)
    rows = (Said(one.message, _is_final_message(table, one.message)) for one in found)
    return Answer(REDIS, *newest, tuple(rows), has_more)


def _of_gold(table: MergedTable, found: GoldRows) -> Answer:
    message, final = table.export.value, table.final
    rows = (Said(message.text(row), None if final is None else final.of(row), row) for row in found.rows)
    return Answer(GOLD, found.generation, found.version, tuple(rows), found.has_more)


def _is_final_message(table: MergedTable, message: str) -> bool | None:
    """Return whether an exported row is final, judging by its message or by the export condition.

    Return None if that is unknown.
    """
    if table.final is None:
        return None
    names = [
        name for name, value in table.export.value.values.items() if value.columns == (table.final.column,)
    ]
    if names:
        return bool(json.loads(message)[names[0]] == table.final.value)
    return (
        True
        if isinstance(table.export.export_when, Equals) and table.export.export_when == table.final
        else None
    )


def away(why: str) -> Problem:
    """Return the 503 error for a store that cannot be read at the moment."""
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, why, headers={"Retry-After": "1"})
