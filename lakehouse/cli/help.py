"""Shared parts of the help: command groups, examples, exit codes, environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import typer

PARTS: Mapping[str, Sequence[str]] = {
    "Try it": ("demo", "try", "new", "contract"),
    "Run it": ("run", "services", "produce", "setup"),
    "Query it": ("sql", "serve", "tokens", "sync-names"),
    "Watch it": ("status", "doctor", "events", "alert", "audit", "expect"),
    "Mend it": ("dead-letters", "rebuild", "maintain", "copy"),
}
EXAMPLES: Mapping[str, Sequence[str]] = {
    "demo": ("lakehouse demo --serve",),
    "try": (
        "lakehouse try transactions records.jsonl",
        "lakehouse try sales - --format json < records.jsonl",
    ),
    "new": ("lakehouse new stream payments --kind windowed-sums --sample card-payments=records.jsonl",),
    "contract": (
        "lakehouse contract export metrics --format avro",
        "lakehouse contract check metrics --against registry",
    ),
    "run": (
        "lakehouse run all",
        "lakehouse run all --stream sales --gate --telemetry-port 9464",
        "lakehouse run gold --trigger available-now",
    ),
    "services": ("lakehouse services up", "lakehouse services down"),
    "produce": ("lakehouse produce sales --rate 1000 --seconds 60",),
    "setup": ("lakehouse setup --s3",),
    "sql": (
        'lakehouse sql "SELECT * FROM gold.product_sales ORDER BY total DESC LIMIT 10"',
        'lakehouse sql "SELECT count(*) FROM silver.dead_letters" --engine duckdb --format json',
    ),
    "serve": ("lakehouse serve", "lakehouse serve --host 0.0.0.0 --tls-cert server.pem --tls-key server.key"),
    "tokens": ("lakehouse tokens add dashboard --scope read",),
    "sync-names": ("lakehouse sync-names",),
    "status": ("lakehouse status --once", "lakehouse status --exit-code --format json"),
    "doctor": ("lakehouse doctor --format json", "lakehouse doctor --rights pipeline --user etl"),
    "events": ("lakehouse events --kind failure --since 1d",),
    "alert": ("lakehouse alert",),
    "audit": ("lakehouse audit",),
    "expect": ("lakehouse expect gold", "lakehouse expect gold.metrics_1m --since 1h"),
    "dead-letters": (
        "lakehouse dead-letters list --stream sales",
        "lakehouse dead-letters replay --stream sales",
    ),
    "rebuild": ("lakehouse rebuild gold --stream sales",),
    "maintain": ("lakehouse maintain",),
    "copy": ("lakehouse copy --to /backup/lake",),
}
EPILOG = (
    "Exit codes: 0 success; 1 failure, or a check found a problem; 2 wrong usage or setting, and for expect, "
    "an expectation could not be evaluated; 3 for run: caught up, but too many records were refused, and for "
    "services status: not all run; 130 interrupted."
    "\n\n"
    "Environment: each setting is a variable, such as LAKEHOUSE_HOME, LAKEHOUSE_LAKE, "
    "LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS and LAKEHOUSE_REDIS_URL; docs/settings.md lists all."
    "\n\n"
    "Completion: lakehouse --install-completion, then open a new shell."
)


def part_of(name: str) -> str:
    """Return the title of the help panel that lists a command."""
    return next(part for part, names in PARTS.items() if name in names)


def examples_of(name: str) -> str:
    """Return the end of a command's help: its examples, one paragraph each, as typer requires."""
    return "\n\n".join(("Examples:", *(f"  {one}" for one in EXAMPLES[name])))


def arrange(commands: typer.Typer) -> None:
    """Assign help panels and examples to the top-level commands."""
    for command in commands.registered_commands:
        own = command.name or (command.callback.__name__ if command.callback else "")
        command.rich_help_panel, command.epilog = part_of(own), examples_of(own)
