"""Count the records that a run refuses, using the results of its micro-batches, and check the limit.

Counting needs no Spark job. When the run ends, or when a warning is due, the causes are read from the dead
letters that the run has written.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.engine.ops_tables.refusals import Refusals, commonest, note_refusals, percent
from lakehouse.engine.runtime.loop import BatchDone, Clock, utc_now
from lakehouse.storage import tables
from lakehouse.streams.definition import Stream

log = logging.getLogger(__name__)
WINDOW = timedelta(hours=1)
"""The period over which a live run compares the share of refused records with the limit."""
AGAIN = timedelta(hours=1)
_STEADY = timedelta(minutes=10)
_MINUTE = timedelta(minutes=1)


@dataclass
class _Minute:
    """The number of records that were validated and refused in the minute that begins at `at`."""

    at: datetime
    judged: int = 0
    refused: int = 0


@dataclass
class _Count:
    """The number of records that were validated and refused for one table.

    `minutes` contains the counts for the last hour of a live run. `told` contains the time of the last
    report, and whether that report said that the limit was exceeded. `told` is None before the first report.
    """

    stream: str
    judged: int = 0
    refused: int = 0
    minutes: deque[_Minute] = field(default_factory=deque)
    told: tuple[datetime, bool] | None = None


class RefusalCounts:
    """Counts, for each table, the records that silver validates and refuses.

    `dead_path` is the path of the dead letters, and `limit` is the share that may be refused. In a live run,
    `warn` is called when the share first exceeds the limit, every hour while it does, and when the share is
    within the limit again. Thread-safe if the micro-batches of each table are counted one after the other.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        dead_path: str,
        limit: float,
        warn: Callable[[str], None],
        *,
        is_live: bool,
        clock: Clock = utc_now,
    ) -> None:
        self._counts = {
            f"silver.{source.table}": _Count(stream.name) for stream in streams for source in stream.sources
        }
        self._dead_path = dead_path
        self._limit = limit
        self._warn = warn
        self._is_live = is_live
        self._clock = clock
        self._since = clock()

    def on_batch(self, done: BatchDone) -> None:
        """Count a written micro-batch; in a live run, warn if a warning is due."""
        count = self._counts.get(done.query)
        if count is None or not done.result.rows:
            return
        judged, refused = done.result.rows, done.result.refused
        count.judged += judged
        count.refused += refused
        if not self._is_live:
            return
        now = self._clock()
        _count_in(count.minutes, now, judged, refused)
        lately = self._lately(done.query, count)
        if lately.is_over != (count.told is not None and count.told[1]) or _is_due(count.told, now):
            self._tell(count, lately, now)

    def ended(self) -> list[tuple[str, Refusals]]:
        """Record the refusals in the run, and return them with causes, by stream and table.

        Reads the causes with the active Spark session.
        """
        found = []
        for table, count in self._counts.items():
            if not count.judged:
                continue
            whole = self._with_causes(Refusals(table, count.judged, count.refused, self._limit), self._since)
            lately = replace(self._lately(table, count), causes=whole.causes) if self._is_live else whole
            if lately.is_telling:
                note_refusals(count.stream, lately)
            found.append((count.stream, whole))
        return found

    def _lately(self, table: str, count: _Count) -> Refusals:
        judged = sum(one.judged for one in count.minutes)
        refused = sum(one.refused for one in count.minutes)
        return Refusals(table, judged, refused, self._limit)

    def _tell(self, count: _Count, lately: Refusals, now: datetime) -> None:
        was_over = count.told is not None and count.told[1]
        if was_over and not lately.is_over and count.told is not None and now - count.told[0] < _STEADY:
            return
        count.told = (now, lately.is_over)
        if not lately.is_over:
            note_refusals(count.stream, lately)
            self._warn(f"{lately} in the last hour: back within the limit of {percent(self._limit)}")
            return
        lately = self._with_causes(lately, max(self._since, now - WINDOW))
        note_refusals(count.stream, lately)
        self._warn(warning(count.stream, lately, "in the last hour"))

    def _with_causes(self, refusals: Refusals, since: datetime) -> Refusals:
        if not refusals.refused:
            return refusals
        try:
            letters = tables.read(SparkSession.active(), self._dead_path)
            ours = (F.col("job") == refusals.table) & (F.col("first_seen") >= F.lit(since))
            return replace(refusals, causes=commonest(letters.where(ours)))
        except Exception:  # Spark may have ended; then only the share is reported
            log.exception("the causes of refusals could not be read")
            return refusals


def warning(stream: str, refusals: Refusals, when: str) -> str:
    """Return a warning that too many records were refused."""
    causes = f": {'; '.join(map(str, refusals.causes))}" if refusals.causes else ""
    return (
        f"{refusals} {when}, more than run.refused_limit allows ({percent(refusals.limit)}){causes}. "
        f"`lakehouse dead-letters list --stream {stream}` shows them"
    )


def _count_in(minutes: deque[_Minute], now: datetime, judged: int, refused: int) -> None:
    """Add a micro-batch to the current minute, and drop minutes older than an hour."""
    if not minutes or now - minutes[-1].at >= _MINUTE:
        minutes.append(_Minute(now))
    minutes[-1].judged += judged
    minutes[-1].refused += refused
    while now - minutes[0].at > WINDOW:
        minutes.popleft()


def _is_due(told: tuple[datetime, bool] | None, now: datetime) -> bool:
    """Return whether a warning that still applies is due again."""
    return told is not None and told[1] and now - told[0] >= AGAIN
