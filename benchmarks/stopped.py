"""Stop silver for a minute under load, and show which monitors report the failure and its end, and when.

python -m benchmarks.stopped --rate 500 --seconds 60

The benchmark starts a broker, a Redis, a process for each layer of metrics, and `lakehouse alert` with the
default rules. It also starts a real Prometheus, which scrapes all of them every two seconds and evaluates the
rules that `lakehouse alert --prometheus` prints. All monitors are queried once a second. When an answer
changes, it is printed with the seconds since silver was told to stop. The benchmark takes about five minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.bench import console
from lakehouse.common.errors import LakehouseError, ServiceError
from lakehouse.engine.layers import LAYERS
from lakehouse.operations.telemetry import Observer
from lakehouse.settings import Settings, load_settings
from lakehouse.streams.registry import choose
from tests.chaos.services import OwnServices
from tests.support.processes import LAKEHOUSE, ROOT, Process, running, unused_port

STREAM = "metrics"
WELL_S = 15  # all monitors must report the normal state for this long, before and after
PATIENCE_S = 600
BURNS = "LakehouseInGoldBudgetBurns"  # looks back for hours, so its end is not awaited
Asked = Mapping[str, Callable[[], tuple[str, str]]]
"""The monitors by name. Each returns a word, which is compared, and further text to print."""

app = typer.Typer(add_completion=False)


@dataclass
class Timeline:
    """The answers of all monitors, and when they changed, in seconds since `zero`."""

    asked: Asked
    zero: float = field(default_factory=time.monotonic)
    words: dict[str, str] = field(default_factory=dict)
    changes: list[tuple[float, str, str]] = field(default_factory=list)

    def look(self) -> None:
        """Query all monitors, and print the answers that have changed."""
        for name, ask in self.asked.items():
            at, (word, more) = time.monotonic() - self.zero, ask()
            if self.words.get(name) != word:
                self.words[name] = word
                self.changes.append((at, name, word))
                console.print(f"{at:+7.1f} s  {name}: {word}{f' ({more})' if more else ''}", markup=False)

    def follow(self, is_over: Callable[[], bool]) -> None:
        """Query once a second until a condition holds. Raises ServiceError if that takes too long."""
        deadline = time.monotonic() + PATIENCE_S
        while not is_over():
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"the awaited answers did not come within {PATIENCE_S} s; the last answers: {self.words}"
                )
            started = time.monotonic()
            self.look()
            time.sleep(max(0.0, 1 - (time.monotonic() - started)))

    def follow_until(self, usual: Mapping[str, str]) -> None:
        """Query until the monitors in `usual` have given their usual answers for WELL_S without a break."""
        since: list[float] = []

        def is_usual() -> bool:
            if any(self.words.get(name) != word for name, word in usual.items()):
                since.clear()
            elif not since:
                since.append(time.monotonic())
            return bool(since) and time.monotonic() - since[0] >= WELL_S

        self.follow(is_usual)


@app.command()
def stopped(
    *,
    rate: Annotated[int, typer.Option(min=1, help="Events per second.")] = 500,
    seconds: Annotated[int, typer.Option(min=1, help="How many seconds silver is stopped.")] = 60,
) -> None:
    """Run a small live pipeline, stop its silver for a while, and print when each monitor reports what."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="lakehouse-stopped-") as lost, ExitStack() as stack:
        home = Path(lost)
        services = stack.enter_context(OwnServices(home))
        here = {"home": home, "lake": str(home / "lake")}
        settings = load_settings().changed(here | {"kafka.bootstrap_servers": services.endpoints.kafka})
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LAKEHOUSE_")}
        environment |= {
            "LAKEHOUSE_HOME": str(home),
            "LAKEHOUSE_SPARK_DRIVER_MEMORY": "1g",
            "PYTHONPATH": str(ROOT),
        }
        _watch(stack, settings, environment, rate, seconds)


