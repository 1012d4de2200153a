"""Runs layers: their queries take turns in one application and stop between two micro-batches.

With `available-now` the layers run one after the other, each until it has caught up, with as many concurrent
micro-batches as the run is given. With an interval all queries stay up and one micro-batch runs at a time.
Turns are granted in the order of requests.

A query that fails goes down alone. It is made again and restarted after a pause. The run ends at once when no
stream is left whose queries are all well, so a run of one stream ends at its first failure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from lakehouse.layers import bronze, export, gold, silver
from lakehouse.layers.query import LAYERS, Allow, Gate, LayerName, QueryMaker
from lakehouse.runtime.groups import Alone, BatchDone, Clock, Common, Group, OnBatch, Upkeep, utc_now
from lakehouse.runtime.guards import Guards
from lakehouse.runtime.signals import Stop
from lakehouse.runtime.triggers import AVAILABLE_NOW, check_trigger
from lakehouse.runtime.trips import TripGroup
from lakehouse.runtime.troubles import RETRIES, Troubles
from lakehouse.runtime.watch import Watch
from lakehouse.settings import Settings
from lakehouse.stream import Stream
from lakehouse.tables import Lake

__all__ = ["BatchDone", "RunOptions", "run", "utc_now"]

_MODULES = {"bronze": bronze, "silver": silver, "gold": gold, "export": export}


@dataclass(frozen=True)
class RunOptions:
    """How a run works, and whom it tells.

    - `trigger`: `available-now` catches up and returns; an interval runs until `stop` is requested.
    - `on_batch` is called after each micro-batch, from several threads if `at_once` is above 1.
    - `on_notice` gets a line when a guard lets something through, when a query restarts because a table's
      schema has changed, and when something fails or recovers. `watch` hears of failures and recoveries, too.
    - `clock` returns the time, UTC.
    - `allow` lists what the guards do not refuse.
    - `gate`: a stream is exported only while its gate is open. It is asked after catching up or, with an
      interval, every `gate_interval_s` between two micro-batches, so that only checked rows are sent.
    - `at_once`: how many micro-batches of a layer run concurrently while catching up; helps if rows are few.
    - `upkeep` looks after the tables in a run with an interval.
    - `trips`: all layers run, and new records go through all of them at once (`lakehouse.layers.trip`).
    """

    trigger: str
    on_batch: OnBatch = lambda _done: None
    on_notice: Callable[[str], None] = lambda _text: None
    stop: Stop | None = None
    clock: Clock = utc_now
    allow: Collection[Allow] = ()
    gate: Gate | None = None
    at_once: int = 1
    watch: Watch | None = None
    upkeep: Upkeep | None = None
    trips: bool = False


def run(
    lake: Lake,
    streams: Sequence[Stream],
    layers: Sequence[LayerName],
    settings: Settings,
    options: RunOptions,
) -> None:
    """Run the layers of the streams until they have caught up or are asked to stop.

    What the wall clock makes due is done once after catching up; with an interval, within one trigger of its
    time.

    A query that fails, or whose start is refused, is retried with a growing pause (`runtime.troubles`) while
    the others continue. A rerun continues from the last run's checkpoints. After all queries have stopped,
    raises what still fails, and what failed when no stream was left without a failure. That is a
    LakehouseError, such as a CheckpointError if a checkpoint, its tables and its topic do not belong together
    (`lakehouse.runtime.guards`), or else a StreamError that names the query.
    """
    check_trigger(options.trigger)
    common = _common(lake, streams, settings, options)
    _run(common, streams, layers, options)
    common.troubles.raise_any()


def _run(common: Common, streams: Sequence[Stream], layers: Sequence[LayerName], options: RunOptions) -> None:
    ordered = [layer for layer in LAYERS if layer in layers]
    gated = options.gate if "export" in ordered else None
    if gated is not None:
        ordered.remove("export")
        common = replace(common, export=lambda alone: _export_open(common, streams, gated, alone))
    left = list(streams)
    if options.trips:
        by_layer = {layer: list(_makers(common, streams, [layer])) for layer in ordered}
        group = TripGroup(common, by_layer)
        group.run()
        behind = frozenset() if common.is_live else group.left_behind()
        left = [stream for stream in streams if stream.name in behind]
        ordered = ordered[1:] if left else []
    groups = [ordered] if common.is_live else [[layer] for layer in ordered]
    for together in groups:
        if not common.stop.requested:
            Group(common, _makers(common, left, together)).run()
    if not common.is_live and common.export is not None and not common.stop.requested:
        common.export(nullcontext)


def _common(lake: Lake, streams: Sequence[Stream], settings: Settings, options: RunOptions) -> Common:
    watch = options.watch or Watch()
    retries = RETRIES if options.trigger == AVAILABLE_NOW else None
    names = [stream.name for stream in streams]
    return Common(
        lake,
        settings,
        options.trigger,
        options.on_batch,
        options.clock,
        Guards(lake, settings, options.allow, options.on_notice),
        options.at_once,
        options.stop or Stop(),
        Troubles(names, options.on_notice, retries=retries, watch=watch),
        watch,
        upkeep=options.upkeep,
    )


def _makers(common: Common, streams: Sequence[Stream], layers: Sequence[LayerName]) -> Iterator[QueryMaker]:
    for layer in layers:
        for stream in streams:
            yield from _MODULES[layer].queries(common.lake, stream, common.settings)


def _export_open(common: Common, streams: Sequence[Stream], gate: Gate, alone: Alone) -> None:
    """Export the streams whose gates are open; nothing else writes gold while `alone`.

    The gate looks at most of the rows before that, and at newer ones again while alone. In a live run, a
    failure waits for a later round, so that the others get their turns.
    """
    round_ = replace(common, trigger=AVAILABLE_NOW, export=None)
    for stream in streams:
        if common.stop.requested or not _is_open(common, stream, gate):
            continue
        with alone():
            if _is_open(common, stream, gate):
                makers = _makers(round_, [stream], ["export"])
                due = [maker for maker in makers if common.troubles.is_due(maker.name)]
                Group(round_, due, tries_again=not common.is_live).run()


def _is_open(common: Common, stream: Stream, gate: Gate) -> bool:
    name, troubles = f"gate of {stream.name}", common.troubles
    if not troubles.is_due(name):
        return False
    try:
        is_open = gate.is_open(stream, common.clock())
    except Exception as failure:  # noqa: BLE001 - raised by the run's end
        if common.is_live:
            common.note(name, stream.name, failure)
        else:
            troubles.add_last(name, stream.name, failure)
        return False
    troubles.is_over(name)
    return is_open
