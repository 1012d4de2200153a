"""Change events for new table versions. A single poller detects the new versions for all listeners.

Each change has an id, `<run>-<number>`. A reconnecting listener sends its last id and gets the changes since
then. If it sends no id, or an id that is too old or from a different run of the server, it first gets every
table's current version.

The number of listeners is limited, in total and per caller. A listener whose token or session is no longer
valid is disconnected about a second later.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from anyio import to_thread

from lakehouse.serving.problems import Problem

Versions = Mapping[str, tuple[int, int]]
_KEPT = 1_000
_MOST_LISTENERS = 200
_MOST_OF_A_CALLER = 20
_LOOK_AROUND_S = 1.0


@dataclass(frozen=True)
class NewVersion:
    """A new version of a table, in the table's current generation."""

    number: int
    table: str
    generation: int
    version: int


class Changes:
    """Detects new table versions by calling `look` every `every_s` seconds while there are listeners.

    `look` returns the current versions of all tables. It is called in a thread, so it may block.
    """

    def __init__(
        self, look: Callable[[], Versions], *, every_s: float = 1.0, heartbeat_s: float = 15.0
    ) -> None:
        self._look = look
        self._every_s = every_s
        self._heartbeat_s = heartbeat_s
        self._run = secrets.token_hex(4)
        self._versions: dict[str, tuple[int, int]] = {}
        self._changes = deque[NewVersion](maxlen=_KEPT)
        self._number = 0
        self._places = Counter[str]()
        self._is_over = False
        self._poller: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._changed = asyncio.Condition()

    @contextmanager
    def place(self, caller: str) -> Iterator[None]:
        """Count one listener for the caller during the block. Raises Problem 429 if there are too many."""
        if self._places.total() >= _MOST_LISTENERS or self._places[caller] >= _MOST_OF_A_CALLER:
            why = (
                f"{self._places[caller]} of {_MOST_OF_A_CALLER} event streams are open for {caller}, and "
                f"{self._places.total()} of {_MOST_LISTENERS} in total; try again later"
            )
            raise Problem(HTTPStatus.TOO_MANY_REQUESTS, why, headers={"Retry-After": "10"})
        self._places[caller] += 1
        try:
            yield
        finally:
            self._places[caller] -= 1
            self._places += Counter()  # drops callers without listeners
            if not self._places and self._poller is not None:
                self._poller.cancel()
                self._poller = None

    def end(self) -> None:
        """Disconnect all listeners at their next check. A signal handler may call this method."""
        self._is_over = True

    async def listen(
        self, last_id: str | None, may_listen: Callable[[], bool] = lambda: True
    ) -> AsyncGenerator[str, None]:
        """Yield server-sent events, and heartbeat comments while nothing changes.

        Call this method inside a `place` block.
        """
        async with self._starting:
            if self._poller is None:
                await self._poll()
                self._poller = asyncio.create_task(self._go_on())
        seen, told_at = self._known(last_id), time.monotonic()
        if seen is None:
            seen = self._number
            yield self._event(seen, "standing", {"tables": self._standing()})
        while not self._is_over and may_listen():
            for one in [one for one in self._changes if one.number > seen]:
                stamp = {"generation": one.generation, "version": one.version}
                yield self._event(one.number, "changed", {"table": one.table, **stamp})
                seen, told_at = one.number, time.monotonic()
            if not await self._wait(seen) and time.monotonic() - told_at >= self._heartbeat_s:
                yield ": nothing has changed\n\n"
                told_at = time.monotonic()

    def _known(self, last_id: str | None) -> int | None:
        """Return the number in the listener's last event id, or None if the listener cannot resume there."""
        run, _, number = (last_id or "").partition("-")
        if run != self._run or not (number.isascii() and number.isdecimal()):
            return None
        first = self._changes[0].number if self._changes else self._number + 1
        return int(number) if first - 1 <= int(number) <= self._number else None

    async def _wait(self, seen: int) -> bool:
        """Wait for a change that is newer than number `seen`. Return False if the wait times out."""
        async with self._changed:
            try:
                await asyncio.wait_for(
                    self._changed.wait_for(lambda: self._number > seen or self._is_over),
                    timeout=min(self._heartbeat_s, _LOOK_AROUND_S),
                )
            except TimeoutError:
                return False
            return True

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self._poll()

    async def _poll(self) -> None:
        found = await to_thread.run_sync(self._look)
        for table, (generation, version) in found.items():
            if self._versions.get(table) != (generation, version):
                self._versions[table] = generation, version
                self._number += 1
                self._changes.append(NewVersion(self._number, table, generation, version))
        async with self._changed:
            self._changed.notify_all()

    def _standing(self) -> list[dict[str, Any]]:
        return [
            {"table": table, "generation": generation, "version": version}
            for table, (generation, version) in sorted(self._versions.items())
        ]

    def _event(self, number: int, name: str, body: Mapping[str, Any]) -> str:
        return f"id: {self._run}-{number}\nevent: {name}\ndata: {json.dumps(body)}\n\n"
