"""Send a gold table's rows to a Kafka topic. Kafka is the lead store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

from lakehouse.settings import Settings
from lakehouse.sinks.change import Change, Span, UnsentRow
from lakehouse.sinks.kafka.rows import TRANSACTION_TIMEOUT_S, KafkaSink
from lakehouse.sinks.kafka.slices import SLICE_ROWS, SlicedSink, last_sliced
from lakehouse.sinks.port import AuditedLead, Exported, Findings, LeadKind, Sending, Slice
from lakehouse.storage.kafka.topics import create_topics
from lakehouse.storage.tables import Progress
from lakehouse.streams.definition import MergedTable


class ToKafka:
    """The lead store for a table that has a topic. Creates the topic if necessary.

    A micro-batch is sent in one transaction. A large micro-batch is sent in slices, with a transaction for
    each slice and a final transaction for the position.
    """

    name = "kafka"

    def __init__(self, exported: Exported, topic: str) -> None:
        self.place = topic
        self._exported = exported
        self._access = exported.settings.kafka.access
        create_topics(self._access, {topic: exported.settings.kafka.topic_partitions})
        self._sink = KafkaSink(
            self._access, topic, exported.table.name, transaction_timeout_s=TRANSACTION_TIMEOUT_S
        )

    def sent(self) -> Progress | None:
        """Return the position up to which the table has been sent, or None if nothing has been sent."""
        return self._sink.sent()

    def begun(self) -> Span | None:
        """Return the span of the last micro-batch sent in slices, or None if there was none."""
        return last_sliced(self._access, self._exported.table.name, self.place)

    def send(self, changes: Iterable[Change], sending: Sending) -> Iterator[Slice]:
        """Send the rows in order, and yield each slice after its commit."""
        return self._in_slices(changes, sending) if sending.is_large else self._at_once(changes, sending)

    def close(self) -> None:
        """Close the connections."""
        self._sink.close()

    def _at_once(self, changes: Iterable[Change], sending: Sending) -> Iterator[Slice]:
        rows = list(changes)
        weighed = self._sink.weigh(rows)
        # Record refused rows first, so they are known even if the topic accepts them on a retry.
        self._note(weighed.refused, sending)
        yield Slice(rows, self._sink.write(weighed.fitting, sending.span), weighed.refused)

    def _in_slices(self, changes: Iterable[Change], sending: Sending) -> Iterator[Slice]:
        sliced = SlicedSink(
            self._access,
            self.place,
            self._exported.table.name,
            self._sink.take_over(),
            slice_rows=SLICE_ROWS,
            transaction_timeout_s=TRANSACTION_TIMEOUT_S,
            begins_anew=sending.begins_anew,
        )
        refused = list[UnsentRow]()
        with closing(sliced):
            for one in sliced.send(changes, sending.span):
                refused += one.refused
                yield one
        self._note(refused, sending)
        self._sink.write([], sending.span)

    def _note(self, refused: Sequence[UnsentRow], sending: Sending) -> None:
        if refused:
            self._exported.note_unsent(self.place, refused, sending.now)


def _topic_of(table: MergedTable, settings: Settings) -> str | None:
    topic = table.export.topic
    return None if topic is None else settings.topic(topic)


def _make(exported: Exported) -> ToKafka | None:
    topic = _topic_of(exported.table, exported.settings)
    return None if topic is None else ToKafka(exported, topic)


def _audit(audited: AuditedLead) -> Findings:
    from lakehouse.sinks.kafka.audit import compare  # imported late, because it loads Arrow

    return compare(audited)


KIND = LeadKind(
    "kafka",
    "Kafka",
    place=_topic_of,
    make=_make,
    audit=_audit,
)
