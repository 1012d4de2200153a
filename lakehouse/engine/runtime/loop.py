"""A stream's loop, which runs the layers in order. Each layer reads its unread rows up to the newest version.

A round runs each step once. The rows that a step commits are passed on in memory. If they are exactly the
input of the next step, that step uses them; otherwise, it reads the tables. The same code therefore runs all
layers in one application, a single layer, a catch-up and a retry. A failed step is discarded and recreated
after a pause, while the steps before and after it continue. If a micro-batch fills the heap, the step retries
with a quarter of the input, and then increases the size again. If individual records make a step fail, the
error names them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime

from py4j.protocol import Py4JError

from lakehouse.common.errors import HeapError, LakehouseError, StreamError
from lakehouse.engine.layers.step import Batch, BatchResult, Blamed, Step, StepMaker
from lakehouse.engine.progress.reading import InMemory
from lakehouse.engine.runtime.signals import Stop
from lakehouse.engine.runtime.troubles import Failure, Troubles
from lakehouse.engine.runtime.watch import Watch
from lakehouse.storage.spark.execution import Amount, execute_for
from lakehouse.storage.spark.query_errors import has_ended, heap_of, is_disk_full, is_heap_full, what_of
from lakehouse.storage.spark.session import activate
from lakehouse.storage.tables import Lake, looking_once

_RETRY_S = 0.05  # seconds between checks for the end of a pause
_SMALLER = 4  # the size of a micro-batch that filled the heap is divided by this
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchDone:
    """A micro-batch that has been written: its step, its table version, its result and the duration.

    `batch` is the table version that was written or exported, or None for periodic work.
    """

    query: str
    batch: int | None
    result: BatchResult
    duration_s: float


OnBatch = Callable[[BatchDone], None]
Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Return the current time, UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Common:
    """The settings and observers that all streams in a run share."""

    on_batch: OnBatch
    clock: Clock
    troubles: Troubles
    watch: Watch
    is_live: bool


class StreamLoop:
    """The steps of one stream, and their Spark session.

    Rounds skip the layers in `held_back`, such as exports that wait for a gate. Not thread-safe.
    """

    def __init__(
        self,
        name: str,
        lake: Lake,
        makers: Sequence[StepMaker],
        common: Common,
        *,
        held_back: Collection[str] = (),
    ) -> None:
        self.name = name
        self._lake = lake
        self._common = common
        self._slots = [_Slot(maker) for maker in makers]
        self._held_back = held_back
        self._filled = [maker.name for maker in makers]
        self._due_until: datetime | None = None

    def round(self) -> bool:
        """Run each step once; return whether any step wrote anything."""
        did = self._go([slot for slot in self._slots if slot.maker.layer not in self._held_back])
        self._common.watch.on_round(self.name)
        return did

    @property
    def will_try_again(self) -> bool:
        """Whether a step has failed and will be retried."""
        troubles = self._common.troubles
        names = (name for slot in self._slots for name in (slot.name, slot.name_by_clock))
        return any(map(troubles.will_be_tried, names))

    def export(self, stop: Stop, *, tries_again: bool) -> None:
        """Run the stream's exports until there is nothing more to send or a stop is requested.

        With `tries_again`, failed exports are also retried.
        """
        exports = [slot for slot in self._slots if slot.maker.layer == "export"]
        troubles = self._common.troubles
        while not stop.requested:
            did = self._go([slot for slot in exports if troubles.is_due(slot.name)])
            if not did and not (tries_again and any(troubles.will_be_tried(slot.name) for slot in exports)):
                return
            time.sleep(0 if did else _RETRY_S)

    def settle(self) -> None:
        """Merge and send rows that are waiting for `merge_every_s`, without reading new records."""
        waiting = [slot for slot in self._slots if slot.step is not None and slot.step.merge_every_s]
        if any(slot.waits for slot in waiting):
            for slot in waiting:
                slot.merged_at = None
            after = [slot for slot in self._slots if slot.maker.layer in ("gold", "export")]
            self._go([slot for slot in after if slot.maker.layer not in self._held_back])

    def close(self) -> None:
        """Close the connections of all steps."""
        for slot in self._slots:
            slot.drop()

    def _go(self, slots: Sequence[_Slot]) -> bool:
        activate(self._lake.spark)
        execute_for(self._lake.spark, Amount.FEW)
        handed, did = dict[str, InMemory](), False
        held = ExitStack()
        try:
            for slot in slots:
                took = self._common.troubles.is_due(slot.name) and self._turn(slot, handed, held)
                did |= took
                has_merged = took and slot.maker.layer == "gold"  # a merge also closes rows that are due
                if self._common.is_live and not has_merged:
                    did |= self._tick(slot)
        finally:
            _let_go(held)
        if not did:  # a catch-up ticks last, because later records may change rows that the clock would close
            ticks = [self._tick(slot) for slot in slots if not self._common.is_live]
            did = any(ticks)
        return did

    def _turn(self, slot: _Slot, handed: dict[str, InMemory], held: ExitStack) -> bool:
        """Run a step on its unread rows; return whether the step wrote anything."""
        common, batch = self._common, None
        try:
            step = slot.step or self._made(slot)
            with looking_once():
                if common.is_live and (self._may_wait(slot, step) or step.is_held()):
                    return False
                began, step.limit = time.monotonic(), slot.limit
                batch = step.plan(handed)
            slot.waits = False
            if batch is None:
                common.troubles.end(slot.name)
                return False
            self._name_jobs(slot, batch)
            planned = time.monotonic()
            passed = held.enter_context(step.write(batch, common.clock()))
            if passed.rows is not None and step.fills is not None:
                handed[step.fills] = passed.rows
            slot.merged_at = began
            self._tell(slot, batch, passed.result, planned - began, time.monotonic() - planned)
        except Exception as failure:  # noqa: BLE001 - reported, and raised at the run's end
            if batch is None or not is_heap_full(failure):
                self._failed(slot, self._explained(slot, failure, batch), batch)
                return False
            return self._take_less(slot, failure, batch)
        slot.grow()
        slot.blamed = None
        common.troubles.end(slot.name)
        return True

    def _take_less(self, slot: _Slot, cause: Exception, batch: Batch) -> bool:
        """Prepare an immediate retry with a smaller micro-batch; return whether a smaller one is possible."""
        where = f"{_where(batch)}: the heap was full ({heap_of(self._lake.spark)})"
        # If a lower limit has not made the micro-batch smaller, it cannot be split. A size slightly above the
        # limit is normal, and does not mean this.
        is_least = slot.limit is not None and slot.limit < slot.too_large <= batch.size
        if batch.size <= 1 or is_least or has_ended(self._lake.spark):
            blamed = self._blamed(slot, batch)
            skip = "" if blamed is None else f", or skip {blamed.records}: {blamed.way_out}"
            error = HeapError(
                f"{slot.name} failed in {where}. The micro-batch cannot be made smaller; give Spark "
                f"more memory{skip}"
            )
            error.__cause__ = cause
            self._failed(slot, error, batch)
            return False
        slot.drop()
        slot.limit, slot.too_large = max(1, batch.size // _SMALLER), batch.size
        self._common.troubles.tell(
            Failure(slot.name, self.name, cause, _where(batch)),
            f"{slot.name} failed in {where}; retrying with a quarter of the input",
        )
        return True

    def _explained(self, slot: _Slot, failure: Exception, batch: Batch | None) -> Exception:
        """Return the failure or, if known, an error that names the records and says how to skip them."""
        if batch is None or isinstance(failure, LakehouseError) or is_disk_full(failure):
            return failure
        blamed = self._blamed(slot, batch)
        if blamed is None:
            return failure
        error = StreamError(
            f"{slot.name} cannot process {blamed.records}: {what_of(failure)}. {blamed.way_out}"
        )
        error.__cause__ = failure
        return error

    def _blamed(self, slot: _Slot, batch: Batch) -> Blamed | None:
        """Find, remember and return the records that make a step fail, or None if they are unknown."""
        if slot.blamed is None and slot.step is not None and not has_ended(self._lake.spark):
            try:
                found = slot.step.blamed(batch)
            except Exception:
                log.debug("the records that make %s fail could not be found", slot.name, exc_info=True)
                return None
            slot.blamed = None if has_ended(self._lake.spark) else found
        return slot.blamed

    def _made(self, slot: _Slot) -> Step:
        """Create a step. In a catch-up, the step reads no further than the current end."""
        if slot.name in self._common.troubles:
            self._common.watch.on_restart(slot.name)
        slot.step = step = slot.maker.make()
        step.passes_on = any(other.maker.layer != slot.maker.layer for other in self._behind(slot))
        if not self._common.is_live:
            step.end_here(self._filled)
        return step

    def _behind(self, slot: _Slot) -> Sequence[_Slot]:
        return self._slots[self._slots.index(slot) + 1 :]

    def _may_wait(self, slot: _Slot, step: Step) -> bool:
        """Return whether a gold table's unread rows may wait in silver a little longer."""
        if not step.merge_every_s or slot.merged_at is None:
            return False
        slot.waits = time.monotonic() - slot.merged_at < step.merge_every_s
        return slot.waits

    def _tick(self, slot: _Slot) -> bool:
        """Do a step's periodic work if it is due; return whether rows were written."""
        common, name = self._common, slot.name_by_clock
        ticker = None if slot.step is None else slot.step.ticker
        if ticker is None or slot.waits or not common.troubles.is_due(name):
            return False
        try:
            now, started = self._now(), time.monotonic()
            if name not in common.troubles and not ticker.is_due(now):
                return False
            result = ticker.tick(now)
            if result.rows:
                common.on_batch(BatchDone(slot.name, None, result, time.monotonic() - started))
        except Exception as failure:  # noqa: BLE001 - reported, and raised at the run's end
            self._failed(slot, failure, None, name)
            return False
        common.troubles.end(name)
        return bool(result.rows)

    def _now(self) -> datetime:
        """Return the time up to which work is due.

        It does not change in a catch-up, so that the catch-up ends.
        """
        if self._common.is_live or self._due_until is None:
            self._due_until = self._common.clock()
        return self._due_until

    def _name_jobs(self, slot: _Slot, batch: Batch) -> None:
        """Name this thread's next Spark jobs `stream/step/micro-batch` in the Spark UI."""
        group = f"{self.name}/{slot.name}/{batch.number}"
        self._lake.spark.sparkContext.setJobGroup(group, f"{group}: {batch.reads}")

    def _tell(
        self, slot: _Slot, batch: Batch, result: BatchResult, planning_s: float, writing_s: float
    ) -> None:
        self._common.on_batch(BatchDone(slot.name, batch.number, result, writing_s))
        phases = {"plan": planning_s, "process": writing_s}
        self._common.watch.on_phases(
            slot.name, {name: round(took_s * 1000) for name, took_s in phases.items()}
        )

    def _failed(self, slot: _Slot, cause: Exception, batch: Batch | None, name: str | None = None) -> None:
        """Record a failure and discard the step; raise the failure if the run cannot continue."""
        slot.drop()
        failure = Failure(name or slot.name, self.name, cause, "" if batch is None else _where(batch))
        if not has_ended(self._lake.spark):
            self._common.troubles.add(failure)
        else:
            self._common.troubles.add_last(failure)
            self._common.troubles.raise_any()


