"""The rights that the pipeline needs in Kafka: the list for the brokers' administrator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lakehouse.kafka.rights import Right
from lakehouse.settings import Settings
from lakehouse.stream import Stream

_PREFIX = "lakehouse-"
_TABLE = "{table}"


def rights_of_pipeline(streams: Iterable[Stream], settings: Settings) -> list[Right]:
    """Return what `lakehouse run`, `audit`, `alert` and `serve` need for the streams; topics exist.

    Without those that are not `is_required` the pipeline works with less: it assumes Kafka's own limits where
    it may not ask for a topic's, and topics must exist where it may not make them.
    """
    streams = list(streams)
    read = [settings.topic(source.topic) for stream in streams for source in stream.sources]
    sent = [
        settings.topic(table.export.topic)
        for stream in streams
        for table in stream.tables
        if table.export.topic is not None
    ]
    alerts = [settings.alert_topic, f"{settings.alert_topic}-state"]
    sent += [settings.dead_letter_topic] if settings.dead_letter_topic else []
    return [
        *(Right("Read", "topic", topic, "what it lands") for topic in read),
        *_of_sender([*sent, *alerts]),
        *_of_groups(settings),
        Right(
            "Write", "transactional id", _PREFIX, "rows and alerts are sent in transactions", is_prefix=True
        ),
        *(
            Right(
                "DescribeConfigs",
                "topic",
                topic,
                "its limits; else Kafka's hold",
                is_required=False,
            )
            for topic in [*read, *sent]
        ),
        *(
            Right("Create", "topic", topic, "unless it exists", is_required=False)
            for topic in [*read, *sent, *alerts]
        ),
    ]


def rights_of_producer(streams: Iterable[Stream], settings: Settings) -> list[Right]:
    """Return what `lakehouse produce` needs."""
    topics = [settings.topic(source.topic) for stream in streams for source in stream.sources]
    return [Right("Write", "topic", topic, "sample events") for topic in topics]


def _of_sender(topics: Sequence[str]) -> Iterator[Right]:
    for topic in topics:
        yield Right("Write", "topic", topic, "what it sends")
        yield Right("Read", "topic", topic, "how far it has sent, and the audit")


def _of_groups(settings: Settings) -> Iterator[Right]:
    yield Right("Read", "group", _PREFIX, "how far exports, webhooks and bronze are", is_prefix=True)
    group = settings.consumer_group
    if group and not group.startswith(_PREFIX):
        name, separator, _ = group.partition(_TABLE)
        yield Right("Read", "group", name, "how far bronze is", is_prefix=bool(separator))
