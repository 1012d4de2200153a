"""Events of every stream with times near now, and poison, until told to stop.

What counts as sent is what the topics hold at the end: the client here only has to keep at it while the
broker is away. Poison carries its table, kind and rules in a header, so that it is known when it is read.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from random import Random
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaException, Producer

from lakehouse.sandbox.loads import GENERATORS, Load
from lakehouse.sandbox.samples import Sample
from lakehouse.settings import Settings
from tests.poison import KINDS, endless
from tests.streams import STREAMS

POISON_HEADER = "poison"
_TICK_S = 0.05
_FLUSH_S = 180.0
_ENDLESS = 10**9
_SHAPES = {"sales": {"tombstones": 0.03}}
_CONFIG: dict[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 20,
    "partitioner": "murmur2_random",
    "message.max.bytes": 1_048_588,
    "message.timeout.ms": 300_000,
    "reconnect.backoff.max.ms": 500,
    "log_level": 0,
}


class Feeder:
    """Sends `rate` events a second of all streams together inside its block, `poison` of them poison."""

    def __init__(self, settings: Settings, *, rate: float, seed: int, poison: float) -> None:
        self._settings = settings
        self._rate = rate
        self._random = Random(seed)
        self._poison = poison
        self._topics = {
            source.table: settings.topic(source.topic) for stream in STREAMS for source in stream.sources
        }
        self._records = self._mixed(seed)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failure: BaseException | None = None
        self.given = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()

    def stop(self) -> None:
        """Send no more, and wait until the broker has what was sent."""
        self._done.set()
        self._thread.join(_FLUSH_S + 10)
        if self._failure is not None:
            raise self._failure
        assert not self._thread.is_alive(), "the broker did not take what was sent"

    def _mixed(self, seed: int) -> Iterator[tuple[str, Sample, str]]:
        """Yield topics, samples and, for poison, what the header says."""
        streams = [
            (
                GENERATORS[name].topics,
                Load(
                    name,
                    _ENDLESS,
                    rate=self._rate * (1 - self._poison) / len(GENERATORS),
                    seed=seed,
                    malformed=0.02,
                    duplicates=0.02,
                    shape=_SHAPES.get(name, {}),
                ).samples(self._settings),
            )
            for name in GENERATORS
        ]
        poison = endless(Random(seed), lambda: int(time.time() * 1000), huge_every=3)
        for topics, samples in itertools.cycle(streams):
            if self._random.random() < self._poison:
                table, kind, (value, key) = next(poison)
                what = f"{table}|{kind.name}"
                yield self._topics[table], Sample(key, value, "poison"), what
            else:
                sample = next(samples)
                yield self._settings.topic(topics[sample.source]), sample, ""

    def _run(self) -> None:
        try:
            self._feed()
        except BaseException as failure:  # noqa: BLE001 - raised by stop
            self._failure = failure

    def _feed(self) -> None:
        producer = self._producer()
        began = time.monotonic()
        while not self._done.wait(_TICK_S):
            due = int((time.monotonic() - began) * self._rate)
            for topic, sample, poison in itertools.islice(self._records, max(0, due - self.given)):
                producer = self._send(producer, topic, sample, poison)
                self.given += 1
            producer.poll(0)
        left = producer.flush(_FLUSH_S)
        assert not left, f"{left} records were not taken"

    def _send(self, producer: Producer, topic: str, sample: Sample, poison: str) -> Producer:
        """Hand over a record, as long as it takes; return the client to go on with."""
        headers: list[tuple[str, str | bytes | None]] = [(POISON_HEADER, poison)] if poison else []
        while not self._done.is_set():
            try:
                producer.produce(
                    topic, sample.value, sample.key, timestamp=sample.timestamp_ms, headers=headers
                )
            except BufferError:
                producer.poll(_TICK_S)
            except KafkaException as refusal:
                if not refusal.args[0].fatal():
                    raise
                producer = self._producer()  # the broker has lost track of the old one
            else:
                break
        return producer

    def _producer(self) -> Producer:
        return Producer({"bootstrap.servers": self._settings.kafka_bootstrap_servers, **_CONFIG})


RULES = {f"{table}|{kind.name}": kind.rules for table, kinds in KINDS.items() for kind in kinds}
"""The rules that poison must be refused by, by what its header says."""
