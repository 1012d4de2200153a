"""`lakehouse alert`: evaluates alerting rules without Spark, and notifies an alert topic and webhooks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse.cli.options import Format, FormatOption
from lakehouse.common.terminal import Console, echo, echo_json, warn

if TYPE_CHECKING:
    from lakehouse.operations.alerts.evaluating import Notification
    from lakehouse.operations.alerts.rules import Rules
    from lakehouse.operations.alerts.watching import Watcher
    from lakehouse.operations.alerts.webhook import Webhook
    from lakehouse.settings import Settings

app = typer.Typer(add_completion=False)


@app.command()
def alert(
    *,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between evaluations of the rules.")] = 5.0,
    once: Annotated[bool, typer.Option("--once", help="Evaluate once and exit.")] = False,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Print the rules as a Prometheus rules file, and exit.")
    ] = False,
    telemetry_port: Annotated[
        int,
        typer.Option(
            min=-1,
            max=65535,
            help="Serve /metrics and /health on this port (0: any free port; -1: disabled, the default).",
        ),
    ] = -1,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Evaluate the alerting rules until stopped, and send notifications to the alert topic and the webhooks.

    Only one process is active at any time. A second process waits, and takes over if the first one stops.
    `--format json` prints each notification as a line of JSON. /metrics contains the values of metric rules.
    It also contains each stream's lag, even when no job is running.
    """
    from lakehouse.engine.ops_tables.event_table import recorded
    from lakehouse.operations.alerts.prometheus import rules_file
    from lakehouse.operations.alerts.rules import load_rules
    from lakehouse.streams.registry import load, read_settings

    settings = read_settings()
    rules = load_rules(settings.alerts, [stream.name for stream in load(settings)])
    if prometheus:
        echo(*rules_file(rules).rstrip("\n").split("\n"))
        return
    with recorded(settings.lake, "lakehouse alert"):
        _watch(settings, rules, interval, telemetry_port, once=once, as_json=format_ is Format.JSON)


def _watch(
    settings: Settings, rules: Rules, interval: float, port: int, *, once: bool, as_json: bool
) -> None:
    from lakehouse.engine.runtime.runner import utc_now
    from lakehouse.engine.runtime.signals import stopping_here
    from lakehouse.operations.alerts.evaluating import AlertStatus
    from lakehouse.operations.alerts.posting import posting
    from lakehouse.operations.alerts.watching import Watcher, watch
    from lakehouse.operations.alerts.webhook import Webhook
    from lakehouse.operations.alerts.wording import as_message
    from lakehouse.streams.registry import load

    console = Console()

    def show(one: Notification) -> None:
        if as_json:
            echo_json(as_message(one), indent=None)
            return
        word, style = ("FIRES", "red") if one.status is AlertStatus.FIRING else ("resolved", "green")
        line = f"{one.at:%F %T} UTC {one.alert.rule} {word} ({one.alert.severity}): {one.alert.what}"
        console.print(line, style=style, soft_wrap=True)

    with ExitStack() as stack:
        stopping = stack.enter_context(stopping_here()).event
        watched = stack.enter_context(closing(Watcher(settings, load(settings), rules, warn)))
        watched.every_s = interval
        watched.start()
        how, topic = posting(settings), settings.alerts.topic
        webhooks = [
            Webhook(settings.kafka.access, topic, url.get_secret_value(), warn, how=how)
            for url in settings.alerts.webhooks
        ]
        for webhook in webhooks:
            webhook.start()
            stack.callback(webhook.close)
        if not as_json:
            console.print(
                f"{len(rules.rules)} rules; notifications go to topic {settings.alerts.topic} and "
                f"{len(settings.alerts.webhooks)} webhooks; {len(watched.firing)} alerts are firing"
            )
        if port >= 0:
            served = stack.enter_context(_served(watched, webhooks, rules, settings, port))
            warn(f"telemetry at http://{settings.telemetry.host}:{served}/metrics")
        if once:
            for one in watched.look(utc_now()):
                show(one)
        else:
            watch(watched, utc_now, lambda: stopping.wait(interval), show, warn)


def _served(
    watched: Watcher, webhooks: Sequence[Webhook], rules: Rules, settings: Settings, port: int
) -> AbstractContextManager[int]:
    from prometheus_client import CollectorRegistry

    from lakehouse.operations.alerts.beats import BeatCollector, Beats
    from lakehouse.operations.alerts.prometheus import RuleValues
    from lakehouse.operations.alerts.watching import readiness
    from lakehouse.operations.telemetry import ObservationCollector
    from lakehouse.operations.telemetry.server import serving

    registry, beats = CollectorRegistry(), Beats(settings.kafka.access, settings.alerts.topic)
    registry.register(ObservationCollector(watched.observation))
    registry.register(BeatCollector(beats, watched.observation))
    registry.register(RuleValues(rules.rules, lambda: watched.facts))
    return serving(registry, lambda: readiness(watched, webhooks), port, settings.telemetry.host)