def _watch(
    stack: ExitStack, settings: Settings, environment: Mapping[str, str], rate: int, seconds: int
) -> None:
    home, ports = settings.home, dict[str, int]()

    def start(name: str, *arguments: str) -> Process:
        """Start a command that serves metrics. A restarted command gets the same port."""
        ports.setdefault(name, unused_port() + len(ports))
        command = [LAKEHOUSE, *arguments, "--telemetry-port", str(ports[name])]
        return stack.enter_context(running(command, environment, home / f"{name}-{time.monotonic_ns()}"))

    def run(layer: str) -> Process:
        return start(layer, "run", layer, "--stream", STREAM, "--trigger", "1 second")

    layers = {layer: run(layer) for layer in LAYERS}
    for layer, process in layers.items():
        process.await_(partial(_is_ready, ports[layer]))
    load = [LAKEHOUSE, "produce", STREAM, "--rate", str(rate), "--seconds", "3600"]
    stack.enter_context(running(load, environment, home / "load"))
    alert = start("alert", "alert", "--interval", "1", "--format", "json")
    rules = subprocess.run(
        [LAKEHOUSE, "alert", "--prometheus"], env=environment, capture_output=True, check=True
    )
    prometheus = stack.enter_context(_prometheus(home / "prometheus", ports, rules.stdout))
    observer = Observer(choose([STREAM], settings), settings)
    stack.callback(observer.close)

    def found(query: str, label: str) -> Callable[[], tuple[str, str]]:
        return lambda: (_found(prometheus, query, label), "")

    timeline = Timeline(
        {
            "lakehouse status": lambda: _status(observer),
            "silver /health/ready": lambda: _ready(ports["silver"]),
            "alert /health/ready": lambda: _ready(ports["alert"]),
            "lakehouse alert": lambda: (_firing(alert.output), ""),
            "Prometheus, targets down": found("up == 0", "instance"),
            "Prometheus, lakehouse_health": found(f'lakehouse_health{{stream="{STREAM}"}} == 1', "word"),
            "Prometheus, alerts": found(f'ALERTS{{alertstate="firing", alertname!="{BURNS}"}}', "alertname"),
            "Prometheus, burn rate": found(f'ALERTS{{alertstate="firing", alertname="{BURNS}"}}', "window"),
        }
    )
    usual = dict.fromkeys([name for name in timeline.asked if name != "Prometheus, burn rate"], "none") | {
        "lakehouse status": "well",
        "silver /health/ready": "200 ready",
        "alert /health/ready": "200 ready",
        "Prometheus, lakehouse_health": "well",
    }
    console.print(f"{rate:,} events/s through four processes; first all must be well for {WELL_S} s")
    timeline.follow_until(usual)

    console.print(f"silver gets SIGTERM, and is restarted {seconds} s later")
    timeline.zero, before = time.monotonic(), len(timeline.changes)
    os.kill(layers["silver"].pid, signal.SIGTERM)
    timeline.follow(lambda: time.monotonic() - timeline.zero >= seconds)
    run("silver")
    console.print(f"{time.monotonic() - timeline.zero:+7.1f} s  silver is restarted")
    timeline.follow_until(usual)
    _print_summary(timeline.changes[before:], usual)


@contextmanager
def _prometheus(directory: Path, ports: Mapping[str, int], rules: bytes) -> Iterator[str]:
    """Run a Prometheus that scrapes these ports, and yield its address."""
    program = shutil.which("prometheus")
    if program is None:
        raise ServiceError("prometheus is missing: scripts/prometheus.sh installs it")
    directory.mkdir()
    (directory / "rules.yml").write_bytes(rules)
    targets = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name}} for name, port in ports.items()
    ]
    config = {
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [{"job_name": "lakehouse", "static_configs": targets}],
    }
    (directory / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    address = f"127.0.0.1:{unused_port() + 500}"
    options = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={address}"]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([program, *options], cwd=directory, stdout=log, stderr=log)
        try:
            yield address
        finally:
            process.terminate()
            process.wait()


def _status(observer: Observer) -> tuple[str, str]:
    (state,) = observer.observe(datetime.now(UTC)).streams
    return state.health.word.value, state.health.reason


def _ready(port: int) -> tuple[str, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5) as answer:
            found = json.load(answer)
            return f"{answer.status} {found['status']}", "; ".join(found["reasons"])
    except urllib.error.HTTPError as error:
        found = json.load(error)
        return f"{error.code} {found['status']}", "; ".join(found["reasons"])
    except OSError:
        return "no answer", ""


def _is_ready(port: int) -> bool:
    return _ready(port)[0] == "200 ready"


def _firing(lines: str) -> str:
    """Return the firing rules, according to the notifications that `lakehouse alert` has printed."""
    firing = set[str]()
    for line in lines.splitlines():
        one = json.loads(line)
        (firing.add if one["status"] == "firing" else firing.discard)(one["rule"])
    return ", ".join(sorted(firing)) or "none"


def _found(address: str, query: str, label: str) -> str:
    """Return a label's values in the current result of a Prometheus query."""
    url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    except OSError:
        return "no answer"
    return ", ".join(sorted({one["metric"][label] for one in found})) or "none"


def _print_summary(changes: list[tuple[float, str, str]], usual: Mapping[str, str]) -> None:
    console.print("when each monitor first changed its answer, and when it last returned to the usual one:")
    for name, word in usual.items():
        theirs = [(at, said) for at, whose, said in changes if whose == name]
        if not theirs:
            console.print(f"  {name}: always {word}", markup=False)
            continue
        (first, said), (last, _) = theirs[0], theirs[-1]
        console.print(f"  {name}: {said} at {first:+.1f} s, {word} again at {last:+.1f} s", markup=False)


if __name__ == "__main__":
    try:
        app()
    except LakehouseError as error:
        raise SystemExit(f"error: {error}") from error
