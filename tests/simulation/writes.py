"""All places where a step writes durably, and a process that ends at the n-th write.

Writes are intercepted in libraries, or in the one place through which all commits go. Commits by Delta's own
commands (OPTIMIZE, VACUUM, UPDATE) are not intercepted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import psycopg
from redis.client import Redis
from redis.commands.core import Script

from lakehouse.storage.kafka.clients import Producer
from lakehouse.storage.tables import delta_internals
from lakehouse.testing.kills import CrashError

SEAMS: tuple[tuple[str, Any, str], ...] = (
    ("delta", delta_internals, "commit"),
    ("kafka", Producer, "commit_transaction"),
    ("redis", Script, "__call__"),
    ("redis mark", Redis, "set"),
    ("postgres", psycopg.Connection, "commit"),
)


@dataclass
class Writes:
    """Watches writes, and ends the process at the write with the number `kill_at`.

    With `after`, the process ends after that write. `killed` is the kind and place of the write. Before the
    write `hold_at`, or the next one that holds no lock in PostgreSQL, the process is suspended while
    `meanwhile` runs; `held` is the place of that write.
    """

    kill_at: int = 0
    after: bool = False
    count: int = 0
    killed: str | None = None
    hold_at: int = 0
    meanwhile: Callable[[], None] = lambda: None
    held: str | None = None
    seen: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def watched(self, where: Callable[[], str]) -> Iterator[None]:
        """Watch the writes of the block, whose place is named by `where`."""
        with ExitStack() as stack:
            for kind, owner, name in SEAMS:
                stack.enter_context(
                    patch.object(owner, name, self._wrapped(kind, getattr(owner, name), where))
                )
            yield

    def _wrapped(self, kind: str, write: Callable[..., Any], where: Callable[[], str]) -> Callable[..., Any]:
        def passing(*arguments: Any, **named: Any) -> Any:
            if self.killed is not None:
                raise CrashError
            self.count += 1
            point = f"{where()} {kind}"
            self.seen[point] += 1
            if 0 < self.hold_at <= self.count and kind != "postgres":
                self.hold_at, self.held = 0, point
                self.meanwhile()
                return write(*arguments, **named)
            if self.count != self.kill_at:
                return write(*arguments, **named)
            if self.after:
                write(*arguments, **named)
            self.killed = f"{'after' if self.after else 'before'} {point}"
            raise CrashError

        return passing
