"""A layer's query that finds its micro-batches by the commits of the tables it reads.

Delta's streaming source lists the log of its table several times for each micro-batch, so a micro-batch costs
the more the longer the log is. Here the next versions are found by their names. Plans and notes in the
checkpoint are those of Spark's streams, so either can continue where the other has ended.

Delta's source still reads what commits cannot tell, or tell badly: the rows with which a query begins, a
micro-batch that was planned and not done, versions too large for one micro-batch. It runs until it has caught
up, and then the commits are followed again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.util import InheritableThread

from lakehouse.errors import TableError
from lakehouse.layers.query import LayerQuery
from lakehouse.layers.step import Step
from lakehouse.progress import checkpoints
from lakehouse.runtime.turns import Turns
from lakehouse.spark.execution import execute_for
from lakehouse.spark.session import activate
from lakehouse.tables import Lake, Transaction

_TAKEN_S = 0.05  # between two looks whether a catch-up has ended


@dataclass(frozen=True)
class Work:
    """What the query does, and how often.

    - `process` writes a micro-batch of so many rows (null: unknown).
    - `catch_up` starts a stream of Delta's source that ends when it has caught up.
    - `rest` is called after each micro-batch, without a turn.
    - `interval_s` is the least time between two looks; null: end when all that was there has been read.
    """

    process: Callable[[DataFrame, Transaction, int | None], None]
    catch_up: Callable[[], StreamingQuery]
    rest: Callable[[], None]
    interval_s: float | None
    max_bytes: int
    clock: Callable[[], datetime]


class ByCommits:
    """The query, at work in a thread of its own; to its owner it looks like one of Spark's."""

    def __init__(self, lake: Lake, query: LayerQuery, work: Work, turns: Turns) -> None:
        self._lake = replace(lake, spark=lake.spark.newSession())  # with execution settings of its own
        self._query = query
        self._work = work
        self._turns = turns
        self._stopping = threading.Event()
        self._behind: StreamingQuery | None = None
        self._failure: BaseException | None = None
        self._progress: dict[str, Any] | None = None
        self._thread = InheritableThread(target=self._run, name=query.name, daemon=True)

    def start(self) -> ByCommits:
        """Begin, and return this."""
        self._thread.start()
        return self

    @property
    def isActive(self) -> bool:  # noqa: N802 - as in StreamingQuery
        """Whether it is at work."""
        return self._thread.is_alive()

    @property
    def lastProgress(self) -> Mapping[str, Any] | None:  # noqa: N802 - as in StreamingQuery
        """The last finished micro-batch and how long its phases took, by Spark's names for them."""
        behind = self._behind
        return (behind.lastProgress or self._progress) if behind is not None else self._progress

    def exception(self) -> BaseException | None:
        """Return what ended it, null while it runs and if nothing did."""
        return self._failure

    def stop(self) -> None:
        """Let it begin nothing any more."""
        self._stopping.set()
        behind = self._behind
        if behind is not None:
            behind.stop()

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join()

    def _run(self) -> None:
        try:
            activate(self._lake.spark)
            execute_for(self._lake.spark, few=True)
            self._follow()
        except BaseException as failure:  # noqa: BLE001 - told by the owner
            self._failure = failure

    def _follow(self) -> None:
        step, is_live = self._opened(), self._work.interval_s is not None
        ends = None if step is None or is_live else step.ends()
        due = time.monotonic()
        while not self._stopping.is_set():
            took = None if step is None else self._take(step, ends)
            if took is None:
                self._catch_up()
                step = self._opened() if is_live else step
            if not is_live:
                if not took:
                    return
                continue
            due = max(due + (self._work.interval_s or 0), time.monotonic())
            self._stopping.wait(due - time.monotonic())

    def _opened(self) -> Step | None:
        """Return the query as a step that goes on where it arrived; null where only Delta's source can."""
        step = Step(self._lake, self._query)
        try:
            return step if step.follow() else None
        except TableError:  # as the source, too, will find; and say what to do
            return None

    def _take(self, step: Step, until: Mapping[str, int] | None) -> bool | None:
        """Take one micro-batch of what waits before these versions, or of all; tell whether something did.

        Null where only Delta's source can take it.
        """
        ends = until or step.ends()
        if ends is None or not step.has_read_less(ends):
            return None if ends is None else False
        self._turns.book(self._query.name, self._stopping.is_set)
        with self._turns.one(self._query.name):
            if self._stopping.is_set():
                return False
            began, now = time.monotonic(), self._work.clock()
            try:
                found = step.backlog(until or step.ends() or ends, max_bytes=self._work.max_bytes)
            except TableError:
                return None
            if found is None:
                return None
            planned = step.take(found, checkpoints.new_header(self._lake.spark, now))
            if planned is None:
                return True
            transaction, began_work = step.transaction(), time.monotonic()
            self._work.process(planned.rows, transaction, planned.count)
            step.done()
            ended = time.monotonic()
            phases = {
                "latestOffset": began_work - began,
                "addBatch": ended - began_work,
                "triggerExecution": ended - began,
            }
            self._progress = {
                "batchId": transaction.version,
                "durationMs": {name: round(took_s * 1000) for name, took_s in phases.items()},
            }
        self._work.rest()
        return True

    def _catch_up(self) -> None:
        behind = self._behind = self._work.catch_up()
        if self._stopping.is_set():
            behind.stop()
        while behind.isActive:
            time.sleep(_TAKEN_S)
        self._progress, self._behind = behind.lastProgress or self._progress, None
        failure = behind.exception()
        if failure is not None:
            raise failure
