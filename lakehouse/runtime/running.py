"""A query of a run: when it takes its turn, and how it stops between two micro-batches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql.streaming.query import StreamingQuery

from lakehouse.layers.query import LayerQuery, QueryMaker
from lakehouse.runtime.by_commits import ByCommits
from lakehouse.runtime.signals import Stop
from lakehouse.runtime.turns import Turns
from lakehouse.spark.query_errors import is_table_change

_POLL_S = 0.025
_LONGEST_WAIT_S = 6.0
_RESTARTS = 5  # of a query that has written nothing since the last one


@dataclass(eq=False)
class Running:
    """A query of a run, with the number of the last micro-batch whose writes are complete.

    - `query` and `handle` are null while it is down.
    - `before` are the queries whose turns come before this one's: those it reads from; for the first of a
      chain, those at the chain's ends.
    - `rounds` counts turns, `rounds_seen` those of `before` at the last look.
    - `has_begun`: since its last start it has begun a micro-batch; `has_progressed`: it has written one that
      the run had not written before.
    - `was_refused`: its last failure was at its start.
    - `leaves`: it is about to be stopped, so it plans nothing any more.
    - `measured` is the last micro-batch whose phases were reported.
    """

    maker: QueryMaker
    query: LayerQuery | None = None
    handle: StreamingQuery | ByCommits | None = None
    written: int = -1
    furthest: int = -1
    rounds: int = 0
    before: list[Running] = field(default_factory=list)
    rounds_seen: int = 0
    restarts: int = 0
    measured: int = -1
    failure: BaseException | None = None
    started_at: float = 0.0
    has_begun: bool = False
    has_progressed: bool = False
    was_refused: bool = False
    leaves: bool = False

    @property
    def cause(self) -> BaseException | None:
        """What ended the query; null while it runs and after it was stopped."""
        return self.failure or (self.handle.exception() if self.handle is not None else None)

    @property
    def rounds_before(self) -> int:
        """The number of turns that the queries before this one have had."""
        return sum(one.rounds for one in self.before)

    @property
    def may_start_again(self) -> bool:
        """Tell whether it ended at a table's new schema, with which it can continue at once."""
        ended = self.handle is not None and self.handle.exception() is not None
        return ended and self.cause is not None and is_table_change(self.cause) and self.restarts < _RESTARTS

    def begin(self) -> None:
        """Reset the state of the last start. What was written is in the checkpoint, or comes again."""
        self.failure = None
        self.written = -1
        self.started_at = time.monotonic()
        self.has_begun = self.has_progressed = self.leaves = False

    def progress(self, number: int) -> None:
        """Note a micro-batch that is written and reported; a repeated one is no progress."""
        if number > self.furthest:
            self.furthest = number
            self.has_progressed = True

    def close(self) -> None:
        """Close the query's connections."""
        if self.query is not None:
            self.query.close()

    def take_down(self) -> None:
        """Discard the ended query, so that the next start makes a new one."""
        self.close()
        self.query = self.handle = None
        self.was_refused = False
        self.begin()


def form_ring(queries: Sequence[Running]) -> None:
    """Order the turns: every query after those it reads from, and a chain's first one after its ends.

    Nobody waits for a query that is down.
    """
    up = [(one, one.query) for one in queries if one.query is not None]
    by_name = {query.name: one for one, query in up}
    for one, query in up:
        one.before = [by_name[name] for name in query.reads if name in by_name]
    read = {name for _, query in up for name in query.reads}
    ends = [one for one, query in up if query.name not in read]
    firsts = [one for one, _ in up if not one.before]
    closing = [[end for end in ends if end is not first and _leads_to(first, end)] for first in firsts]
    for first, its_ends in zip(firsts, closing, strict=True):
        first.before = its_ends


def _leads_to(first: Running, end: Running) -> bool:
    return any(one is first or _leads_to(first, one) for one in end.before)


def await_predecessor(one: Running, stop: Stop) -> None:
    """Hold a written micro-batch until there is something new to plan the next one with.

    A query plans as soon as its micro-batch returns. If it did so at once, it would choose its input a whole
    round before its turn, and an event would need one round per layer. The wait is bounded, so a silent
    predecessor costs little.
    """
    deadline = time.monotonic() + _LONGEST_WAIT_S
    while one.before and one.rounds_before == one.rounds_seen:
        if time.monotonic() >= deadline or stop.requested:
            return
        time.sleep(_POLL_S / 2.5)


def leave(queries: Sequence[Running], turns: Turns) -> None:
    """Stop every query between two micro-batches.

    Once this thread holds all turns, no micro-batch is writing and none can begin. One that has just written
    must still note that in its checkpoint, so it is waited for. A micro-batch that waits for its turn has
    done nothing yet.
    """
    for one in queries:
        one.leaves = True
    with turns.all():
        for one in queries:
            handle = one.handle
            if handle is None:
                continue
            while handle.isActive and _last_committed(handle) < one.written:
                time.sleep(_POLL_S)
            handle.stop()
    for one in queries:
        if isinstance(one.handle, ByCommits):
            one.handle.join()  # it may wait for a turn, with which it will begin nothing


def _last_committed(handle: StreamingQuery | ByCommits) -> int:
    progress = handle.lastProgress
    return -1 if progress is None else int(progress["batchId"])
