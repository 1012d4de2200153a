"""Send samples to Kafka topics, as fast as possible or at a steady rate.

    summary = produce(KafkaAccess("127.0.0.1:9092"), "metrics-events", samples, rate=10_000, total=600_000)
    summary = produce(KafkaAccess("127.0.0.1:9092"), ("analyticsTopic", "metricsTopic"), samples)

The producer is idempotent with acks=all. An acknowledged record is therefore in the log exactly once, and
records with the same key are in the order in which they were sent. A record fails if the broker refuses it,
or does not acknowledge it in time. In the second case, the record could still be in the log.

The pace follows an absolute schedule, in which event n (from 0) is due (n + 1) / rate seconds after the
start. Events are sent in bursts of ten milliseconds. A burst is never sent before its last event is due. A
delayed burst is sent immediately, so delays are made up for and errors do not accumulate.
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
        # Twice the length of a burst, because the broker's work depends on the number of requests. Compared
        # with 5 ms, this saves about a third of the work at 10,000 events per second.
        "linger.ms": 20,
        # With lz4, the producer and the broker together need just as much CPU, and Python clients need
        # an extra library to read the records.
        "compression.type": "none",
        "partitioner": "murmur2_random",  # as in Java: a key's partition does not depend on the client
        "queue.buffering.max.messages": 100_000,
        "delivery.timeout.ms": 30_000,
        "log_level": 2,  # the summary contains errors; librdkafka would also write them to stderr
    }
)


@dataclass(frozen=True)
class SendingProgress:
    """The progress of a run so far. `total` is None if it is unknown."""

    sent: int
    acknowledged: int
    failed: int
    total: int | None
    elapsed_s: float


@dataclass(frozen=True)
class Summary:
    """A run's result. Every sample that was sent has been either acknowledged or counted as failed.

    `duration_s` is the time from the start to the last acknowledgement, and `actual_rate` is sent /
    duration_s. `kinds` contains the number of samples sent for each Sample.kind. `stopped` is true if the
    `stop` callback ended the run.
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
    """Send `samples` to `topics`, and wait until each sample has been acknowledged or has failed.

    `topics` is one topic's name, or several names; a sample's `source` is the index of its topic. `rate` is
    in events per second; None means as fast as possible. `total` limits the number of samples. `on_progress`
    is called about four times a second. `stop` is called between bursts, several times a second. As soon as
    `stop` returns true, nothing more is sent, and the run waits for outstanding samples.

    Raises ServiceError if no broker answers, and ProduceError if a topic does not exist. A sample that cannot
    be delivered does not raise an error. It is counted in `failed`, and `first_error` contains the reason for
    the first such failure.
    """
    names = (topics,) if isinstance(topics, str) else topics
    if rate is not None and not 0 < rate < math.inf:
        raise ProduceError(
            f"cannot produce to topic {' and '.join(names)} at {rate:g} events per second; expected a "
            "positive, finite rate"
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
    """Yield the number of events to send next, and sleep until they are due. The numbers add up to `total`.

    During a long wait, 0 is yielded from time to time, so that the caller can do other work.
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
    """A count of the broker's acknowledgements and errors."""

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
        """Record a fatal client error as the reason for failures."""
        self._keep(error, {"cluster": f"Write to topic {' or '.join(self._topics)}"})

    def _keep(self, error: ErrorCode, wanted: Wanted) -> None:
        if self.first_error is None:
            no = denied(self._access, KafkaException(error), wanted)
            self.first_error = error.str() if no is None else str(no)


class _Run:
    """One call to `produce`, which counts the samples sent and waits for outstanding samples."""

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
        """Pass a burst to the client, then process the acknowledgements that have arrived."""
        send, topics = self._producer.produce, self._topics
        done = 0
        while done < len(burst) and not self._broken:
            try:
                for key, value, _, source, timestamp_ms, partition, headers in islice(burst, done, None):
                    send(topics[source], value, key, partition, timestamp=timestamp_ms, headers=headers)
                    done += 1
            except BufferError:  # the client's queue is full, so the broker sets the pace
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
        """Return whether to stop: `stop` has returned true, or the client accepts no more messages."""
        self._stopped = self._stopped or self._stop()
        return self._stopped or self._broken

    def finish(self) -> Summary:
        """Wait until all messages are acknowledged or have failed, for at most the delivery timeout."""
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
        """Call a client function that runs callbacks and returns a number. Return 0 after a fatal error."""
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
    """Check that the topic exists. This also connects the client, so the schedule starts without delay."""
    try:
        found = producer.list_topics(topic, timeout=_METADATA_TIMEOUT_S).topics[topic]
    except KafkaException as error:
        raise ServiceError(why_not(access) or unreachable(access, error.args[0].str())) from error
    if found.error is not None:
        no = denied(access, KafkaException(found.error), {"topic": f"Write to topic {topic}"})
        raise no or ProduceError(f"cannot produce to topic {topic} at {access}: {found.error.str()}")
