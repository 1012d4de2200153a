"""The age of events when they first become visible in gold, in Redis and in a topic.

The producer of a live load uses each event's due time as its event time, in order and at an even rate. A row
contains the number of its events and the time of the last event. Each new state of a row therefore shows
which events are new. New events are assumed to be evenly spaced between the old last event time and the new
last event time. If there is only one new event, it has the last event time.

    python -m benchmarks.ages <<< '{"redis": "redis://…", "table": "metrics_1m", …}'

starts the process that continuously reads Redis and topics, separate from the measured process. For each
further input line, it prints the number of events seen in each place. At the end of the input, it prints all
samples.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import redis
from confluent_kafka import Consumer

from lakehouse.sinks.redis.rows import row_key

_POLL_S = 0.05
_WINDOWS_MS = 300_000  # older windows are no longer read
_PARTS = 5
_SLOT_S = 30


@dataclass
class Ages:
    """Samples of events: event time (epoch s), age when first seen (s), and the number of events."""

    samples: list[tuple[float, float, float]] = field(default_factory=list)

    def add_between(self, first_s: float, last_s: float, seen_s: float, events: float) -> None:
        """Add events that are evenly spaced after the first time, up to and including the last."""
        for part in range(1, _PARTS + 1):
            time_s = first_s + (last_s - first_s) * part / _PARTS
            self.samples.append((time_s, seen_s - time_s, events / _PARTS))

    def since(self, time_s: float) -> Ages:
        """Return the samples of events from this time on."""
        return Ages([one for one in self.samples if one[0] >= time_s])

    def percentile_s(self, share: float) -> float:
        """Return the age that this share of the events does not exceed, or NaN if there are no events."""
        ordered = sorted((age, weight) for _, age, weight in self.samples)
        rank, passed = share * sum(weight for _, weight in ordered), 0.0
        for age, weight in ordered:
            passed += weight
            if passed >= rank:
                return age
        return float("nan")

    def first_seen_s(self, time_s: float) -> float:
        """Return when an event was first seen after this time, in epoch s. Raises ValueError if none was."""
        return min(seen_s for at_s, age_s, _ in self.samples if (seen_s := at_s + age_s) > time_s)

    def worst_s(self) -> list[float]:
        """Return the greatest age in each half-minute of events."""
        worst: dict[int, float] = {}
        began = min((one[0] for one in self.samples), default=0.0)
        for time_s, age, _ in self.samples:
            slot = int(time_s - began) // _SLOT_S
            worst[slot] = max(worst.get(slot, 0.0), age)
        return [worst[slot] for slot in sorted(worst)]


@dataclass
class RowAges(Ages):
    """Ages derived from rows, which contain their number of events and their last event time in epoch ms."""

    events: int = 0
    _seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    def take(self, name: str, row: Mapping[str, Any], now_s: float) -> None:
        """Record a row as seen now. The events of a new window are assumed to start with the window."""
        count, last = row["count"], row["lastEventTime"]
        before_count, before_last = self._seen.get(name, (0, row["windowStart"]))
        new = count - before_count
        if new > 0:
            self._seen[name] = (count, last)
            self.events += new
            self.add_between((last if new == 1 else before_last) / 1000, last / 1000, now_s, new)


@dataclass(frozen=True)
class Places:
    """Where to look for rows: in topics, named by place, and in a table in Redis if one is given."""

    servers: str
    topics: Mapping[str, str]
    redis: str | None = None
    table: str = ""


class Watcher:
    """The separate process that observes rows."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process: Any = process  # stdin and stdout are pipes

    def look_at(self, places: Places) -> None:
        """Tell the process where to look. An argument would show the password in the Redis URL."""
        self._process.stdin.write(f"{json.dumps(asdict(places))}\n")
        self._process.stdin.flush()

    def events(self) -> dict[str, int]:
        """Return the number of events seen so far, by place."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, int] = json.loads(self._process.stdout.readline())
        return found

    def end(self) -> dict[str, Ages]:
        """Stop the process, and return all samples by place."""
        found, _ = self._process.communicate()
        return {place: Ages([tuple(one) for one in samples]) for place, samples in json.loads(found).items()}


@contextmanager
def watching(places: Places) -> Iterator[Watcher]:
    """Observe rows in these places during the block."""
    command = [sys.executable, "-m", __name__]
    root = str(Path(__file__).parents[1])
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": root},
    ) as process:
        try:
            watcher = Watcher(process)
            watcher.look_at(places)
            yield watcher
        finally:
            process.kill()


def _main(places: Places) -> None:
    over, found = threading.Event(), {place: RowAges() for place in places.topics}
    by_topic = {topic: found[place] for place, topic in places.topics.items()}
    looks = [threading.Thread(target=_look_at_topics, args=(places.servers, by_topic, over))]
    if places.redis is not None:
        found["redis"] = RowAges()
        looks.append(threading.Thread(target=_look_at_redis, args=(places, found["redis"], over)))
    for look in looks:
        look.start()
    for _ in sys.stdin:
        _say({place: ages.events for place, ages in found.items()})
    over.set()
    for look in looks:
        look.join()
    _say({place: ages.samples for place, ages in found.items()})


def _say(what: object) -> None:
    sys.stdout.write(f"{json.dumps(what)}\n")
    sys.stdout.flush()


def _look_at_topics(servers: str, ages: Mapping[str, RowAges], over: threading.Event) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "ages",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(list(ages))
    while not over.is_set():
        for message in consumer.consume(10_000, timeout=_POLL_S):
            key, value = message.key(), message.value()
            if message.error() is None and key is not None and value is not None:
                ages[str(message.topic())].take(
                    *_row(key.decode(), json.loads(value), message.timestamp()[1]), time.time()
                )
    consumer.close()


def _row(name: str, row: dict[str, Any], time_ms: int) -> tuple[str, dict[str, Any]]:
    """Return a row's name with its window's start, and the row with its start and its last event time.

    The pipeline's rows contain the start. In Kafka Streams, the start is at the end of the key. Without a
    window, the start is the first event's time. In Kafka Streams, the last event time is the record's
    timestamp.
    """
    last = row.get("lastEventTime", time_ms)
    suffix = name.rpartition(":")[2]
    start = row.get("windowStart", int(suffix) if suffix.isdecimal() else None)
    name = name if start is None else f"{name} {start}"
    return name, row | {"lastEventTime": last, "windowStart": last if start is None else start}


def _look_at_redis(places: Places, ages: RowAges, over: threading.Event) -> None:
    client = redis.Redis.from_url(str(places.redis), decode_responses=True)
    while not over.wait(_POLL_S):
        names = list(client.scan_iter(row_key(places.table, "*"), count=10_000))
        starts = {name: int(name.rpartition(":")[2]) for name in names}
        new = [name for name in names if starts[name] > time.time() * 1000 - _WINDOWS_MS]
        found, now_s = (client.mget(new) if new else []), time.time()
        for name, stored in zip(new, found, strict=True):
            if stored is not None:  # None is a row that has just expired
                ages.take(name, json.loads(stored), now_s)


if __name__ == "__main__":
    _main(Places(**json.loads(sys.stdin.readline())))
