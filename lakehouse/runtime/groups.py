"""Queries of a run that take turns in one application and stop between two micro-batches.

A query that fails goes down alone. It is made again and restarted after a pause.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from lakehouse.errors import LakehouseError
from lakehouse.events import Kind, note, place_of
from lakehouse.layers.query import BatchResult, LayerQuery, QueryMaker
from lakehouse.runtime.by_commits import ByCommits, Work
from lakehouse.runtime.guards import Guards
from lakehouse.runtime.running import Running, await_predecessor, form_ring, leave
from lakehouse.runtime.signals import Stop
from lakehouse.runtime.triggers import AVAILABLE_NOW, interval_ms
from lakehouse.runtime.troubles import LONGEST_PAUSE_S, Troubles
from lakehouse.runtime.turns import Turns
from lakehouse.runtime.watch import Watch
from lakehouse.settings import Settings
from lakehouse.spark.execution import executing_for
from lakehouse.spark.query_errors import error_line, has_ended, is_loss
from lakehouse.tables import Lake, Transaction

_POLL_S = 0.05
_LONGEST_PLANNING_S = 1.0
_LIVE_POLL_S = 0.2  # each look at one of many queries costs a call to the JVM


@dataclass(frozen=True)
class BatchDone:
    """A micro-batch that has been written: its query, number and result, and how long it took.

    The number is null for what a query did by the wall clock.
    """

    query: str
    batch: int | None
    result: BatchResult
    duration_s: float


OnBatch = Callable[[BatchDone], None]
Clock = Callable[[], datetime]
Alone = Callable[[], AbstractContextManager[None]]
"""Makes a block during which no micro-batch runs."""


class Upkeep(Protocol):
    """Looks after the tables of a live run."""

    def beside(self, alone: Alone, is_quiet: Callable[[], bool], /) -> AbstractContextManager[None]:
        """Make a block beside which it does so; `is_quiet` tells whether nothing waits to be processed."""


def utc_now() -> datetime:
    """Return the wall clock's time."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Common:
    """What all queries of a run share."""

    lake: Lake
    settings: Settings
    trigger: str
    on_batch: OnBatch
    clock: Clock
    guards: Guards
    at_once: int
    stop: Stop
    troubles: Troubles
    watch: Watch
    export: Callable[[Alone], None] | None = None
    upkeep: Upkeep | None = None

    @property
    def is_live(self) -> bool:
        """Tell whether the run continues until it is asked to stop."""
        return self.trigger != AVAILABLE_NOW

    def note(self, name: str, stream: str, cause: BaseException) -> None:
        """Note a failure; raise it if the run cannot continue."""
        if isinstance(cause, Exception) and not has_ended(self.lake.spark):
            self.troubles.add(name, stream, cause)
        else:
            self.troubles.add_last(name, stream, cause)
            self.troubles.raise_any()


