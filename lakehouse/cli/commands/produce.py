"""`lakehouse produce`: sends sample events to the topics of a stream, or records from a file to any topic.

lakehouse produce metrics --events 100000 --malformed 0.01
lakehouse produce calls --rate 1000 --seconds 60 --one-sided 0.2
lakehouse produce file orders.jsonl --topic orders-topic
"""

from __future__ import annotations

import math
import secrets
import signal
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from typer.core import TyperGroup

from lakehouse.cli.options import EnvelopeOption, grouped
from lakehouse.common.errors import SettingsError
from lakehouse.common.record_lines import Line, RecordFormat, opened, read_lines
from lakehouse.common.terminal import Console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

    from lakehouse.dev.samples import Sample
    from lakehouse.dev.samples.producing import SendingProgress, Summary
    from lakehouse.settings import Settings

_LARGEST_SEED = 2**32

Rate = Annotated[
    float | None, typer.Option(min=0.001, help="Events per second. Default: as fast as possible.")
]

_STREAM = "STREAM"
_SHAPES: Mapping[str, Mapping[str, float]] = {
    "calls": {"one_sided": 0.1},
    "sales": {"tombstones": 0.001},
    "transactions": {"hot_user": 0.0},
}
"""Options that only one stream's samples support, with their defaults."""


class _Streams(TyperGroup):
    """A command group that treats any unknown command as the name of a stream."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the `file` command or, for a stream's name, the command that sends samples to the stream."""
        return super().get_command(ctx, cmd_name) or super().get_command(ctx, _STREAM)


app = typer.Typer(
    cls=_Streams,
    no_args_is_help=True,
    help="Send sample events to a stream's topics: --events N, or --rate R --seconds S, or --events N "
    "--rate R. Or send a file's records: produce file FILE --topic T. The exit code is 1 if an "
    "event could not be delivered, and 130 on Ctrl-C.",
)


@dataclass(frozen=True)
class _Plan:
    """The number of events and their rate per second. A rate of None means as fast as possible."""

    events: int
    rate: float | None


