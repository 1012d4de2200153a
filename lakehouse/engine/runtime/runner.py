"""Run the streams' layers in one application, with a loop per stream, until they are caught up or stopped.

A failed step is retried with growing pauses, while the steps before it and other streams' steps continue. The
run ends immediately only if every step fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from lakehouse.engine.layers import LayerName, bronze, export, gold, letters_export, silver
from lakehouse.engine.layers.step import Gate, Permitted, StepMaker
from lakehouse.engine.records.rules import checked_rules
from lakehouse.engine.records.zones import check_zones
from lakehouse.engine.runtime.loop import BatchDone, Clock, Common, OnBatch, StreamLoop, utc_now
from lakehouse.engine.runtime.schedule import Alone, Schedule
from lakehouse.engine.runtime.signals import Stop
from lakehouse.engine.runtime.triggers import check_trigger, interval_ms
from lakehouse.engine.runtime.troubles import RETRIES, Failure, Troubles
from lakehouse.engine.runtime.watch import Watch
from lakehouse.settings import Settings
from lakehouse.storage.spark.session import activate
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Stream

__all__ = ["BatchDone", "RunOptions", "Upkeep", "run", "utc_now"]

_AT_ONCE = 2
"""The maximum number of streams that run concurrently in a live run.

While one stream plans or reads Delta's log, which takes half of each round, another can process rows.
"""


class Upkeep(Protocol):
    """Table maintenance during a live run."""

    def beside(self, alone: Alone, is_quiet: Callable[[], bool], /) -> AbstractContextManager[None]:
        """Return a context in which maintenance runs.

        `alone` returns a context in which no micro-batch runs. `is_quiet` returns whether no rows are
        waiting.
        """


@dataclass(frozen=True)
class RunOptions(Permitted):
    """The options and observers for a run, including the options for its steps (`Permitted`).

    - `trigger` is `available-now`, to catch up and return, or an interval, to run until `stop` is requested.
    - `on_batch` is called after each micro-batch, from several threads.
    - `on_notice` and `watch` are also called when a step fails or recovers.
    - `clock` returns the time, UTC.
    - `gate` decides when a stream may be exported. It is checked after catching up or, with an interval,
      every `gate_interval_s` seconds between two micro-batches, so that only checked rows are sent.
    - `at_once` is the number of streams that catch up concurrently. A larger number is faster if each stream
      has only a few rows.
    - `upkeep` maintains the tables in a run with an interval.
    - `log_file` is the file for tracebacks; messages mention it.
    """

    trigger: str
    on_batch: OnBatch = lambda _done: None
    stop: Stop | None = None
    clock: Clock = utc_now
    gate: Gate | None = None
    gate_interval_s: float = 30
    at_once: int = 1
    watch: Watch | None = None
    upkeep: Upkeep | None = None
    log_file: Path | None = None


def run(
    lake: Lake,
    streams: Sequence[Stream],
    layers: Sequence[LayerName],
    settings: Settings,
    options: RunOptions,
) -> None:
    """Run the streams' layers until they have caught up or are asked to stop.

    Periodic work is done once after catching up or, with an interval, no later than one interval after it is
    due. A rerun continues from the positions in the tables.

    A step that fails or cannot start is retried after increasing pauses (`runtime.troubles`), while the other
    steps continue. If failures remain, the run raises them at its end, or earlier if every step fails. The
    error is a LakehouseError, such as a PositionError if tables and topics do not match, a StreamError that
    names the step, or a SettingsError for a rule that is not a condition on a row, or for a time zone that
    Java does not know.
    """
    check_trigger(options.trigger)
    for stream in streams:
        check_zones(lake.spark, stream)
    if "silver" in layers:
        for source in (source for stream in streams for source in stream.sources):
            checked_rules(source)
    _Run(lake, streams, layers, settings, options).run()


class _Run:
    """One run of the chosen layers for the chosen streams."""

    def __init__(
        self,
        lake: Lake,
        streams: Sequence[Stream],
        layers: Sequence[LayerName],
        settings: Settings,
        options: RunOptions,
    ) -> None:
        interval = interval_ms(options.trigger)
        self._spark = lake.spark
        self._streams = streams
        self._settings = settings
        self._options = options
        self._stop = options.stop or Stop()
        self._gate = options.gate if "export" in layers else None
        lakes = {one.name: replace(lake, spark=lake.spark.newSession()) for one in streams}
        makers = {
            one.name: list(makers_of(lakes[one.name], one, layers, settings, options)) for one in streams
        }
        watch = options.watch or Watch()
        self._troubles = Troubles(
            [maker.name for ones in makers.values() for maker in ones],
            options.on_notice,
            retries=RETRIES if interval is None else None,
            watch=watch,
            log_file=options.log_file,
        )
        common = Common(options.on_batch, options.clock, self._troubles, watch, interval is not None)
        held_back = () if self._gate is None else ("export",)
        self._loops = {
            name: StreamLoop(name, lakes[name], ones, common, held_back=held_back)
            for name, ones in makers.items()
        }
        at_once = options.at_once
        if interval is not None:
            at_once = min(_AT_ONCE, lake.spark.sparkContext.defaultParallelism)
        self._schedule = Schedule(
            list(self._loops.values()),
            self._stop,
            at_once=at_once,
            interval_s=None if interval is None else interval / 1000,
        )
        self._is_live = interval is not None
        self._next_export = time.monotonic() + options.gate_interval_s

    def run(self) -> None:
        try:
            with self._upkeep():
                self._schedule.run(self._meanwhile)
            for loop in self._loops.values() if self._is_live else ():
                loop.settle()
            if self._gate is not None and not self._is_live and not self._stop.requested:
                self._export_open(self._gate)
        finally:
            for loop in self._loops.values():
                loop.close()
        self._troubles.raise_any()

    def _upkeep(self) -> AbstractContextManager[None]:
        upkeep = self._options.upkeep if self._is_live else None
        return (
            nullcontext() if upkeep is None else upkeep.beside(self._schedule.alone, self._schedule.is_quiet)
        )

    def _meanwhile(self) -> None:
        if self._gate is not None and self._is_live and time.monotonic() >= self._next_export:
            self._export_open(self._gate)
            self._next_export = time.monotonic() + self._options.gate_interval_s

    def _export_open(self, gate: Gate) -> None:
        """Export the streams whose gates are open, while no micro-batch writes to gold.

        Each gate is checked twice: first while other streams run, and again while they pause, because rows
        may have arrived in between. In a live run, a failed export is retried later, and the other streams
        continue.
        """
        for stream in self._streams:
            if self._stop.requested or not self._check(stream, gate):
                continue
            with self._schedule.alone():
                if self._check(stream, gate):
                    self._loops[stream.name].export(self._stop, tries_again=not self._is_live)

    def _check(self, stream: Stream, gate: Gate) -> bool:
        name, troubles = f"gate of {stream.name}", self._troubles
        if not troubles.is_due(name):
            return False
        activate(self._spark)  # because an export in this thread has activated its stream's session
        try:
            is_open = gate.check(stream, self._options.clock())
        except Exception as failure:  # noqa: BLE001 - raised at the run's end
            told = Failure(name, stream.name, failure)
            if self._is_live:
                troubles.add(told)
            else:
                troubles.add_last(told)
            return False
        troubles.end(name)
        return is_open


def makers_of(
    lake: Lake, stream: Stream, layers: Sequence[LayerName], settings: Settings, permitted: Permitted
) -> Iterator[StepMaker]:
    """Yield the steps of a stream in the order of a round.

    Each export directly follows the step that fills its table, so that it does not wait for later tables.
    """
    found = {
        "bronze": bronze.steps(lake, stream, settings, permitted),
        "silver": silver.steps(lake, stream, settings.run.max_bytes, permitted),
        "gold": gold.steps(lake, stream, settings.run.max_bytes, permitted.on_notice),
        "export": export.steps(lake, stream, settings, permitted),
    }
    yield from (one for layer in ("bronze", "silver") if layer in layers for one in found[layer])
    if "export" in layers:
        yield from letters_export.steps(lake, stream, settings, permitted)
    exports = iter(found["export"])
    for table, merging in zip(stream.gold, found["gold"], strict=True):
        if "gold" in layers:
            yield merging
        for _ in (table, *table.sides):
            sending = next(exports)
            if "export" in layers:
                yield sending
