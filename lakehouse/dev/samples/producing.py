"""Send samples to Kafka topics, as fast as possible or at a steady rate.

    summary = produce(KafkaAccess("127.0.0.1:9092"), "metrics-events", samples, rate=10_000, total=600_000)
    summary = produce(KafkaAccess("127.0.0.1:9092"), ("analyticsTopic", "metricsTopic"), samples)

The producer is idempotent with acks=all: an acknowledged record is in the log exactly once, and records with
the same key are in the order in which they were sent. A failed record was refused by the broker or not
acknowledged in time; in the latter case it may still be in the log.

The pace follows an absolute schedule: event n (from 0) is due (n + 1) / rate seconds after the start. Events
are sent in bursts of ten milliseconds. A burst is never sent before its last event is due; a delayed burst is
sent immediately, so delays are made up and errors do not accumulate.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lakehouse.common.errors import ProduceError, ServiceError
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.clients import ErrorCode, KafkaException, Message, Producer
from lakehouse.storage.kafka.probe import unreachable, why_not
from lakehouse.storage.kafka.refusals import Wanted, denied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lakehouse.dev.samples import Sample

_BURST_S = 0.010
_UNPACED_BURST = 500
_TURN_S = 0.2  # the longest wait before control returns to the caller
_PROGRESS_S = 0.25
_METADATA_TIMEOUT_S = 10.0

_CONFIG: Mapping[str, Any] = MappingProxyType(
    {
        "acks": "all",
        "enable.idempotence": True,
        # Twice a burst, because the broker's work depends on the number of requests. At 10,000/s, this saves
        # about a third of the work compared with 5 ms.
        "linger.ms": 20,
        # With lz4, producer and broker together need just as much CPU, and Python clients cannot read it
        # without an extra library.
        "compression.type": "none",
        "partitioner": "murmur2_random",  # as in Java: a key's partition does not depend on the client
        "queue.buffering.max.messages": 100_000,
        "delivery.timeout.ms": 30_000,
        "log_level": 2,  # errors are in the summary; librdkafka would also write them to stderr
    }
)


@dataclass(frozen=True)
class SendingProgress:
    """A run's progress so far; `total` is None if unknown."""

    sent: int
    acknowledged: int
    failed: int
    total: int | None
    elapsed_s: float


@dataclass(frozen=True)
class Summary:
    """A run's result: every sample sent is either acknowledged or failed.

    `duration_s` is the time from the start to the last acknowledgement, `actual_rate` is sent / duration_s,
    and `kinds` counts the samples sent by Sample.kind. `stopped` is true if the `stop` callback ended the
    run.
    """

    sent: int
    acknowledged: int
    failed: int
    duration_s: float
    actual_rate: float
    first_error: str | None
    kinds: Mapping[str, int]
    stopped: bool = False


