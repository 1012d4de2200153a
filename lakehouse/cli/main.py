"""The `lakehouse` command line, with all commands and their help."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Annotated

import typer

from lakehouse.cli.commands import (
    alert,
    audit,
    contract,
    copy,
    dead_letters,
    demo,
    doctor,
    erase,
    events,
    expect,
    find,
    maintain,
    new,
    produce,
    rebuild,
    run,
    serve,
    services,
    settings,
    setup,
    sql,
    status,
    sync_names,
    tokens,
    try_stream,
)
from lakehouse.cli.jobs import exit_with
from lakehouse.common.extras import code_version
from lakehouse.common.terminal import echo

COMMANDS: Mapping[str, Mapping[str, tuple[typer.Typer, *tuple[str, ...]]]] = {
    "Try it": {
        "demo": (demo.app, "lakehouse demo --serve"),
        "try": (
            try_stream.app,
            "lakehouse try transactions records.jsonl",
            "lakehouse try sales - --format json < records.jsonl",
        ),
        "new": (
            new.app,
            "lakehouse new stream payments --kind windowed-sums --sample card-payments=records.jsonl",
        ),
        "contract": (
            contract.app,
            "lakehouse contract export metrics --format avro",
            "lakehouse contract check metrics --against registry",
        ),
    },
    "Run it": {
        "run": (
            run.app,
            "lakehouse run all",
            "lakehouse run all --stream sales --gate --telemetry-port 9464",
            "lakehouse run gold --trigger available-now",
        ),
        "services": (services.app, "lakehouse services up", "lakehouse services down"),
        "produce": (produce.app, "lakehouse produce sales --rate 1000 --seconds 60"),
        "setup": (setup.app, "lakehouse setup --s3"),
    },
    "Query it": {
        "sql": (
            sql.app,
            'lakehouse sql "SELECT * FROM gold.product_sales ORDER BY total DESC LIMIT 10"',
            'lakehouse sql "SELECT count(*) FROM silver.dead_letters" --engine duckdb --format json',
        ),
        "serve": (
            serve.app,
            "lakehouse serve",
            "lakehouse serve --host 0.0.0.0 --tls-cert server.pem --tls-key server.key",
        ),
        "tokens": (tokens.app, "lakehouse tokens add dashboard --scope read"),
        "sync-names": (sync_names.app, "lakehouse sync-names"),
    },
    "Watch it": {
        "status": (
            status.app,
            "lakehouse status",
            "lakehouse status --once --steps",
            "lakehouse status --exit-code --format json",
        ),
        "find": (
            find.app,
            "lakehouse find transactions-topic/0/17",
            "lakehouse find --id payment-4711 --format json",
        ),
        "doctor": (
            doctor.app,
            "lakehouse doctor --format json",
            "lakehouse doctor --rights pipeline --user etl",
        ),
        "settings": (settings.app, "lakehouse settings --format json", "lakehouse settings init"),
        "events": (events.app, "lakehouse events --kind failure --since 1d"),
        "alert": (alert.app, "lakehouse alert"),
        "audit": (audit.app, "lakehouse audit"),
        "expect": (expect.app, "lakehouse expect gold", "lakehouse expect gold.metrics_1m --since 1h"),
    },
    "Repair it": {
        "dead-letters": (
            dead_letters.app,
            "lakehouse dead-letters list --stream sales",
            "lakehouse dead-letters replay --stream sales",
        ),
        "rebuild": (rebuild.app, "lakehouse rebuild gold --stream sales"),
        "maintain": (maintain.app, "lakehouse maintain"),
        "erase": (
            erase.app,
            "lakehouse erase verify --subject ids.txt",
            "lakehouse erase verify --subject - --place lake --format json < ids.txt",
        ),
        "copy": (copy.app, "lakehouse copy --to /backup/lake"),
    },
}
"""Commands and command groups, keyed by help panel and name, each with examples."""
EPILOG = (
    "Exit codes: 0 success; 1 failure, or a check found a problem; 2 wrong usage or setting, or (expect) an "
    "expectation could not be evaluated; 3 (run) too many records were refused, or (services status) a "
    "service is not running; 130 interrupted."
    "\n\n"
    "Settings: keys of lakehouse.toml, such as home, lake, kafka.bootstrap_servers and redis.url. An "
    "environment variable such as LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS overrides its key. `lakehouse settings` "
    "lists all of them."
    "\n\n"
    "Completion: lakehouse --install-completion, then open a new shell."
)
app = typer.Typer(
    name="lakehouse",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    epilog=EPILOG,
)


for _panel, _named in COMMANDS.items():
    for _name, (_group, *_examples) in _named.items():
        _epilog = "\n\n".join(
            ("Examples:", *(f"  {one}" for one in _examples))
        )  # paragraphs, as typer requires
        if len(_group.registered_commands) == 1 and _group.registered_callback is None:
            (_command,) = _group.registered_commands
            _command.rich_help_panel, _command.epilog = _panel, _epilog
            app.add_typer(_group)
        else:
            app.add_typer(_group, name=_name, rich_help_panel=_panel, epilog=_epilog)


def _say_version(*, wanted: bool) -> None:
    if wanted:
        from lakehouse.storage.spark import java

        parts = {"Spark": "pyspark", "Delta": "delta-spark"}
        versions = [f"{part} {metadata.version(package)}" for part, package in parts.items()]
        versions.append(f"Java {java.version() or 'missing'}")
        echo(f"lakehouse {code_version()} ({', '.join(versions)})")
        raise typer.Exit


@app.callback()
def lakehouse(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_say_version,
            is_eager=True,
            help="Print the versions of lakehouse, Spark, Delta and Java.",
        ),
    ] = False,
) -> None:
    """Turn Kafka event streams into exact, continuously merged Delta tables for SQL."""


def main() -> None:
    """Run the `lakehouse` command, and exit with its code."""
    exit_with(app)
