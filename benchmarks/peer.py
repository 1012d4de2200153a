"""Run the Kafka Streams application in benchmarks/peers, and check its results."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer

from lakehouse.common.errors import LakehouseError
from lakehouse.dev.samples import Sample
from lakehouse.settings import Settings

_PROJECT = Path(__file__).with_name("peers") / "kafka_streams"
_JAR = _PROJECT / "target" / "peer.jar"
_PATIENCE_S = 300.0

OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "metrics": ("peer-metrics-1m", "peer-metrics-10m"),
    "calls": ("peer-calls",),
    "sales": ("peer-sales", "peer-notifications"),
    "transactions": ("peer-transactions",),
}
"""The peer's output topics for each stream. Rows contain their number of events; notifications do not."""
_NOTIFICATIONS = "peer-notifications"


def build() -> None:
    """Build the application unless it is up to date. Raises LakehouseError if it cannot be built."""
    sources = [_PROJECT / "pom.xml", *(_PROJECT / "src").rglob("*.java")]
    if _JAR.exists() and _JAR.stat().st_mtime > max(source.stat().st_mtime for source in sources):
        return
    program = shutil.which("mvn")
    if program is None:
        raise LakehouseError("Maven builds the peer and is missing: apt-get install maven")
    built = subprocess.run(
        [program, "-q", "-B", "-C", "package"], cwd=_PROJECT, capture_output=True, text=True, check=False
    )
    if built.returncode:
        raise LakehouseError(f"Maven could not build the peer: {built.stdout.strip()[-2000:]}")


class Peer:
    """A running application for some streams. It processes records unless it is paused."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process: Any = process  # stdin and stdout are pipes
        self.process = psutil.Process(process.pid)

    def pause(self) -> None:
        """Pause the processing of records."""
        self._obeys("pause")

    def resume(self) -> None:
        """Resume the processing of records."""
        self._obeys("resume")

    def _obeys(self, word: str) -> None:
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        self.await_word(word)

    def await_word(self, word: str) -> None:
        """Wait until the application prints this word. Raises LakehouseError if it ends instead."""
        if self._process.stdout.readline().strip() != word:
            raise LakehouseError("the peer has ended: is benchmarks/peers built for this Java?")


@contextmanager
def running(settings: Settings, streams: Sequence[str], *, threads: int) -> Iterator[Peer]:
    """Start an application for these streams, with its state under the home, and kill it after the block."""
    command = [
        "java",
        f"-Xmx{settings.spark.driver_memory}",
        "-cp",
        f"{_JAR}:{_JAR.with_name('lib')}/*",
        "peers.Peer",
        settings.kafka.bootstrap_servers,
        ",".join(streams),
        str(settings.home / "peer"),
        str(threads),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            peer = Peer(process)
            peer.await_word("running")
            yield peer
        finally:
            process.kill()


@dataclass
class Expected:
    """Expected results for some events: `events` is the sum of all counts, `keys` the total by key."""

    stream: str
    events: int = 0
    keys: dict[str, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    _counts: Counter[str] = field(default_factory=Counter)

    def add(self, samples: Iterable[Sample]) -> None:
        """Add further events, all of which must be valid."""
        for sample in samples:
            record: Any = None if sample.value is None else json.loads(sample.value, parse_float=Decimal)
            if self.stream == "sales":
                name = (sample.key or b"").decode()
                self.events -= self._counts[name] if record is None else -1
                self._counts[name] = 0 if record is None else self._counts[name] + 1
                self.keys[name] = Decimal(0) if record is None else self.keys[name] + record["value"]
                continue
            self.events += 1
            if self.stream == "metrics":
                self.keys[f"{record['serviceId']}:{record['metricName']}"] += 1
            elif self.stream == "calls":
                self.keys[f"{record['user1']}-{record['user2']}"] += 1
            else:
                self.keys[record["userId"]] += record["amount"]


class Outcome:
    """The newest state of each row in the peer's topics. A separate thread reads committed records."""

    def __init__(self, settings: Settings, stream: str) -> None:
        self._topics = OUTPUTS[stream]
        self._rows: dict[str, dict[str, dict[str, Any]]] = {topic: {} for topic in self._topics}
        self._counted: Counter[str] = Counter()
        self._ended = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": settings.kafka.bootstrap_servers,
                "group.id": f"peer-outcome-{stream}",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe(list(self._topics))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop reading the topics."""
        self._ended.set()
        self._thread.join()
        self._consumer.close()

    def await_events(self, events: int) -> None:
        """Wait until each topic's rows count this many events. Raises LakehouseError after five minutes."""
        deadline = time.monotonic() + _PATIENCE_S
        topics = [topic for topic in self._topics if topic != _NOTIFICATIONS]
        while any(self._counted[topic] != events for topic in topics):
            if time.monotonic() > deadline:
                found = ", ".join(f"{topic} {self._counted[topic]:,}" for topic in topics)
                raise LakehouseError(f"the peer has not counted {events:,} events, only {found}")
            time.sleep(0.01)

    def difference(self, expected: Expected) -> str | None:
        """Describe the first difference between the rows and the expected results; None if there is none."""
        found: dict[str, Decimal] = defaultdict(Decimal)
        for name, row in self._rows[self._topics[0]].items():
            key = name if expected.stream == "sales" else name.rpartition(":")[0]
            found[key] += row.get("total", row["count"])
        for key in sorted({*found, *expected.keys}):
            if found[key] != expected.keys[key]:
                return f"{key}: the peer's total is {found[key]}, the events' total is {expected.keys[key]}"
        return None

    def _read(self) -> None:
        while not self._ended.is_set():
            for message in self._consumer.consume(10_000, timeout=0.05):
                if message.error() is None:
                    self._take(str(message.topic()), (message.key() or b"").decode(), message.value())

    def _take(self, topic: str, name: str, value: bytes | None) -> None:
        rows = self._rows[topic]
        before = rows.pop(name, None)
        row = None if value is None else json.loads(value, parse_float=Decimal)
        if row is not None:
            rows[name] = row
        self._counted[topic] += (row or {}).get("count", 0) - (before or {}).get("count", 0)