def produce(
    access: KafkaAccess,
    topics: str | tuple[str, ...],
    samples: Iterable[Sample],
    *,
    rate: float | None = None,
    total: int | None = None,
    on_progress: Callable[[SendingProgress], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Summary:
    """Send `samples` to `topics`, and wait until each is acknowledged or has failed.

    `topics` is one name or several; a sample goes to the topic at the index in its `source`. `rate` is in
    events per second; None sends as fast as possible. `total` limits the number of samples. `on_progress` is
    called about four times a second. `stop` is called between bursts, several times a second: once it returns
    true, nothing more is sent, and the run waits for outstanding samples.

    Raises ServiceError if no broker answers, and ProduceError if a topic does not exist. A sample that cannot
    be delivered raises nothing: it is counted in `failed`, and `first_error` holds the reason for the first
    such failure.
    """
    names = (topics,) if isinstance(topics, str) else topics
    if rate is not None and not 0 < rate < math.inf:
        raise ProduceError(
            f"the rate for topic {' and '.join(names)} is {rate:g}; expected more than 0 events a second"
        )
    deliveries = _Deliveries(access, names)
    producer = Producer(access, {"on_delivery": deliveries.count, **_CONFIG})
    for topic in names:
        _require_topic(producer, access, topic)
    run = _Run(
        producer=producer,
        topics=names,
        deliveries=deliveries,
        total=total,
        on_progress=on_progress,
        stop=stop,
    )
    source = iter(samples)
    for size in bursts(rate, total):
        burst = list(islice(source, size))
        run.send(burst)
        if run.over() or len(burst) < size:
            break
    return run.finish()


def bursts(
    rate: float | None,
    total: int | None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[int]:
    """Yield how many events to send now, sleeping until they are due; they add up to `total`.

    During a long wait, yields 0 from time to time so that the caller can do other work.
    """
    start = clock()
    size = _UNPACED_BURST if rate is None else max(1, round(rate * _BURST_S))
    sent = 0
    while total is None or sent < total:
        burst = size if total is None else min(size, total - sent)
        if rate is not None:
            due = start + (sent + burst) / rate
            while (wait := due - clock()) > _TURN_S:
                sleep(_TURN_S)
                yield 0
            if wait > 0:
                sleep(wait)
        yield burst
        sent += burst


class _Deliveries:
    """Count the broker's acknowledgements and errors."""

    def __init__(self, access: KafkaAccess, topics: Sequence[str]) -> None:
        self._access = access
        self._topics = topics
        self.acknowledged = 0
        self.failed = 0
        self.first_error: str | None = None

    def count(self, error: ErrorCode | None, message: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.fail(error, str(message.topic()))

    def fail(self, error: ErrorCode, topic: str) -> None:
        self.failed += 1
        self._keep(error, {"topic": f"Write to topic {topic}"})

    def end(self, error: ErrorCode) -> None:
        """Record the reason for a fatal client error."""
        self._keep(error, {"cluster": f"Write to topic {' or '.join(self._topics)}"})

    def _keep(self, error: ErrorCode, wanted: Wanted) -> None:
        if self.first_error is None:
            no = denied(self._access, KafkaException(error), wanted)
            self.first_error = error.str() if no is None else str(no)


class _Run:
    """One call of `produce`: counts what has been sent, and waits for the rest."""

    def __init__(
        self,
        *,
        producer: Producer,
        topics: tuple[str, ...],
        deliveries: _Deliveries,
        total: int | None,
        on_progress: Callable[[SendingProgress], None] | None,
        stop: Callable[[], bool],
    ) -> None:
        self._producer = producer
        self._topics = topics
        self._deliveries = deliveries
        self._total = total
        self._on_progress = on_progress
        self._stop = stop
        self._kinds: Counter[str] = Counter()
        self._sent = 0
        self._stopped = False
        self._broken = False
        self._start = time.monotonic()
        self._next_progress = self._start + _PROGRESS_S

    def send(self, burst: list[Sample]) -> None:
        """Hand a burst to the client, then process the acknowledgements that have arrived."""
        send, topics = self._producer.produce, self._topics
        done = 0
        while done < len(burst) and not self._broken:
            try:
                for key, value, _, source, timestamp_ms, partition, headers in islice(burst, done, None):
                    send(topics[source], value, key, partition, timestamp=timestamp_ms, headers=headers)
                    done += 1
            except BufferError:  # the client's queue is full: the broker sets the pace
                self._served(lambda: self._producer.poll(_BURST_S))
                self._report()
                if self.over():
                    break
            except KafkaException as refusal:
                error: ErrorCode = refusal.args[0]
                self._deliveries.fail(error, topics[source])
                self._broken = error.fatal()
                done += 1
        self._sent += done
        self._kinds.update([sample.kind for sample in burst[:done]])
        self._served(lambda: self._producer.poll(0))
        self._report()

    def over(self) -> bool:
        """Tell whether to stop sending, on request or because the client accepts no more messages."""
        self._stopped = self._stopped or self._stop()
        return self._stopped or self._broken

    def finish(self) -> Summary:
        """Wait until outstanding messages are acknowledged or fail, at most for the delivery timeout."""
        while self._served(lambda: self._producer.flush(_TURN_S)):
            self._report()
        if self._broken:  # the client does not report messages still in its queue
            self._deliveries.failed = self._sent - self._deliveries.acknowledged
        duration_s = time.monotonic() - self._start
        self._report(last=True)
        return Summary(
            sent=self._sent,
            acknowledged=self._deliveries.acknowledged,
            failed=self._deliveries.failed,
            duration_s=duration_s,
            actual_rate=self._sent / duration_s,
            first_error=self._deliveries.first_error,
            kinds=MappingProxyType(dict(self._kinds)),
            stopped=self._stopped,
        )

    def _served(self, serve: Callable[[], int]) -> int:
        """Make a client call that runs its callbacks and returns a number; 0 after a fatal error."""
        try:
            return 0 if self._broken else serve()
        except KafkaException as end:
            self._deliveries.end(end.args[0])
            self._broken = True
            return 0

    def _report(self, *, last: bool = False) -> None:
        now = time.monotonic()
        if self._on_progress is None or (now < self._next_progress and not last):
            return
        self._next_progress = now + _PROGRESS_S
        counts = self._deliveries
        self._on_progress(
            SendingProgress(self._sent, counts.acknowledged, counts.failed, self._total, now - self._start)
        )


def _require_topic(producer: Producer, access: KafkaAccess, topic: str) -> None:
    """Check that the topic exists; this also connects the client, so the schedule starts without delay."""
    try:
        found = producer.list_topics(topic, timeout=_METADATA_TIMEOUT_S).topics[topic]
    except KafkaException as error:
        raise ServiceError(why_not(access) or unreachable(access, error.args[0].str())) from error
    if found.error is not None:
        no = denied(access, KafkaException(found.error), {"topic": f"Write to topic {topic}"})
        raise no or ProduceError(f"cannot produce to topic {topic} at {access}: {found.error.str()}")
