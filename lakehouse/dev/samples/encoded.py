"""Samples encoded in their topics' formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lakehouse.common.extras import needed
from lakehouse.dev.samples import Sample
from lakehouse.settings import Settings
from lakehouse.streams.definition import Source, Stream


def sources_by_topic(settings: Settings, streams: Sequence[Stream]) -> Mapping[str, Source]:
    """Return the sources of streams, by their topics' actual names."""
    return {settings.topic(source.topic): source for stream in streams for source in stream.sources}


def encoded(
    samples: Iterator[Sample], topics: Sequence[str], sources: Mapping[str, Source]
) -> Iterator[Sample]:
    """Return JSON samples encoded in the format of their topic; as JSON if the topic has no source.

    The contracts are registered as schemas. Raises RegistryError if the registry refuses one.
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
