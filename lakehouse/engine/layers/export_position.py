"""The position of an export, from its lead and from the note in the lake."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession

from lakehouse.common.errors import PositionError
from lakehouse.engine.layers.step import Allow, Permitted
from lakehouse.engine.progress import sent
from lakehouse.sinks.change import Span
from lakehouse.storage import tables
from lakehouse.storage.tables import Progress
from lakehouse.storage.tables.adoption import adopted_ms, both_have
from lakehouse.storage.tables.specs import Position, from_micros


@dataclass(frozen=True)
class Begun:
    """Where an export continues: progress (None: nothing sent), end of the next micro-batch, sinks behind.

    `ahead` is the end of a micro-batch that was killed, or must be sent as a whole; None if it may end
    anywhere. `behind` are the names of the sinks that lack rows; None: any of them may.
    """

    progress: Progress | None
    ahead: Position | None
    behind: frozenset[str] | None

    def is_behind(self, sink: str) -> bool:
        """Return whether a sink may lack rows that were sent."""
        return self.behind is None or sink in self.behind


@dataclass(frozen=True)
class Noted:
    """The recorded progress of sending the table at a path to a topic (None: no topic).

    `there` is the progress in the topic. `sliced` is the last micro-batch that was sent in slices.
    """

    spark: SparkSession
    path: str
    table: str
    topic: str | None
    there: Progress | None
    sliced: Span | None

    def begun(self, permitted: Permitted) -> Begun:
        """Return where the export continues.

        If only the topic has the progress, other sinks may lack the last micro-batch, and are filled again.
        Raises PositionError if rows of another table were sent, unless resending everything is allowed. Also
        raises it if rows were sent by the lake that this one is a copy of, unless the copy is being adopted.
        """
        mine, there = tables.sent_as(self.spark, self.path), self.there
        here = sent.noted(self.spark, self.path, self.topic)
        here = here if here is not None and self._is_this(here) else None
        if there is not None and not self._is_this(there):
            if Allow.RESEND not in permitted.allow:
                raise self._another(there)
            there = None
        known = there or here
        if known is not None and known.table != mine:
            return self._adopted(mine, known, adopts=permitted.adopts)
        here = here if here is not None and here.table == mine else None
        is_lost = here is None and there is not None
        behind = None if is_lost else sent.behind(self.spark, self.path, self.topic)
        if here is None or there is None:
            position, ahead = here or there, None
        else:
            position, ahead = here, there.position if here.position.is_before(there.position) else None
        sliced = self._sliced(mine)
        if (
            sliced is not None
            and ahead is None
            and (position is None or position.position.is_before(sliced.after))
        ):
            # Some slices of that micro-batch were sent, and so were all rows before it.
            return Begun(Progress(mine, sliced.before), sliced.after, behind)
        return Begun(position, ahead, behind)

    def _adopted(self, mine: str, known: Progress, *, adopts: bool) -> Begun:
        """Return where a copy continues: after the part that both lakes share, up to now, as one micro-batch.

        The original may have sent later states of its rows than those in the copy's first versions, and other
        stores have its rows with the original's versions. These stores therefore get all rows again, as a new
        generation.
        """
        if not adopts:
            raise self._of_another_lake(mine, known)
        sliced = self._sliced(mine)
        if sliced is not None:  # by an attempt that was killed
            return Begun(Progress(mine, sliced.before), sliced.after, behind=None)
        both = both_have(mine, known.table)
        first = known.position if known.position.is_before(both) else both
        end = Position(tables.version_of(self.spark, self.path) + 1)
        return Begun(Progress(mine, first), end, behind=None)

    def _sliced(self, mine: str) -> Span | None:
        return self.sliced if self.sliced is not None and self.sliced.table == mine else None

    def _is_this(self, progress: Progress) -> bool:
        return progress.is_of(tables.table_id(self.spark, self.path))

    def _another(self, there: Progress) -> PositionError:
        return PositionError(
            f"rows of another {self.table} (table id {there.table}) were sent to topic {self.topic}; the one "
            f"at {self.path} has {tables.table_id(self.spark, self.path)}: it was deleted and recreated. "
            "Continuing would send every row again: restore that table, or run once with --allow "
            f"{Allow.RESEND}"
        )

    def _of_another_lake(self, mine: str, known: Progress) -> PositionError:
        if adopted_ms(known.table) > adopted_ms(mine):
            at = from_micros(1000 * adopted_ms(known.table))
            return PositionError(
                f"a copy of gold.{self.table} was adopted at {at:%F %T} UTC and has sent rows since; the "
                f"table at {self.path} is older. Run that copy; docs/backups.md"
            )
        return PositionError(
            f"rows of gold.{self.table} were sent by the lake that this one is a copy of. Run `lakehouse "
            "run all --adopt`, so that no row returns to an older version; docs/backups.md"
        )