@dataclass(frozen=True)
class _Shape:
    """Options that only one stream's samples support. An option that is not given is None."""

    one_sided: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="calls: share of calls with records in only one of the two topics."),
    ] = None
    tombstones: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="sales: share of tombstones, each of which resets a product's total."
        ),
    ] = None
    hot_user: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="transactions: share of events that belong to one user."),
    ] = None

    def of(self, stream: str) -> Mapping[str, float]:
        """Return a stream's options, with defaults. Raises SettingsError for an option of another stream."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        defaults = _SHAPES.get(stream, {})
        if unknown := [f"--{name.replace('_', '-')}" for name in given if name not in defaults]:
            raise SettingsError(f"{' and '.join(unknown)} cannot be used with samples of {stream}")
        return {**defaults, **given}


@app.command(_STREAM)
@grouped
def stream(
    *,
    context: typer.Context,
    events: Annotated[int | None, typer.Option(min=1, help="How many events to send.")] = None,
    rate: Rate = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.001, help="With --rate, instead of --events: send events for this many seconds."),
    ] = None,
    malformed: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Share of events that break the contract. The possible faults are used in turn.",
        ),
    ] = 0.0,
    late: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Share of events that are late: three in four within the allowed lateness, the others one "
            "to three days beyond it.",
        ),
    ] = 0.0,
    duplicates: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Share of events that are byte-for-byte copies of an earlier event. Original and copy both "
            "count downstream, unless the source has ids.",
        ),
    ] = 0.0,
    span: Annotated[
        float,
        typer.Option(min=0.001, help="Without --rate: spread event times over this many seconds before now."),
    ] = 600.0,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Random seed. The same seed produces the same events, except for their times. Default: a "
            "random seed, which is printed.",
        ),
    ] = None,
    format_: Annotated[
        RecordFormat | None,
        typer.Option(
            "--format",
            help="Record format; its schema is registered. Default: the format that the stream reads.",
        ),
    ] = None,
    shape: _Shape,
) -> None:
    """Send sample events to a stream's topics.

    Events for streams that are not built in are generated from their contracts.
    """
    for option, value in (("--rate", rate), ("--seconds", seconds), ("--span", span)):
        if value is not None and not math.isfinite(value):
            raise SettingsError(f"{option} {value}: expected a finite number")
    plan = _plan(events, rate, seconds)

    from lakehouse.dev.samples.loads import Load, send
    from lakehouse.storage.kafka.probe import require_broker
    from lakehouse.streams.registry import choose, read_settings

    settings = read_settings()
    (chosen,) = choose([str(context.info_name)], settings)
    if format_ is not None:
        chosen = replace(chosen, sources=tuple(replace(one, format=format_) for one in chosen.sources))
    load = Load(
        chosen,
        plan.events,
        rate=plan.rate,
        span_s=span,
        seed=secrets.randbelow(_LARGEST_SEED) if seed is None else seed,
        malformed=malformed,
        late=late,
        duplicates=duplicates,
        shape=shape.of(chosen.name),
    )
    load.samples(settings)  # refuses invalid shares before the broker is contacted
    require_broker(settings.kafka.access)

    _deliver(
        f"{load.events:,} events to {' and '.join(load.topics(settings))}, --seed {load.seed},",
        load.rate,
        load.events,
        lambda on_progress, stop: send(load, settings, on_progress=on_progress, stop=stop),
    )


@app.command(
    epilog="Examples: lakehouse produce file orders.jsonl --topic orders-topic --rate 100; "
    "zcat records.gz | lakehouse produce file - --envelope"
)
def file(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A file of JSON lines, one record each; - is standard input."),
    ],
    *,
    topic: Annotated[
        str | None,
        typer.Option(
            help="The topic for records that name no topic. It must exist unless a stream reads it."
        ),
    ] = None,
    envelope: EnvelopeOption = False,
    rate: Rate = None,
) -> None:
    """Send a file's records to a topic, in order.

    The whole file is read before the first record is sent. Records with the same key or partition keep their
    order in Kafka.
    """
    from lakehouse.dev.samples.loads import encoded, sources_by_topic
    from lakehouse.dev.samples.producing import produce
    from lakehouse.storage.kafka.probe import require_broker
    from lakehouse.storage.kafka.topics import create_topics
    from lakehouse.streams.registry import load as load_streams
    from lakehouse.streams.registry import read_settings

    settings = read_settings()
    with opened(file) as lines:
        records = list(read_lines(lines, file, envelopes=envelope))
    if not records:
        raise SettingsError(f"{file} has no records")
    samples, topics = _samples(records, topic, settings)
    require_broker(settings.kafka.access)
    read = sources_by_topic(settings, load_streams(settings))
    if not envelope:  # values in envelopes may be bytes in any format
        samples = list(encoded(iter(samples), topics, read))
    create_topics(
        settings.kafka.access, {one: settings.kafka.topic_partitions for one in topics if one in read}
    )
    _deliver(
        f"{len(samples):,} records to {' and '.join(topics)}",
        rate,
        len(samples),
        lambda on_progress, stop: produce(
            settings.kafka.access,
            topics,
            samples,
            rate=rate,
            total=len(samples),
            on_progress=on_progress,
            stop=stop,
        ),
        sampled=False,
    )


def _samples(
    lines: Sequence[Line], topic: str | None, settings: Settings
) -> tuple[list[Sample], tuple[str, ...]]:
    """Return the records to send, and the topics that they are sent to."""
    from lakehouse.dev.samples import Sample

    topics: dict[str, int] = {}
    samples = []
    for line in lines:
        record, named = line.record, line.record.topic or topic
        if not named:
            raise SettingsError(f"{line.place} names no topic; expected --topic, or a topic in the envelope")
        if record.timestamp_ms == 0:
            raise SettingsError(
                f"{line.place}: a timestamp_ms of 0 cannot be sent: Kafka's client would replace "
                "it with the current time"
            )
        samples.append(
            Sample(
                record.key,
                record.value,
                "tombstone" if record.value is None else "record",
                topics.setdefault(settings.topic(named), len(topics)),
                record.timestamp_ms or 0,
                -1 if record.partition is None else record.partition,
                list(record.headers),
            )
        )
    return samples, tuple(topics)


def _deliver(
    what: str,
    rate: float | None,
    total: int,
    deliver: Callable[[Callable[[SendingProgress], None], Callable[[], bool]], Summary],
    *,
    sampled: bool = True,
) -> None:
    """Send samples while showing progress, then print the result. Ctrl-C stops sending gracefully."""
    errors = Console(stderr=True)
    errors.print(f"{what} {f'at {rate:,g}/s' if rate else 'as fast as possible'}")
    with _signals() as received, progress_on(errors, total) as on_progress:
        summary = deliver(on_progress, lambda: bool(received))
    print_summary(summary, rate, sampled=sampled)
    if received:
        raise typer.Exit(128 + received[0])
    if summary.failed:
        raise typer.Exit(1)


def _plan(events: int | None, rate: float | None, seconds: float | None) -> _Plan:
    if events is not None and seconds is None:
        return _Plan(events, rate)
    if events is None and rate is not None and seconds is not None:
        return _Plan(max(1, round(rate * seconds)), rate)
    given = {"--events": events, "--rate": rate, "--seconds": seconds}
    named = " and ".join(name for name, value in given.items() if value is not None) or "none"
    raise SettingsError(f"got {named}; expected --events N, or --rate R --seconds S, or --events N --rate R")


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Record the first SIGINT or SIGTERM for a graceful stop. A second signal terminates the process."""
    received: list[int] = []
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def remember(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        restore()

    for number in previous:
        signal.signal(number, remember)
    try:
        yield received
    finally:
        restore()


_LINE_S = 5.0


@contextmanager
def progress_on(console: Console, total: int) -> Iterator[Callable[[SendingProgress], None]]:
    """Yield a function that shows progress: as a bar on a terminal, otherwise as a line every few seconds."""
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]:>9,.0f}/s"),
        TimeRemainingColumn(),
    )
    # The bar is refreshed here, a few times a second, because a refresh thread would slow down sending.
    with Bar(*columns, console=console, auto_refresh=False) as bar:
        task = bar.add_task("", total=total, speed=0.0)

        def show(progress: SendingProgress) -> None:
            speed = progress.sent / progress.elapsed_s
            bar.update(task, completed=progress.sent, speed=speed, refresh=True)

        yield show