class Group:
    """Queries that run together and take turns.

    A query that fails goes down, and restarts when it is due, unless the group does not retry.
    """

    def __init__(
        self,
        common: Common,
        makers: Iterable[QueryMaker],
        *,
        tries_again: bool = True,
        turns: Turns | None = None,
    ) -> None:
        self._common = common
        self._troubles = common.troubles
        self._tries_again = tries_again
        self._turns = turns or Turns(common.lake.spark, 1 if common.is_live else common.at_once)
        self._queries = [Running(maker) for maker in makers]

    def run(self) -> None:
        """Run the queries until they have caught up or are to stop; raises whatever ends the whole run."""
        try:
            try:
                self._begin()
                with self._kept_up():
                    self._wait()
            finally:
                leave(self._queries, self._turns)
            self._settle()
            self._tell_ends()
        finally:
            for one in self._queries:
                one.close()
                # Spark's micro-batch callback refers to `one`, and the JVM's query refers to the callback. No
                # collector sees such a cycle whole, so the plans of every ended query would stay in memory.
                one.handle = None

    def _begin(self) -> None:
        self._bring_up(self._queries)

    def _kept_up(self) -> AbstractContextManager[None]:
        upkeep = self._common.upkeep if self._common.is_live else None
        return nullcontext() if upkeep is None else upkeep.beside(self._turns.all, self._is_quiet)

    def _is_quiet(self) -> bool:
        """Tell whether nothing waits to be processed, as far as that is known without a look."""
        return False

    def _settle(self) -> None:
        """Do the remaining work once no query runs any more."""

    def _tell_ends(self) -> None:
        for one in self._queries:
            if one.has_progressed or (one.was_refused and one.handle is not None):
                self._troubles.is_over(one.maker.name)
            if one.cause is not None and not one.may_start_again:  # or was to stop before it could
                self._troubles.add_last(one.maker.name, one.maker.stream, self._told(one, one.cause))

    def _form_ring(self) -> None:
        form_ring(self._queries)

    def _await_turn(self, one: Running) -> None:
        """Hold a written micro-batch until it is time to plan the next one."""
        await_predecessor(one, self._common.stop)

    def _is_done(self, _one: Running, done: BatchDone) -> None:
        self._common.on_batch(done)

    def _bring_up(self, queries: Iterable[Running]) -> None:
        """Make the queries that do not exist yet, and start all of them."""
        # A query's session is a copy of the one that starts it, until a micro-batch has many rows.
        with executing_for(self._common.lake.spark, few=True):
            for one in queries:
                try:
                    query = one.query = one.query or one.maker.make()
                    self._form_ring()
                    self._start(one, query)
                except Exception as failure:  # noqa: BLE001 - told, and raised by the run's end
                    self._take_down(one, failure)
                    one.was_refused = True

    def _start(self, one: Running, query: LayerQuery) -> None:
        common = self._common
        if query.checkpoint is None:
            common.guards.check(query, common.clock())
        one.begin()
        if query.topic is not None or query.checkpoint is not None:
            one.handle = self._stream(one, query, common.trigger)
            return

        def rest() -> None:
            self._tell_phases(one)
            if common.is_live:
                self._await_turn(one)

        interval = interval_ms(common.trigger)
        work = Work(
            partial(self._process, one, query),
            partial(self._stream, one, query, AVAILABLE_NOW),
            rest,
            None if interval is None else interval / 1000,
            common.settings.bytes_per_batch,
            common.clock,
        )
        one.handle = ByCommits(common.lake, query, work, self._turns).start()

    def _stream(self, one: Running, query: LayerQuery, trigger: str) -> StreamingQuery:
        """Start the query as a stream of Spark's."""

        def on_micro_batch(batch: DataFrame, number: int) -> None:
            self._tell_phases(one)
            with self._turns.one(one.maker.name):
                context = batch.sparkSession.sparkContext
                application = query.application(str(context.getLocalProperty("sql.streaming.queryId")))
                self._process(one, query, batch, Transaction(application, number))
            if trigger != AVAILABLE_NOW:
                self._await_turn(one)

        checkpoint = query.checkpoint or self._common.lake.checkpoint(query.name)
        writer = query.rows().writeStream.queryName(query.name).option("checkpointLocation", checkpoint)
        return _with_trigger(writer, trigger).foreachBatch(on_micro_batch).start()

    def _process(
        self,
        one: Running,
        query: LayerQuery,
        batch: DataFrame,
        transaction: Transaction,
        count: int | None = None,
    ) -> None:
        """Process a micro-batch in its turn."""
        one.has_begun, one.rounds_seen = True, one.rounds_before
        try:
            started = time.monotonic()
            result = query.process(batch, transaction, self._common.clock(), count)
            one.written = transaction.version
            one.rounds += 1
            one.restarts = 0
            took_s = time.monotonic() - started
            self._is_done(one, BatchDone(query.name, transaction.version, result, took_s))
            one.progress(transaction.version)
        except BaseException as failure:
            one.failure = failure
            raise

    def _tell_phases(self, one: Running) -> None:
        """Report the phases of the query's last micro-batch, which Spark knows once it is done."""
        if not self._common.watch.wants_phases or one.handle is None:
            return
        last = one.handle.lastProgress
        if last is not None and "addBatch" in last["durationMs"] and int(last["batchId"]) > one.measured:
            one.measured = int(last["batchId"])
            self._common.watch.on_phases(one.maker.name, dict(last["durationMs"]))

    def _wait(self) -> None:
        """Return when every query has ended, or when a stop is requested.

        Meanwhile, do what the wall clock makes due: at most once per trigger, and at the end of a catch-up.
        """
        common, live = self._common, self._common.is_live
        interval_s = (interval_ms(common.trigger) or 0) / 1000
        next_tick = time.monotonic() + interval_s
        next_export = time.monotonic() + common.settings.gate_interval_s
        while not common.stop.event.wait(_LIVE_POLL_S if live else _POLL_S):
            at_work = [one for one in self._queries if self._is_at_work(one)]
            self._turns.lapse(interval_s + _LONGEST_PLANNING_S)
            if not at_work or (live and time.monotonic() >= next_tick):
                next_tick = time.monotonic() + interval_s
                ticks = [self._tick(one) for one in self._queries]
                if not at_work and not any(ticks):
                    return
            if live and common.export is not None and time.monotonic() >= next_export:
                common.export(self._turns.all)
                next_export = time.monotonic() + common.settings.gate_interval_s

    def _is_at_work(self, one: Running) -> bool:
        """Look after a query: tell whether it is running or will be restarted."""
        name = one.maker.name
        if one.handle is None:
            if self._tries_again and self._troubles.is_due(name):
                self._common.watch.on_restart(name)
                self._bring_up([one])
        elif one.handle.isActive:
            if name in self._troubles and self._is_well(one):
                self._troubles.is_over(name)
            return True
        elif one.cause is None:
            self._troubles.is_over(name)
            return False
        elif one.may_start_again:
            told = f"{name} restarts: {error_line(one.cause)}"
            note(Kind.RESTART, told, stream=one.maker.stream, **place_of(name))
            self._common.guards.notice(told)
            one.restarts += 1
            self._common.watch.on_restart(name)
            self._bring_up([one])
        else:
            self._take_down(one, one.cause)
        return one.handle is not None or (self._tries_again and self._troubles.will_be_tried(name))

    def _is_well(self, one: Running) -> bool:
        """Tell whether a restarted query has made progress, or finds nothing to do."""
        idle = self._common.is_live and not one.has_begun
        return one.has_progressed or (idle and time.monotonic() - one.started_at > LONGEST_PAUSE_S)

    def _take_down(self, one: Running, failure: BaseException) -> None:
        maker = one.maker
        if one.has_progressed:
            self._troubles.is_over(maker.name)
        told = self._told(one, failure)
        one.take_down()
        self._form_ring()
        self._common.note(maker.name, maker.stream, told)

    def _told(self, one: Running, failure: BaseException) -> BaseException:
        """Return what to report of a failure: if Kafka lost what the query was to read, that."""
        if isinstance(failure, LakehouseError) or not is_loss(failure):
            return failure
        try:
            for query in self._reading(one):
                self._common.guards.refuse_losses(query, failure)
        except Exception as refusal:  # noqa: BLE001 - raised by the run's end in place of the failure
            return refusal
        return failure

    def _reading(self, one: Running) -> Iterable[LayerQuery]:
        """Return the queries that read the topics this one depends on."""
        return [] if one.query is None else [one.query]

    def _tick(self, one: Running) -> bool:
        """Do what the wall clock makes due for a query; tell whether that failed and will be retried."""
        ticker = None if one.query is None else one.query.ticker
        name, now = f"{one.maker.name} by the clock", self._common.clock()
        if ticker is not None and self._troubles.is_due(name):
            try:
                if name in self._troubles or ticker.is_due(now):
                    with self._turns.all():
                        started = time.monotonic()
                        result = ticker.tick(now)
                        if result.rows:
                            one.rounds += 1
                            took_s = time.monotonic() - started
                            self._common.on_batch(BatchDone(one.maker.name, None, result, took_s))
            except Exception as failure:  # noqa: BLE001 - told, and raised by the run's end
                self._common.note(name, one.maker.stream, failure)
            else:
                self._troubles.is_over(name)
        return self._tries_again and self._troubles.will_be_tried(name)


def _with_trigger(writer: DataStreamWriter, trigger: str) -> DataStreamWriter:
    if trigger == AVAILABLE_NOW:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{interval_ms(trigger)} milliseconds")
