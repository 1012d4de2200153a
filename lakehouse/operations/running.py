"""Run layers, and handle their output, telemetry, upkeep, standby and exit status."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial

from lakehouse.common.errors import RefusedError, SettingsError
from lakehouse.common.events import Kind, note
from lakehouse.common.extras import needed
from lakehouse.engine.layers import LAYERS, LayerName
from lakehouse.engine.layers.step import Gate
from lakehouse.engine.ops_tables.event_table import recorded
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.engine.runtime.preconditions import (
    few_wait,
    labels_of_services,
    require_services,
    warn_of_services,
)
from lakehouse.engine.runtime.refusals import RefusalCounts, warning
from lakehouse.engine.runtime.runner import BatchDone, RunOptions, Upkeep, run, utc_now
from lakehouse.engine.runtime.signals import Stop, stopping_on_signals
from lakehouse.engine.runtime.standby import Doing, take_turns
from lakehouse.engine.runtime.tracebacks import logged
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW, check_trigger
from lakehouse.engine.runtime.warm_up import warm_up
from lakehouse.engine.runtime.watch import Watches, unraised
from lakehouse.operations.alerts.beats import BeatCollector, Beats
from lakehouse.operations.catalog.metastore_names import registering
from lakehouse.operations.copies.marker import refuse_copy
from lakehouse.operations.lines import Lines
from lakehouse.operations.maintenance.rounds import Rounds
from lakehouse.operations.maintenance.upkeep import tasks
from lakehouse.operations.telemetry import ObservationCollector, Observer
from lakehouse.operations.telemetry.consumer_groups import committing
from lakehouse.operations.telemetry.driver import DriverMetrics
from lakehouse.operations.telemetry.history import recording
from lakehouse.operations.telemetry.queries import streams_by_query
from lakehouse.operations.telemetry.runs import Heartbeat, beating
from lakehouse.operations.telemetry.server import serving
from lakehouse.settings import Settings
from lakehouse.sinks.registry import labels
from lakehouse.storage.spark.session import activate, is_small
from lakehouse.storage.tables import Lake, open_lake
from lakehouse.streams.definition import Stream


def run_layers(
    settings: Settings,
    layers: Sequence[LayerName],
    streams: Sequence[Stream],
    options: RunOptions,
    lines: Lines,
    *,
    gated_by: Sequence[Stream] = (),
    standby: bool = False,
    verbose: bool = False,
) -> None:
    """Run the streams' layers, and report the startup phases and every micro-batch to `lines`.

    The caller sets `trigger`, `allow`, `skip` and `is_backfill`; this function sets the other options. With
    `gated_by` (all streams in the lake), gold is exported only while it meets its expectations. With
    `standby`, the run warms up, then waits while another standby run with the same layers and streams is
    active. With `verbose`, tracebacks are printed as well as logged.

    With trigger `AVAILABLE_NOW`, returns after catching up. After SIGTERM or Ctrl-C, returns once the current
    micro-batch is finished. A failed step is reported on one line and retried while other steps continue.
    Starts, stops and failures are recorded in ops.events. Raises LakehouseError for steps that still fail at
    the end, and for errors that a user can fix. For example, RefusedError is raised after catching up if
    silver has refused too many records.
    """
    trigger, named = options.trigger, _named(layers)
    _check(layers, options, standby=standby)
    is_live = trigger != AVAILABLE_NOW
    with recorded(settings.lake, f"lakehouse {named}"), ExitStack() as run_:
        without = _connect(settings, layers, streams, lines)
        observer = run_.enter_context(closing(Observer(streams, settings)))
        run_.enter_context(lines.following(streams_by_query(streams), observer.latest))
        said = ", ".join(stream.name for stream in streams)
        how = f"trigger {trigger}{', backfill' if options.is_backfill else ''}"
        lines.say(f"{named} of {said}, {how}, lake {settings.lake}")
        brief = not is_live and is_small(settings.lake) and few_wait(settings, streams, layers)
        lines.wait("starting Spark")
        lake = run_.enter_context(open_lake(settings, f"lakehouse {named}", brief=brief))
        if not options.adopts:
            refuse_copy(lake)
        stop = run_.enter_context(stopping_on_signals(lake.spark))
        warn_of_services(settings, streams, layers, without, lines.notice)
        metrics, served = run_.enter_context(_telemetry(streams, settings, observer, lines))
        log_file = run_.enter_context(logged(settings.home, verbose=verbose))
        refusals = RefusalCounts(
            streams,
            lake.path(DEAD_LETTERS.layer, DEAD_LETTERS.name),
            settings.run.refused_limit,
            lines.notice,
            is_live=is_live,
        )
        options = replace(
            options,
            log_file=log_file,
            on_notice=unraised(lines.notice),
            gate=_gate(lake, gated_by, settings, lines.notice) if gated_by else None,
            at_once=2 if brief else 1,  # one step can plan while another reads or writes
            upkeep=_upkeep(lake, streams, settings, lines.notice),
        )

        def work(stop: Stop) -> None:
            with ExitStack() as turn:
                turn.enter_context(noted_run(streams, layers, trigger, stop))
                if is_live:
                    lines.say("running; Ctrl-C stops after the current micro-batch")
                if is_live and settings.metastore:
                    turn.enter_context(registering(lake, streams, settings.metastore, lines.notice))
                if "bronze" in layers:
                    turn.enter_context(committing(streams, settings, lines.notice))
                heartbeat = Heartbeat(layers, [stream.name for stream in streams], served)
                turn.enter_context(beating(heartbeat, settings.home, lines.notice))
                if is_live:
                    turn.enter_context(recording(settings.lake, observer.latest, lines.notice))
                told = (lines.batch, metrics.on_batch, heartbeat.on_batch, refusals.on_batch)
                observers = [unraised(one) for one in told]

                def on_batch(done: BatchDone) -> None:
                    for tell in observers:
                        tell(done)

                watch = Watches([metrics, heartbeat, lines])
                lines.wait("creating tables")
                run(
                    lake,
                    streams,
                    layers,
                    settings,
                    replace(options, stop=stop, on_batch=on_batch, watch=watch),
                )

        if standby:
            warm = partial(_warm_up, lake, streams, settings, stop, lines)
            doing = Doing(work, warm, lines.say)
            take_turns(lake, {*layers, *(stream.name for stream in streams)}, stop, doing)
        else:
            work(stop)
        activate(lake.spark)
        _conclude(refusals, lines, stop, may_refuse=not (is_live or options.adopts))


def _connect(
    settings: Settings, layers: Sequence[LayerName], streams: Sequence[Stream], lines: Lines
) -> list[str]:
    """Check the services that the layers need, and return the missing permissions (`require_services`)."""
    if labels := labels_of_services(settings, layers, streams):
        lines.wait(f"connecting to {', '.join(labels)}")
    return require_services(settings, layers, streams)


def _warm_up(lake: Lake, streams: Sequence[Stream], settings: Settings, stop: Stop, lines: Lines) -> None:
    lines.wait("warming up")
    warm_up(lake, streams, settings, stop)
    lines.wait(None)
    lines.say("warmed up")


def _conclude(refusals: RefusalCounts, lines: Lines, stop: Stop, *, may_refuse: bool) -> None:
    """Report which records the run refused, and how it ended.

    With `may_refuse`, raises RefusedError if the run has caught up but refused more records than allowed by
    the settings.
    """
    too_much = []
    for stream, one in refusals.ended():
        lines.say(str(one))
        for cause in one.causes:
            lines.say(f"  {cause}")
        if one.is_over:
            too_much.append(warning(stream, one, "in this run"))
    lines.say("stopped" if stop.requested else "caught up")
    if too_much and may_refuse and not stop.requested:
        raise RefusedError("; ".join(too_much))


def _check(layers: Sequence[LayerName], options: RunOptions, *, standby: bool) -> None:
    """Raise SettingsError for an invalid trigger, and for options that have no effect in this run."""
    trigger = options.trigger
    check_trigger(trigger)
    if standby and trigger == AVAILABLE_NOW:
        raise SettingsError(f"--standby is for live runs: omit it with --trigger {trigger}")
    if options.skip and not {"bronze", "silver"} & set(layers):
        raise SettingsError(
            "--skip applies to records that bronze reads or silver validates: use it with one of these "
            "layers, or with all layers"
        )
    if options.is_backfill and "silver" not in layers:
        raise SettingsError(
            "--backfill changes how silver validates records: use it with silver, or with all layers"
        )


@contextmanager
def _telemetry(
    streams: Sequence[Stream], settings: Settings, observer: Observer, lines: Lines
) -> Iterator[tuple[DriverMetrics, int | None]]:
    """Serve the run's metrics during the block. Yield the metrics, and the port (None if telemetry is off).

    The port also serves metrics about the streams' backlogs, and about whether alerts are evaluated.
    """
    metrics, port = DriverMetrics(streams, labels(settings)), settings.telemetry.port
    if port < 0:
        yield metrics, None
        return
    metrics.registry.register(ObservationCollector(observer.latest))
    beats = Beats(settings.kafka.access, settings.alerts.topic)
    metrics.registry.register(BeatCollector(beats, observer.latest))
    with serving(metrics.registry, metrics.readiness, port, settings.telemetry.host) as served:
        lines.notice(f"telemetry at http://{settings.telemetry.host}:{served}/metrics")
        yield metrics, served


@contextmanager
def noted_run(
    streams: Sequence[Stream], layers: Sequence[LayerName], trigger: str, stop: Stop
) -> Iterator[None]:
    """Record when each stream's layers start and stop, and how the run ended."""

    def note_each(kind: Kind, text: str, ended: str | None = None) -> None:
        how = {"layers": list(layers), "trigger": trigger} | ({} if ended is None else {"ended": ended})
        for stream in streams:
            one = layers[0] if len(layers) == 1 else None
            note(kind, text, stream=stream.name, layer=one, details=how)

    named = _named(layers)
    note_each(Kind.START, f"{named} started, trigger {trigger}")
    ended = "failed"
    try:
        yield
        ended = "stopped" if stop.requested else "caught up"
    finally:
        note_each(Kind.STOP, f"{named} {ended}", ended)


def _named(layers: Sequence[LayerName]) -> str:
    return "all layers" if len(layers) == len(LAYERS) else ", ".join(layers)


def _upkeep(
    lake: Lake, streams: Sequence[Stream], settings: Settings, on_notice: Callable[[str], None]
) -> Upkeep | None:
    every_s = settings.maintenance.every_s
    if every_s is None:  # maintenance is off
        return None
    every = timedelta(seconds=every_s)
    todo = tasks(streams, settings)
    return Rounds(lake, todo, settings, every=every, clock=utc_now, on_notice=on_notice)


def _gate(
    lake: Lake, streams: Sequence[Stream], settings: Settings, on_notice: Callable[[str], None]
) -> Gate:
    with needed("expect", "--gate"):
        from lakehouse.operations.quality.gate import SuiteGate  # slow, so only gated runs import it

    return SuiteGate(lake, streams, settings, on_notice)