def _where(batch: Batch) -> str:
    return f"micro-batch {batch.number}, which reads {batch.reads}"


def _let_go(held: ExitStack) -> None:
    """Unpersist the rows that were kept in memory, and ignore errors in case Spark has ended."""
    try:
        held.close()
    except (Py4JError, OSError):
        log.debug("rows could not be unpersisted", exc_info=True)


@dataclass
class _Slot:
    """A step and its state in the loop.

    `step` is None before the step is first used, and after a failure. `waits` is true if the step
    deliberately leaves rows in silver (`merge_every_s`). `merged_at` is the time of the last merge, by a
    monotonic clock. `limit` is a lowered limit; None means the limit in the settings. `too_large` is the size
    of the micro-batch that filled the heap. `blamed` names the records that make the step fail, or is None if
    they are unknown.
    """

    maker: StepMaker
    step: Step | None = None
    waits: bool = False
    merged_at: float | None = None
    limit: int | None = None
    too_large: int = 0
    blamed: Blamed | None = None

    @property
    def name(self) -> str:
        return self.maker.name

    @property
    def name_by_clock(self) -> str:
        return f"{self.maker.name} by the clock"

    def grow(self) -> None:
        """Raise a lowered limit by a quarter, or remove it if it would exceed the size that did not fit."""
        if self.limit is not None:
            more = self.limit + max(1, self.limit // _SMALLER)
            self.limit = more if more <= self.too_large else None

    def drop(self) -> None:
        step, self.step = self.step, None
        if step is not None:
            step.close()
