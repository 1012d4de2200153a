"""A Spark application that runs layers: what `lakehouse run` and the spark-submit jobs have in common."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from rich.console import Console

from lakehouse.errors import LakehouseError
from lakehouse.layer import LAYERS, LayerName
from lakehouse.local.redis_server import require_redis
from lakehouse.runner import AVAILABLE_NOW, BatchDone, check_trigger, run, stopping_on_signals
from lakehouse.session import start_session
from lakehouse.settings import Settings, load_settings
from lakehouse.streams import choose
from lakehouse.topics import create_topics, require_broker

INTERRUPTED = 130

StreamOption = Annotated[list[str] | None, typer.Option(help="Only this stream; may be given again.")]
TriggerOption = Annotated[
    str, typer.Option(help='available-now (catch up and stop) or an interval such as "1 second".')
]


def run_layers(
    settings: Settings,
    layers: Sequence[LayerName],
    stream_names: Sequence[str],
    trigger: str,
    console: Console,
) -> None:
    """Run the layers of the named streams (none: all) with a line on the console for every micro-batch.

    Returns after catching up, or after SIGTERM or Ctrl-C once the micro-batch is finished. Raises
    LakehouseError for what a user can mend.
    """
    streams = choose(stream_names)
    check_trigger(trigger)
    if {"bronze", "export"} & set(layers):
        require_broker(settings.kafka_bootstrap_servers)
        topics = (settings.topic(name) for stream in streams for name in stream.topics)
        create_topics(settings.kafka_bootstrap_servers, dict.fromkeys(topics, settings.topic_partitions))
    if "export" in layers:
        require_redis(settings.redis_url.get_secret_value())
    named = "all layers" if len(layers) == len(LAYERS) else ", ".join(layers)
    console.print(
        f"{named} of {', '.join(stream.name for stream in streams)}, trigger {trigger}, lake {settings.lake}"
    )
    with start_session(settings, f"lakehouse {named}") as spark, stopping_on_signals(spark) as stop:
        if trigger != AVAILABLE_NOW:
            console.print("running; Ctrl-C finishes the micro-batch and leaves")
        run(spark, streams, layers, settings, trigger=trigger, on_batch=batch_line(console), stop=stop)
        console.print("stopped" if stop.requested else "caught up")


def batch_line(console: Console) -> Callable[[BatchDone], None]:
    """Return a callback that prints a micro-batch as one line."""

    def show(done: BatchDone) -> None:
        became = ", ".join(f"{count:,} {name}" for name, count in done.result.written.items())
        what = "by the clock" if done.batch is None else f"batch {done.batch}"
        console.print(
            f"{done.query} {what}: {done.result.rows:,} rows, {done.duration_s:.1f} s: {became}",
            highlight=False,
            soft_wrap=True,
        )

    return show


def job(layer: LayerName) -> None:
    """Be the spark-submit job of one layer: parse the arguments, run it, exit with its code."""

    def main(
        stream: StreamOption = None,
        trigger: TriggerOption = "1 second",
    ) -> None:
        run_layers(load_settings(), [layer], stream or [], trigger, Console())

    main.__doc__ = f"Run the {layer} layer until stopped or caught up."
    app = typer.Typer(add_completion=False)
    app.command()(main)
    exit_with(app)


def exit_with(app: typer.Typer) -> None:
    """Run a command line; a LakehouseError becomes one line on standard error and its exit code."""
    try:
        app()
    except LakehouseError as error:
        Console(stderr=True, soft_wrap=True).print(
            f"error: {error}", style="red", markup=False, highlight=False
        )
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
