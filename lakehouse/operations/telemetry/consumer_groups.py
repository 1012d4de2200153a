"""Publish bronze's progress as committed offsets of Kafka consumer groups, for standard lag tools.

The pipeline never reads these offsets, because bronze's tables record its progress. A background thread reads
the tables every two seconds and commits offsets that have advanced. A failure is reported once, and the
commit is retried.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from lakehouse.common.background import beside
from lakehouse.common.errors import ServiceError
from lakehouse.operations.telemetry.delta_log import Log
from lakehouse.operations.telemetry.progress import kafka_offsets
from lakehouse.settings import Settings
from lakehouse.storage.kafka.clients import Admin, KafkaError, OffsetAndMetadata, TopicPartition
from lakehouse.storage.kafka.probe import require_listening
from lakehouse.storage.kafka.refusals import Wanted, denied
from lakehouse.storage.spark.query_errors import what_of
from lakehouse.storage.tables.specs import path_of
from lakehouse.streams.definition import Stream

_EVERY_S = 2.0
_REQUEST_MS = 5_000
_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6)

_Offsets = Mapping[TopicPartition, OffsetAndMetadata]


@contextmanager
def committing(
    streams: Sequence[Stream], settings: Settings, on_notice: Callable[[str], None]
) -> Iterator[None]:
    """Keep the consumer groups up to date during the block, and update them once more at its end.

    Does nothing if the settings name no group.
    """
    if not settings.kafka.consumer_group:
        yield
        return
    progress = GroupProgress(streams, settings)

    def keep(ended: threading.Event) -> None:
        is_told = False
        while True:
            was_last = ended.wait(_EVERY_S)
            try:
                _commit(progress)
                is_told = False
            except Exception as error:  # noqa: BLE001 - the thread must survive every failure
                if not is_told:
                    on_notice(f"consumer groups are not up to date: {what_of(error)}")
                is_told = True
            if was_last:
                return

    try:
        with beside("consumer groups", keep, patience_s=2 * _REQUEST_MS / 1000):
            yield
    finally:
        progress.close()


def _commit(progress: GroupProgress) -> None:
    """Commit with retries, because a new broker does not yet have its topic for consumer offsets."""
    for pause_s in _PAUSES_S:
        try:
            progress.commit()
        except KafkaError as error:
            if not error.retriable:
                raise
            time.sleep(pause_s)
        else:
            return
    progress.commit()


class GroupProgress:
    """A client that commits bronze's positions to the consumer groups. Not thread-safe."""

    def __init__(self, streams: Sequence[Stream], settings: Settings) -> None:
        self._access = settings.kafka.access
        self._sources = [
            (
                settings.kafka.consumer_group.replace("{table}", source.table),
                settings.topic(source.topic),
                f"bronze.{source.table}",
                Log(path_of(settings.lake, "bronze", source.table)),
            )
            for stream in streams
            for source in stream.sources
        ]
        self._committed: dict[tuple[str, str], _Offsets] = {}
        self._admin: Admin | None = None

    def commit(self) -> None:
        """Commit the offsets that have changed since the last call.

        Raises ServiceError or KafkaError if the broker rejects the offsets. The next call then retries.
        """
        for group, topic, query, log in self._sources:
            log.refresh()
            offsets = kafka_offsets(log, query, topic)
            moved = {
                TopicPartition(topic, n): OffsetAndMetadata(offset, "", -1) for n, offset in offsets.items()
            }
            if moved and moved != self._committed.get((group, topic)):
                self._send(group, moved)
                self._committed[group, topic] = moved

    def close(self) -> None:
        """Disconnect from the broker."""
        admin, self._admin = self._admin, None
        if admin is not None:
            with suppress(Exception):
                admin.close()

    def _send(self, group: str, offsets: _Offsets) -> None:
        require_listening(self._access)
        wanted: Wanted = {
            "group": f"Read group {group}",
            "topic": f"Read topic {next(iter(offsets)).topic}",
        }
        try:
            if self._admin is None:
                self._admin = Admin(self._access, _REQUEST_MS / 1000)
            answers = self._admin.alter_group_offsets(group, offsets)
        except KafkaError as failed:
            self.close()
            raise denied(self._access, failed, wanted) or failed from failed
        for place, error in answers.items():
            if error.errno:
                no = denied(self._access, error.errno, wanted)
                if no is not None:
                    raise no
                told = f"group {group} rejected offsets for {place.topic} {place.partition}: {error.__name__}"
                raise error(told) if error.retriable else ServiceError(told)
