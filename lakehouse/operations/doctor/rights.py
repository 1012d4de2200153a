"""The Kafka permissions that the pipeline needs, listed for the broker's administrator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lakehouse.settings import Settings
from lakehouse.storage.kafka.rights import Right
from lakehouse.streams.definition import Stream
from lakehouse.streams.topics import ALERTS, INPUT, LETTERS, OUTPUT, topics_of

_PREFIX = "lakehouse-"
_TABLE = "{table}"


def rights_of_pipeline(streams: Iterable[Stream], settings: Settings) -> list[Right]:
    """Return the permissions that `lakehouse run`, `audit`, `alert` and `serve` need for the streams.

    Permissions without `is_required` are optional. If the pipeline may not read a topic's limits, it assumes
    Kafka's defaults. If it may not create topics, the topics must already exist.
    """
    uses = list(topics_of(list(streams), settings))
    read, sent, alerts = (
        [one.topic for one in uses if one.kind in kinds] for kinds in ({INPUT}, {OUTPUT, LETTERS}, {ALERTS})
    )
    return [
        *(Right("Read", "topic", topic, "to read the records") for topic in read),
        *_of_sender([*sent, *alerts]),
        *_of_groups(settings),
        Right(
            "Write", "transactional id", _PREFIX, "to send rows and alerts in transactions", is_prefix=True
        ),
        *(
            Right(
                "DescribeConfigs",
                "topic",
                topic,
                "to read its limits; otherwise, Kafka's defaults are assumed",
                is_required=False,
            )
            for topic in [*read, *sent]
        ),
        *(
            Right("Create", "topic", topic, "to create the topic if it is missing", is_required=False)
            for topic in [*read, *sent, *alerts]
        ),
    ]


def rights_of_producer(streams: Iterable[Stream], settings: Settings) -> list[Right]:
    """Return the permissions that `lakehouse produce` needs."""
    topics = [settings.topic(source.topic) for stream in streams for source in stream.sources]
    return [Right("Write", "topic", topic, "to send sample events") for topic in topics]


def _of_sender(topics: Sequence[str]) -> Iterator[Right]:
    for topic in topics:
        yield Right("Write", "topic", topic, "to send to it")
        yield Right("Read", "topic", topic, "to find the last sent record after a restart, and for the audit")


def _of_groups(settings: Settings) -> Iterator[Right]:
    yield Right(
        "Read", "group", _PREFIX, "to store the positions of exports, webhooks and bronze", is_prefix=True
    )
    group = settings.kafka.consumer_group
    if group and not group.startswith(_PREFIX):
        name, separator, _ = group.partition(_TABLE)
        yield Right("Read", "group", name, "to store bronze's position", is_prefix=bool(separator))