def print_summary(summary: Summary, rate: float | None, *, sampled: bool = True) -> None:
    """Print the result of sending as a table. With `sampled`, show fault counts even if they are zero."""
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("sent", f"{summary.sent:,}")
    table.add_row("acknowledged", f"{summary.acknowledged:,}")
    table.add_row("failed", f"{summary.failed:,}")
    table.add_row("duration", f"{summary.duration_s:,.2f} s")
    table.add_row("actual rate", f"{summary.actual_rate:,.1f}/s")
    if rate is not None:
        table.add_row("rate error", f"{100 * (summary.actual_rate / rate - 1):+.3f} %")
    for label, prefix in (
        ("malformed", "malformed:"),
        ("late, within the allowed lateness", "late_within"),
        ("late, beyond it", "late_beyond"),
        ("duplicated", "duplicate"),
        ("tombstones", "tombstone"),
    ):
        counted = sum(count for kind, count in summary.kinds.items() if kind.startswith(prefix))
        if counted or (sampled and prefix != "tombstone"):
            table.add_row(label, f"{counted:,}")
    console = Console()
    console.print(table)
    if summary.first_error is not None:
        console.print(f"first failure: {summary.first_error}")


def _lines(console: Console) -> Callable[[SendingProgress], None]:
    next_line_s = _LINE_S

    def show(progress: SendingProgress) -> None:
        nonlocal next_line_s
        if progress.elapsed_s >= next_line_s:
            next_line_s += _LINE_S
            console.print(
                f"{progress.elapsed_s:.1f} s: sent {progress.sent:,} of {progress.total or 0:,}, "
                f"acknowledged {progress.acknowledged:,}, failed {progress.failed:,}",
            )

    return show
