"""Loads of sample events: the stream, the number and rate of the events, and their faults.

send(Load("metrics", events=100_000, malformed=0.01), settings)
send(Load("calls", events=60_000, rate=1_000, shape={"one_sided": 0.2}), settings)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from lakehouse.common.extras import needed
from lakehouse.dev.samples import (
    Sample,
    calls,
    declared,
    metrics,
    paced_times,
    producing,
    sales,
    spread_times,
    transactions,
)
from lakehouse.dev.samples.mixing import Shares
from lakehouse.dev.samples.producing import SendingProgress, Summary
from lakehouse.settings import Settings
from lakehouse.storage.kafka.topics import create_topics
from lakehouse.streams.definition import Source, Stream
from lakehouse.streams.registry import choose_one


def sources_by_topic(settings: Settings, streams: Sequence[Stream]) -> Mapping[str, Source]:
    """Return the sources of the streams, keyed by the names of the topics in Kafka."""
    return {settings.topic(source.topic): source for stream in streams for source in stream.sources}


def encoded(
    samples: Iterator[Sample], topics: Sequence[str], sources: Mapping[str, Source]
) -> Iterator[Sample]:
    """Encode JSON samples in the format of their topic. Samples for a topic without a source remain JSON.

    The contracts are registered as schemas. Raises RegistryError if the registry rejects a schema.
    """
    used = [sources.get(topic) for topic in topics]
    if all(source is None or source.format == "json" for source in used):
        return samples
    with needed("formats", "writing records that are not JSON"):
        from lakehouse.engine.formats.encoding import registered_encoder

    each = [
        (lambda value: value) if source is None else registered_encoder(source, topic)
        for source, topic in zip(used, topics, strict=True)
    ]
    return (sample._replace(value=each[sample.source](sample.value)) for sample in samples)


_HOUR_S = 3600.0


@dataclass(frozen=True)
class Generator:
    """A stream's topics and sample generator. `shape` derives generator arguments from the stream."""

    topics: tuple[str, ...]
    samples: Callable[..., Iterator[Sample]]
    shape: Callable[[Stream], Mapping[str, float]] = lambda _stream: {}


def _gap(stream: Stream) -> Mapping[str, float]:
    """Return the generator argument `gap_s`, the maximum time between two events of a call."""
    return {"gap_s": stream.gold[0].merge_radius.total_seconds()}


GENERATORS: Mapping[str, Generator] = {
    "metrics": Generator(metrics.TOPICS, metrics.samples),
    "calls": Generator(calls.TOPICS, calls.samples, _gap),
    "sales": Generator(sales.TOPICS, sales.samples),
    "transactions": Generator(transactions.TOPICS, transactions.samples),
}


@dataclass(frozen=True)
class Load:
    """Events to send for a stream, at `rate` events per second. Without a rate, send as fast as possible.

    A stream from another package is given as a Stream, and its samples are generated from its contracts.

    Without a rate, event times are spread over the last `span_s` seconds. `malformed`, `late` and
    `duplicates` are shares of the events. `shape` contains arguments that only this stream's generator
    accepts. `behind_s` shifts all event times back, as if the producer's clock or connection lagged. The same
    seed produces the same events, except for their times.
    """

    stream: str | Stream
    events: int
    rate: float | None = None
    span_s: float = 600.0
    behind_s: float = 0.0
    seed: int = 1
    malformed: float = 0.0
    late: float = 0.0
    duplicates: float = 0.0
    shape: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self.stream if isinstance(self.stream, str) else self.stream.name

    def _under(self, settings: Settings) -> Stream:
        return choose_one(self.stream, settings) if isinstance(self.stream, str) else self.stream

    def topics(self, settings: Settings) -> tuple[str, ...]:
        """Return the topics to which the events are sent."""
        return tuple(settings.topic(source.topic) for source in self._under(settings).sources)

    def samples(self, settings: Settings) -> Iterator[Sample]:
        """Return the events. Raises SettingsError if the shares exceed one in total."""
        stream = self._under(settings)
        topics = tuple(source.topic for source in stream.sources)
        generator = GENERATORS.get(stream.name) or Generator(
            topics, partial(declared.samples, stream.sources)
        )
        if self.rate is None:
            times = spread_times(self.events, end_ms=int(time.time() * 1000), span_s=self.span_s)
        else:
            times = paced_times(self.rate)
        if self.behind_s:
            times = (time_ms - round(1000 * self.behind_s) for time_ms in times)
        # A malformed event in the future must still be in the future when it lands, even if it is early in
        # the span.
        tolerance_s = max(source.future_tolerance_s for source in stream.sources)
        ahead_s = tolerance_s + _HOUR_S + self.behind_s + (0 if self.rate else self.span_s)
        shape = dict(self.shape)
        shares = Shares(
            self.malformed,
            self.late,
            self.duplicates,
            shape.pop("tombstones", 0.0),
            allowed_lateness_s=max(source.allowed_lateness_s for source in stream.sources),
            ahead_s=ahead_s,
        )
        return generator.samples(
            self.events, times, seed=self.seed, shares=shares, **generator.shape(stream), **shape
        )


def send(
    load: Load,
    settings: Settings,
    *,
    on_progress: Callable[[SendingProgress], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Summary:
    """Create missing topics, send the load, and wait for the last acknowledgement.

    Samples for a Stream are encoded in the formats of its sources. Raises RegistryError if a registry rejects
    a schema, SettingsError if the shares exceed one in total, and the same errors as `producing.produce`.
    """
    topics = load.topics(settings)
    streams = [] if isinstance(load.stream, str) else [load.stream]
    samples = encoded(load.samples(settings), topics, sources_by_topic(settings, streams))
    create_topics(settings.kafka.access, dict.fromkeys(topics, settings.kafka.topic_partitions))
    return producing.produce(
        settings.kafka.access,
        topics,
        samples,
        rate=load.rate,
        total=load.events,
        on_progress=on_progress,
        stop=stop,
    )
