"""A sender of current events of every stream, and of poison, that runs until it is stopped.

The records that count as sent are those in the topics at the end; the client only has to keep trying while
the broker is unavailable. Poison has its table, kind and rules in a header, by which it is recognized when it
is read. Mixed records (tests/chaos/mixed.py) are in several formats, and payments have ids.
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

from lakehouse.dev.samples import Sample
from lakehouse.dev.samples.loads import GENERATORS, Load
from lakehouse.settings import Settings
from tests.chaos import mixed
from tests.support.poison import KINDS, Poison, endless
from tests.support.streams import STREAMS, TRANSACTIONS, key_of

POISON_HEADER = "poison"
_TICK_S = 0.05
_FLUSH_S = 180.0
_ENDLESS = 10**9
_Headers = list[tuple[str, str | bytes | None]]
_Addressed = tuple[str, Sample, _Headers]
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
    """Sends `rate` events per second, of all streams together, during its block; a share is `poison`.

    If the settings name formats, the records are mixed.
    """

    def __init__(self, settings: Settings, *, rate: float, seed: int, poison: float) -> None:
        self._settings = settings
        self._rate = rate
        self._random = Random(seed)
        self._poison = poison
        self._topics = {source.table: source.topic for stream in STREAMS for source in stream.sources}
        self._encoders = mixed.encoders(settings) if key_of(settings, "transactions", "format") else {}
        self._payments: mixed.Payments | None = None
        self._records = self._in_turn(seed)
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
        """Stop sending, and wait until the broker has acknowledged everything."""
        self._done.set()
        self._thread.join(_FLUSH_S + 10)
        if self._failure is not None:
            raise self._failure
        assert not self._thread.is_alive(), "the broker did not take what was sent"

    def _in_turn(self, seed: int) -> Iterator[_Addressed]:
        """Yield topics, samples and headers."""
        streams = [(GENERATORS[name].topics, self._samples(name, seed)) for name in GENERATORS]
        poison = endless(Random(seed), lambda: int(time.time() * 1000), huge_every=3)
        for topics, samples in itertools.cycle(streams):
            if self._random.random() < self._poison:
                yield self._poisonous(next(poison))
            else:
                sample = next(samples)
                yield self._encoded(self._settings.topic(topics[sample.source]), sample)

    def _samples(self, name: str, seed: int) -> Iterator[Sample]:
        is_encoded = any(self._settings.topic(topic) in self._encoders for topic in GENERATORS[name].topics)
        samples = Load(
            name,
            _ENDLESS,
            rate=self._rate * (1 - self._poison) / len(GENERATORS),
            seed=seed,
            malformed=0.0 if is_encoded else 0.02,  # no schema can hold malformed values
            duplicates=0.02,
            shape=_SHAPES.get(name, {}),
        ).samples(self._settings)
        if name != TRANSACTIONS.name or not is_encoded:
            return samples
        self._payments = mixed.Payments(samples, seed)
        return iter(self._payments)

    def _poisonous(self, poison: Poison) -> _Addressed:
        default = self._topics[poison.table]
        topic = self._settings.topic(default)
        if topic in self._encoders:
            sample, what = mixed.poison(self._random, default)
        else:
            sample, what = (
                Sample(poison.bytes.key, poison.bytes.value, "poison"),
                f"{poison.table}|{poison.kind.name}",
            )
        return topic, sample, [(POISON_HEADER, what.encode())]

    def _encoded(self, topic: str, sample: Sample) -> _Addressed:
        encode = self._encoders.get(topic)
        if encode is None:
            return topic, sample, []
        return topic, sample._replace(value=encode(sample.value)), [(mixed.JSON_HEADER, sample.value)]

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
            for topic, sample, headers in itertools.islice(self._records, max(0, due - self.given)):
                producer = self._send(producer, topic, sample, headers)
                self.given += 1
            producer.poll(0)
        left = producer.flush(_FLUSH_S)
        assert not left, f"{left} records were not taken"

    def _send(self, producer: Producer, topic: str, sample: Sample, headers: _Headers) -> Producer:
        """Hand over a record, however long it takes, and return the client for the next record."""
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
                producer = self._producer()  # the broker no longer knows the old one
                if self._payments is not None:
                    self._payments.forget()
            else:
                break
        return producer

    def _producer(self) -> Producer:
        return Producer({"bootstrap.servers": self._settings.kafka.bootstrap_servers, **_CONFIG})


RULES = {
    **{f"{table}|{kind.name}": kind.rules for table, kinds in KINDS.items() for kind in kinds},
    **mixed.RULES,
}
"""The rules that must refuse a poison record, by the content of its header."""
