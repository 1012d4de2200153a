"""Checks before a run: whether services and topics are available, and whether rows could be lost or late."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from lakehouse.common.errors import AccessDeniedError
from lakehouse.engine.layers import LayerName
from lakehouse.settings import Settings
from lakehouse.sinks import registry
from lakehouse.storage.kafka.probe import require_broker
from lakehouse.storage.kafka.topics import create_topics, describe_topic, unlimited
from lakehouse.streams.definition import Stream

_FEW_WAITING = 200_000  # the total number of records in all topics


def require_services(settings: Settings, layers: Sequence[LayerName], streams: Sequence[Stream]) -> list[str]:
    """Create missing topics, and check that the services needed by the layers are reachable.

    Raises ServiceError if a service is unreachable, and SettingsError for a table that does not fit a store.
    Returns the missing permissions that the broker reported. A step that needs a missing permission fails
    later and reports it; other steps continue.
    """
    for stream in streams:
        registry.require_fit(stream, settings)
    denied = []
    if {"bronze", "export"} & set(layers):
        require_broker(settings.kafka.access)
        topics = (settings.topic(name) for stream in streams for name in stream.topics)
        try:
            create_topics(settings.kafka.access, dict.fromkeys(topics, settings.kafka.topic_partitions))
        except AccessDeniedError as error:
            denied.append(str(error))
    if "export" in layers:
        for kind in registry.needed_by(streams, settings):
            kind.require(settings)
    return denied


def labels_of_services(
    settings: Settings, layers: Collection[LayerName], streams: Sequence[Stream]
) -> list[str]:
    """Return the display names of the services to which `require_services` connects."""
    kinds = registry.needed_by(streams, settings) if "export" in layers else []
    lead = [registry.LEAD.label] if {"bronze", "export"} & set(layers) else []
    return [*lead, *(kind.label for kind in kinds)]


def warn_of_services(
    settings: Settings,
    streams: Sequence[Stream],
    layers: Collection[LayerName],
    denied: Sequence[str],
    notice: Callable[[str], None],
) -> None:
    """Report denied permissions, and services that are available but could lose or delay rows."""
    for reason in denied:
        notice(reason)
    if "bronze" in layers:
        _warn_of_unlimited_topics(settings, streams, notice)
    if "export" in layers:
        kinds = registry.needed_by(streams, settings)
        for doubt in (doubt for kind in kinds for doubt in kind.doubts(settings)):
            notice(doubt)


def _warn_of_unlimited_topics(
    settings: Settings, streams: Sequence[Stream], notice: Callable[[str], None]
) -> None:
    """Report topics that do not limit their records' uncompressed size or timestamps."""
    topics = {settings.topic(source.topic) for stream in streams for source in stream.sources}
    found = unlimited(settings.kafka.access, topics)
    if found.untold:
        notice(
            f"{', '.join(found.untold)}: the broker does not show "
            f"{settings.kafka.access.principal} the limits of these topics, so Kafka's defaults are assumed "
            "(docs/kafka.md, DescribeConfigs)"
        )
    if found.packed:
        notice(
            f"{', '.join(found.packed)}: the broker limits the compressed size of records; a decompressed "
            "record can be a thousand times as large and not fit in memory. Set the topic's compression.type "
            "to uncompressed to limit their real size (docs/kafka.md)"
        )
    if found.undated:
        notice(
            f"{', '.join(found.undated)}: the broker accepts any timestamp. Records with a timestamp in "
            "nanoseconds, or before 1582, land slowly, and their event time must be in the value. Set the "
            "topic's message.timestamp.before.max.ms and message.timestamp.after.max.ms (docs/kafka.md)"
        )


def few_wait(settings: Settings, streams: Sequence[Stream], layers: Collection[LayerName]) -> bool:
    """Return whether catching up will be quick, because the topics contain few records, read or unread."""
    if "bronze" not in layers:
        return True
    sources = (source for stream in streams for source in stream.sources)
    topics = (describe_topic(settings.kafka.access, settings.topic(one.topic)) for one in sources)
    records = (topic.ends[n] - first for topic in topics if topic for n, first in topic.earliest.items())
    try:
        return sum(records) <= _FEW_WAITING
    except AccessDeniedError:
        return False
