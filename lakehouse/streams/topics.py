"""The topics of a lake, under their configured names, and what each one is for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lakehouse.settings import Settings
from lakehouse.settings.alerts import state_topic
from lakehouse.streams.definition import Stream

INPUT, OUTPUT, LETTERS, ALERTS = "input topic", "output topic", "dead letters", "alerts"


@dataclass(frozen=True)
class TopicUse:
    """A use of a topic: its configured name, its kind, and a description for messages."""

    topic: str
    kind: str
    what: str


def topics_of(streams: Sequence[Stream], settings: Settings) -> Iterator[TopicUse]:
    """Yield each use of a topic."""

    def named(topic: str, kind: str, what: str) -> TopicUse:
        renamed = settings.topic(topic)
        alias = "" if renamed == topic else f" as {topic} (topics.{topic})"
        return TopicUse(renamed, kind, f"{what}{alias}")

    for stream in streams:
        for source in stream.sources:
            yield named(source.topic, INPUT, f"stream {stream.name} reads it")
        for table in stream.tables:
            if table.export.topic is not None:
                what = f"stream {stream.name} sends gold.{table.name} to it"
                yield named(table.export.topic, OUTPUT, what)
    letters, alerts = settings.kafka.dead_letter_topic, settings.alerts.topic
    if letters:
        yield TopicUse(letters, LETTERS, "dead letters go to it (kafka.dead_letter_topic)")
    yield TopicUse(alerts, ALERTS, "alerts go to it (alerts.topic)")
    yield TopicUse(state_topic(alerts), ALERTS, "it holds the state of alerts (alerts.topic)")
