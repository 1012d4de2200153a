"""Send each dead letter to a topic, when it is new and open and whenever its status changes.

Each stream has a step for this, which runs after silver, so dead letters are sent while the stream runs. A
dead letter is not sent again if a replay fails. It is never sent if its record has come back from the topic
too often.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial

from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F

from lakehouse.engine.layers.change_reading import ChangeReading, FeedBatch
from lakehouse.engine.layers.export_position import Noted
from lakehouse.engine.layers.step import Batch, BatchResult, Passed, Permitted, Step, StepMaker
from lakehouse.engine.progress import sent
from lakehouse.engine.progress.reading import InMemory
from lakehouse.engine.records.dead_letters import DEAD_LETTERS, OPEN
from lakehouse.settings import Settings
from lakehouse.sinks.kafka.letters import MOST_ROUNDS, Letter, LetterSink
from lakehouse.storage.kafka.topics import create_topics
from lakehouse.storage.spark.collecting import streamed
from lakehouse.storage.tables import Lake, Progress
from lakehouse.streams.definition import Stream

_FIELDS = ("id", "stream", "status", "topic", "partition", "offset", "key", "value", "headers", "reasons")


def steps(lake: Lake, stream: Stream, settings: Settings, permitted: Permitted) -> list[StepMaker]:
    """Return a factory for the step that sends a stream's dead letters, or none if no topic is configured."""
    if not settings.kafka.dead_letter_topic:
        return []
    make = partial(_LettersExport, lake, stream, settings, permitted)
    return [StepMaker(stream.name, "export", name_of(stream), make)]


def name_of(stream: Stream) -> str:
    """Return the step's name."""
    return f"export.{stream.name}_dead_letters"


def note_name(stream: Stream, topic: str) -> str:
    """Return the name of the note that records the progress of sending a stream's dead letters to a topic."""
    return f"{topic}.{stream.name}"


class _LettersExport(Step):
    """A step that sends the dead letters of a stream to the dead-letter topic."""

    layer = "export"

    def __init__(self, lake: Lake, stream: Stream, settings: Settings, permitted: Permitted) -> None:
        self.name = name_of(stream)
        self._stream = stream.name
        self._notice = permitted.on_notice
        self._spark = lake.spark
        self._path = lake.ensure(DEAD_LETTERS)
        self._max_bytes = settings.run.max_bytes
        create_topics(
            settings.kafka.access, {settings.kafka.dead_letter_topic: settings.kafka.topic_partitions}
        )
        self._sink = LetterSink(settings.kafka.access, settings.kafka.dead_letter_topic, stream.name)
        self._note = note_name(stream, settings.kafka.dead_letter_topic)
        table, there = DEAD_LETTERS.qualified_name, self._sink.sent()
        self._reading = ChangeReading(lake.spark, self.name, table, self._path, permitted.allow)
        noted = Noted(lake.spark, self._path, table, self._note, there, None)
        # No dead letter replaces another, so an adopted copy can send dead letters without catching up first.
        self._reading.begin(noted.begun(replace(permitted, adopts=True)))

    def plan(self, handed: Mapping[str, InMemory]) -> Batch | None:  # noqa: ARG002 - it reads a change feed
        """Choose the next changes to the dead-letter table, or return None if there are none."""
        part = self._reading.next(max_bytes=self.limit or self._max_bytes)
        return None if part is None else self._reading.batch(part)

    @contextmanager
    def write(self, batch: Batch, now: datetime) -> Iterator[Passed]:  # noqa: ARG002 - no time is sent
        """Send the chosen dead letters."""
        if not isinstance(batch, FeedBatch):
            raise TypeError(f"{self.name} can only write a micro-batch of dead letters")
        yield Passed(self._reading.written(batch, self._write))

    def _write(self, batch: FeedBatch) -> BatchResult:
        span = batch.span
        count = self._sink.write(self._letters(batch), span)
        sent.note(self._spark, self._path, self._note, Progress(span.table, span.after))
        self._reading.advance(span.after)
        return BatchResult(count, {self._sink.topic: count})

    def _letters(self, batch: FeedBatch) -> Iterator[Letter]:
        """Yield the dead letters to send, except those of records that keep returning, as from a mirror."""
        refused = 0
        told = filter_told(batch.rows, self._stream, is_partial=batch.lost is not None)
        for letter in map(_letter, streamed(told)):
            if letter.rounds > MOST_ROUNDS:
                refused += 1
            else:
                yield letter
        if refused:
            self._notice(
                f"{self.name}: dead letters not sent to {self._sink.topic} because their records have "
                f"returned from a dead-letter topic more than {MOST_ROUNDS} times: {refused:,}. They remain "
                f"in {DEAD_LETTERS.qualified_name}; find out what copies that topic to an input of the stream"
            )

    def end_here(self, filled: Collection[str]) -> None:
        """Send no dead letters beyond the current version, unless this run fills silver."""
        if not any(name.startswith("silver.") for name in filled):
            self._reading.end_here()

    def close(self) -> None:
        """Close the producer."""
        self._sink.close()


def filter_told(feed: DataFrame, stream: str, *, is_partial: bool = False) -> DataFrame:
    """Keep the changes to a stream's dead letters that must be sent, in commit order.

    A dead letter is sent when it is new and open, and whenever its status changes, for example when a rebuild
    opens it again. If the feed `is_partial`, because changes were removed, new rows in it may be old letters
    that have been closed, so they are sent, too.
    """
    is_before = F.col("_change_type").isin("update_preimage", "delete")
    of_letter = Window.partitionBy("_commit_version", "id").orderBy(is_before.desc())
    before = F.lag("status").over(of_letter)
    changed = feed.where(F.col("stream") == stream).withColumn("_before", before).where(~is_before)
    is_new, is_open = F.col("_before").isNull(), F.col("status") == OPEN
    told = changed.where(
        F.when(is_new, is_open | F.lit(is_partial)).otherwise(F.col("_before") != F.col("status"))
    )
    return told.orderBy("_commit_version", "first_seen", "topic", "partition", "offset").select(*_FIELDS)


def _letter(row: Row) -> Letter:
    return Letter(
        row.id,
        row.stream,
        row.status,
        row.topic,
        row.partition,
        row["offset"],
        None if row.key is None else bytes(row.key),
        None if row.value is None else bytes(row.value),
        tuple((one.key, None if one.value is None else bytes(one.value)) for one in row.headers or ()),
        tuple(one.asDict() for one in row.reasons or ()),
    )
