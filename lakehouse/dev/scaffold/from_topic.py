"""Sample records from a live topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakehouse.common.errors import SettingsError
from lakehouse.common.record_lines import Line, Record
from lakehouse.engine.formats import wire
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.newest import newest_records


@dataclass(frozen=True)
class FromTopic(Line):
    """A record of a topic. `file` is its topic and partition, and `number` its offset."""

    @property
    def place(self) -> str:
        """The record's coordinates, as in `lakehouse find`."""
        return f"{self.file}/{self.number}"


def lines_of_topic(access: KafkaAccess, topic: str, most: int) -> list[Line]:
    """Return up to `most` of a topic's newest records.

    Raises SettingsError if the values are in a format with schema ids, and otherwise as `newest_records`
    does.
    """
    records = newest_records(access, topic, most)
    if _are_framed([record.value for record in records if record.value is not None]):
        raise SettingsError(
            f"the records in topic {topic} begin with the id of a schema, so they are Avro, Protobuf or JSON "
            "Schema: samples must be JSON; for these formats, write the table yourself (docs/formats.md)"
        )
    return [_line(topic, record) for record in records]


def _line(topic: str, record: Record) -> Line:
    return FromTopic(record, f"{topic}/{record.partition}", record.offset or 0)


def _are_framed(values: Sequence[bytes]) -> bool:
    return bool(values) and all(
        value.startswith(wire.MAGIC) and len(value) >= wire.LENGTH for value in values
    )
