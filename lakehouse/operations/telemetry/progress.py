"""Read the progress of queries from their target tables' logs, without a JVM."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from lakehouse.engine.progress import sent
from lakehouse.engine.progress.positions import application, offsets_in, position_in, sources_in
from lakehouse.engine.progress.sent import Lacking
from lakehouse.operations.telemetry.delta_log import Log, from_ms
from lakehouse.storage.files import Found, files_of
from lakehouse.storage.tables.specs import Position, Progress


def kafka_offsets(log: Log, query: str, topic: str) -> Mapping[int, int]:
    """Return a query's position in each of a topic's partitions: the first offset that has not landed."""
    found = dict[int, int]()
    for source in {one.rpartition("/")[0] for one in sources_in(log.transactions, query)}:
        if source.rpartition(":")[0] == topic:
            found |= offsets_in(log.transactions, query, source)
    return found


def position(log: Log, query: str, source: Log) -> Position | None:
    """Return a query's position in `source`, from its target table's log, or None if none is recorded."""
    return position_in(log.transactions, application(query, source.table_id or ""))


def written_at(log: Log, query: str) -> datetime | None:
    """Return the time (UTC) when the query last wrote to its target table, or None if it never has."""
    last = _last_noted(log, query)
    return None if last is None else from_ms(log.noted_ms[last])


def written_bytes(log: Log, query: str) -> int | None:
    """Return the size of the files that the query's last micro-batch added to its target table, if known."""
    last = _last_noted(log, query)
    return None if last is None else log.noted_bytes.get(last)


def _last_noted(log: Log, query: str) -> str | None:
    """Return the query's application with the latest transaction, or None if it has none."""
    prefix = application(query, "")
    own = (name for name in log.noted_ms if name.startswith(prefix))
    return max(own, key=log.noted_ms.__getitem__, default=None)


class ExportProgress:
    """An export's progress, read from its note in the lake at the last `refresh`.

    `position` is None before the first micro-batch, or if the note belongs to a different table. `lacking`
    says why which stores lack rows. `at` is the time of the last micro-batch (UTC).
    """

    def __init__(self, table: Log, topic: str | None) -> None:
        self._table = table
        self._files, self._name = files_of(table.path), sent.name_of(topic)
        self._found: Found | None = None
        self.at: datetime | None = None
        self._noted: Progress | None = None
        self.lacking: Mapping[str, Lacking] = {}

    @property
    def position(self) -> Position | None:
        """The export's position in the table."""
        noted = self._noted
        return noted.position if noted is not None and noted.is_of(self._table.table_id) else None

    def refresh(self) -> None:
        """Read the note if it has changed."""
        found = self._files.find(self._name)
        if found is None:
            self.at, self._noted, self.lacking = None, None, {}
        elif self._found is None or found.stamp != self._found.stamp:
            text = found.text()
            self._noted, self.lacking = sent.progress_in(text), sent.lacking_in(text)
            self.at = sent.at_in(text) or from_ms(found.modified_ms)  # earlier versions noted no time
        self._found = found
