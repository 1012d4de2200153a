"""`lakehouse services up|down|status`: runs Kafka and Redis on a machine that has neither."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from lakehouse.common.state_files import OTHERS
from lakehouse.common.terminal import Console

if TYPE_CHECKING:
    from pathlib import Path

    from lakehouse.dev.services.services import Endpoints, State

NOT_ALL_RUNNING = 3
_COLOURS: dict[State, str] = {"running": "green", "not answering": "yellow", "died": "red", "stopped": "dim"}

app = typer.Typer(
    help="Run a local Kafka broker and Redis, without root or Docker.",
    no_args_is_help=True,
)


@app.command()
def up(
    *,
    kafka_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            help="Kafka's port; the controller and, with --secure, a second listener use the next free "
            "ports. 0 reuses the port of the last run, or picks any free port.",
        ),
    ] = 0,
    redis_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Redis's port; 0 has the same meaning as for --kafka-port.")
    ] = 0,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="Set up the broker with TLS, users and ACLs, now and at every later start. Other commands "
            "find the credentials by themselves; the pipeline's user gets the ACLs that `lakehouse doctor "
            "--rights pipeline` lists.",
        ),
    ] = False,
) -> None:
    """Start Kafka and Redis in the background, wait until both answer, and create the topics of every stream.

    The command is safe to repeat: running services are left alone, and keep their ports. Data and logs are in
    the `home` directory. Both services listen only on 127.0.0.1.
    """
    from lakehouse.dev.services import services
    from lakehouse.dev.services.broker import PIPELINE, PRODUCER
    from lakehouse.operations.doctor.rights import rights_of_pipeline, rights_of_producer
    from lakehouse.settings import services_file
    from lakehouse.settings.redis_url import parse_redis_url
    from lakehouse.storage.kafka.rights import grant
    from lakehouse.storage.kafka.topics import create_topics
    from lakehouse.streams.registry import load, read_settings

    console, settings = _console(), read_settings()
    began = time.monotonic()
    with console.status("starting the local services"):
        endpoints = services.start(
            settings,
            ports=services.Ports(kafka_port, redis_port),
            secure=secure,
            on_progress=lambda message: _say(console, message),
        )
        settings, streams = settings.changed(endpoints.update), load(settings)
        topics = [settings.topic(name) for stream in streams for name in stream.topics]
        admin = services.administrator(settings)
        made = create_topics(
            admin or settings.kafka.access, dict.fromkeys(topics, settings.kafka.topic_partitions)
        )
        if admin is not None:
            grant(admin, PIPELINE, rights_of_pipeline(streams, settings))
            grant(admin, PRODUCER, rights_of_producer(streams, settings))
            password = settings.home / "kafka" / "security" / f"{PRODUCER}.password"
            _say(
                console,
                f"kafka: send events as another user: LAKEHOUSE_KAFKA_SASL_USERNAME={PRODUCER} "
                f"LAKEHOUSE_KAFKA_SASL_PASSWORD_FILE={password} lakehouse produce …",
            )
    if made:
        _say(console, f"topics created: {', '.join(made)}")
    redis = parse_redis_url(endpoints.redis).address
    _say(console, f"Kafka at {endpoints.kafka}, Redis at {redis} ({time.monotonic() - began:.1f} s)")
    _say(console, f"Redis has a password; its URL is in {services_file(settings.home)}")
    _warn_of_readers(console, settings.home)
    _warn_of_overrides(console, endpoints)


@app.command()
def down() -> None:
    """Stop Kafka and Redis. The next `up` uses the same data.

    The command is safe to repeat. A service that does not stop by itself is killed after 20 seconds.
    """
    from lakehouse.dev.services import services
    from lakehouse.streams.registry import read_settings

    console = _console()
    with console.status("stopping the local services"):
        stopped = services.stop(read_settings(), on_progress=lambda message: _say(console, message))
    if not stopped:
        _say(console, "nothing was running")


@app.command()
def status() -> None:
    """Show the services with their state and addresses. The exit code is 3 unless all of them are running."""
    from lakehouse.dev.services import services
    from lakehouse.streams.registry import read_settings

    console = _console()
    found = services.status(read_settings())
    table = Table(box=None, pad_edge=False)
    for heading in ("service", "state", "pid", "endpoint"):
        table.add_column(heading, no_wrap=True)
    table.add_column("data", overflow="fold")
    for one in found:
        state = Text(one.state, style=_COLOURS[one.state])
        table.add_row(one.name, state, str(one.pid or "-"), one.endpoint or "-", str(one.data))
    console.print(table)
    for one in found:
        if one.state in {"died", "not answering"}:
            _say(console, f"{one.name}: see {one.log}")
    if any(one.state != "running" for one in found):
        raise typer.Exit(NOT_ALL_RUNNING)


def _console() -> Console:
    return Console()  # one per command, so that it writes to the current stdout


def _say(console: Console, message: str) -> None:
    console.print(message, soft_wrap=True)


def _warn_of_readers(console: Console, home: Path) -> None:
    """Warn if other users can read the home directory, for example because an old version created it."""
    if home.stat().st_mode & OTHERS:
        _say(
            console,
            f"note: other users of this machine can read {home}, including the tables; chmod 700 prevents "
            "that",
        )


def _warn_of_overrides(console: Console, endpoints: Endpoints) -> None:
    """Warn if the settings make other commands use different services."""
    from lakehouse.streams.registry import read_settings

    settings = read_settings()
    if settings.kafka.bootstrap_servers != endpoints.kafka:
        _say(
            console,
            f"note: other commands use a different broker, {settings.kafka.bootstrap_servers}, because "
            "kafka.bootstrap_servers is set in the environment or in lakehouse.toml",
        )
    if settings.redis.url.get_secret_value() != endpoints.redis:
        _say(
            console,
            "note: other commands use a different Redis, because redis.url is set in the environment or in "
            "lakehouse.toml",
        )
