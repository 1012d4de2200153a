"""An export's position, as recorded by its lead store and in the lake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession

from lakehouse.common.errors import PositionError, StoreWord
from lakehouse.engine.layers import Allow
from lakehouse.engine.layers.step import Permitted
from lakehouse.engine.progress import sent
from lakehouse.sinks.change import Span
from lakehouse.storage import tables
from lakehouse.storage.tables import Progress
from lakehouse.storage.tables.adoption import adopted_ms, both_have
from lakehouse.storage.tables.specs import Position, from_micros

_UNKNOWN = sent.Lacking(StoreWord.BEHIND, "it is unknown which rows it has", None)


@dataclass(frozen=True)
class Begun:
    """The position at which an export starts, the end of its next micro-batch, and the sinks to fill.

    `progress` is None if nothing has been sent. `ahead` is the position at which the next micro-batch must
    end, because an earlier attempt was killed or because the micro-batch cannot be split; None means that it
    can end anywhere. `lacking` says why which sinks lack rows; None means that any sink might lack rows. If
    the topic records another table's progress, which must not be refused again, `replaces` is true.
    """

    progress: Progress | None
    ahead: Position | None
    lacking: Mapping[str, sent.Lacking] | None
    replaces: bool = False

    def lacking_of(self, sink: str) -> sent.Lacking | None:
        """Return why a sink might lack rows that were sent, or None if it has them."""
        return _UNKNOWN if self.lacking is None else self.lacking.get(sink)


@dataclass(frozen=True)
class Noted:
    """The recorded progress of exporting the table at `path` to `topic` (None if there is no topic).

    `table` is the qualified name of the table. `in_topic` is the progress recorded in the topic. `sliced` is
    the range of the last micro-batch that was sent in slices.
    """

    spark: SparkSession
    path: str
    table: str
    topic: str | None
    in_topic: Progress | None
    sliced: Span | None

    def begun(self, permitted: Permitted) -> Begun:
        """Return the point where the export resumes.

        If the progress is recorded only in the topic, the sinks might lack the last micro-batch, so they are
        filled again.

        Raises PositionError if rows of a different table were sent, unless resending everything is allowed.
        Also raises it if this lake is a copy and the original lake has sent rows, unless the copy is being
        adopted.
        """
        sender = tables.sent_as(self.spark, self.path)
        in_topic, in_lake = self._of_topic(permitted), self._of_lake()
        newest = in_topic or in_lake
        if newest is not None and newest.table != sender:
            return self._adopted(sender, newest, adopts=permitted.adopts)
        if in_lake is not None and in_lake.table != sender:
            in_lake = None
        lacking = sent.lacking(self.spark, self.path, self.topic) if in_lake or not in_topic else None
        progress, ahead = in_lake or in_topic, None
        if in_lake is not None and in_topic is not None and in_lake.position.is_before(in_topic.position):
            ahead = in_topic.position
        sliced = self._sliced(sender)
        is_beyond = progress is None or (sliced is not None and progress.position.is_before(sliced.after))
        if sliced is not None and ahead is None and is_beyond:
            # All earlier rows and some slices of the micro-batch have been sent.
            return Begun(Progress(sender, sliced.before), sliced.after, lacking)
        return Begun(progress, ahead, lacking, replaces=self.in_topic is not None and in_topic is None)

    def _of_topic(self, permitted: Permitted) -> Progress | None:
        """Return the topic's progress, or None if it belongs to another table and resending is allowed."""
        if self.in_topic is None or self._is_this(self.in_topic):
            return self.in_topic
        if Allow.RESEND not in permitted.allow:
            raise self._another(self.in_topic)
        return None

    def _of_lake(self) -> Progress | None:
        """Return the progress recorded in the lake, or None if it belongs to a different table."""
        noted = sent.noted(self.spark, self.path, self.topic)
        return noted if noted is not None and self._is_this(noted) else None

    def _adopted(self, sender: str, sent_before: Progress, *, adopts: bool) -> Begun:
        """Return the point where the export resumes in a copy of a lake.

        One micro-batch covers all changes since the lake was copied, because the original lake may have sent
        newer states of the rows than the copy's first new versions contain. The other stores contain rows
        with version numbers from the original lake, so all rows are sent to these stores again, as a new
        generation.
        """
        if not adopts or adopted_ms(sent_before.table) > adopted_ms(sender):
            raise self._of_another_lake(sender, sent_before)
        sliced = self._sliced(sender)
        if sliced is not None:  # an earlier attempt was killed
            return Begun(Progress(sender, sliced.before), sliced.after, lacking=None)
        common = both_have(sender, sent_before.table)
        first = sent_before.position if sent_before.position.is_before(common) else common
        end = Position(tables.version_of(self.spark, self.path) + 1)
        return Begun(Progress(sender, first), end, lacking=None)

    def _sliced(self, sender: str) -> Span | None:
        return self.sliced if self.sliced is not None and self.sliced.table == sender else None

    def _is_this(self, progress: Progress) -> bool:
        return progress.is_of(tables.table_id(self.spark, self.path))

    def _another(self, other: Progress) -> PositionError:
        return PositionError(
            f"rows of a different {self.table} (table id {other.table}) were sent to topic {self.topic}; the "
            f"table at {self.path} has id {tables.table_id(self.spark, self.path)} because it was deleted "
            "and recreated. Continuing would send every row again. Restore the old table, or run once with "
            f"--allow {Allow.RESEND}"
        )

    def _of_another_lake(self, sender: str, sent_before: Progress) -> PositionError:
        if adopted_ms(sent_before.table) > adopted_ms(sender):
            at = from_micros(1000 * adopted_ms(sent_before.table))
            return PositionError(
                f"a copy of {self.table} was adopted at {at:%F %T} UTC and has sent rows since; the "
                f"table at {self.path} is older. Run the pipeline on the adopted copy instead "
                "(docs/backups.md)"
            )
        return PositionError(
            f"rows of {self.table} were sent by the lake that this lake was copied from. Run `lakehouse run "
            "all --adopt`, which keeps rows from reverting to older versions (docs/backups.md)"
        )
