"""Gold rows as Parquet files by day, exactly once: the files and the position change in one step.

`reading.py` describes the layout. Each micro-batch with rows is one file, which contains every change once,
in the order of the versions.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path

import pyarrow as pa

from lakehouse.sinks import (
    Audited,
    Change,
    Exported,
    Findings,
    Position,
    Sending,
    Settings,
    SinkKind,
    SinkTroubleError,
    changes_of,
    outgoing,
)
from shop_sinks.comparing import Stored, compare
from shop_sinks.folder import Folder, NewFile
from shop_sinks.keys import keys_of
from shop_sinks.reading import At, State, consistent_rows, current_rows

__all__ = ["KIND", "current_rows"]

NAME, LABEL = "files", "the Parquet files"
_PART_ROWS = 10_000
_LOOK_EVERY_S = 30.0


class ToFiles:
    """The rows of one gold table, on their way to the table's folder."""

    name = NAME

    def __init__(self, exported: Exported) -> None:
        self._exported, self._table = exported, exported.table.name
        self._folder = Folder(_directory(exported.settings) / self._table)
        self._seen: State | None = None
        self._next: State | None = None  # None if the files already contain the micro-batch
        self._file: NewFile | None = None
        self._is_tidy = False
        self._look_at = 0.0  # on the monotonic clock

    def begin(self, sending: Sending) -> None:
        """Begin a file, and remove those of a killed micro-batch.

        Raises SinkTroubleError if the files do not end where the micro-batch begins.
        """
        self._discard()
        with _told(self._folder):
            self._seen = self._folder.state()
            if not self._is_tidy:
                with self._folder.locked():
                    self._folder.remove_unlisted(self._folder.state())
            self._is_tidy = True
        span = sending.span
        self._next = self._state_after(span.before, span.after, is_first=sending.is_first)
        self._file = NewFile(self._folder, _day(sending.now), f"{_text(span.before)}-{_text(span.after)}")

    def write(self, changes: Sequence[Change]) -> None:
        """Write the rows to the file, which does not count yet."""
        if self._next is not None and self._file is not None:
            with _told(self._folder):
                self._file.add(changes)

    def end(self) -> int:
        """List the file together with the position. Return how many rows it contains."""
        state, file, self._next, self._file = self._next, self._file, None, None
        return 0 if state is None or file is None else self._commit(state, file)

    def lacks_rows(self) -> bool:
        """Return whether the position or a file is missing, or false if the directory cannot be read.

        This is checked at most every thirty seconds.
        """
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + _LOOK_EVERY_S
        try:
            return self._whole() is None
        except OSError:
            return False

    def require(self) -> None:
        """Raise SinkTroubleError unless the folder can be written to."""
        with _told(self._folder), self._folder.locked():
            self._own(self._folder.state())

    def fill(self, reached: Position | None, now: datetime) -> int:
        """Replace all files with one that contains all rows that gold has at `reached`.

        Writes nothing if the files have reached that position.
        """
        self._discard()
        with _told(self._folder):
            self._seen, whole = self._folder.state(), self._whole()
        if reached is None or (whole is not None and not Position(*whole.position).is_before(reached)):
            return 0
        version = reached.version - (0 if reached.is_beginning else 1)
        self._file = file = NewFile(self._folder, _day(now), f"0-{version + 1}")
        with outgoing(self._exported.standing_at(version), changes_of(self._exported.table)) as rows:
            changes = rows.in_parts()
            while part := list(islice(changes, _PART_ROWS)):
                with _told(self._folder):
                    file.add(part)
        end = (version + 1, None)
        return self._commit(self._state(end, end, ()), file)

    def close(self) -> None:
        """Remove the unfinished file."""
        self._discard()

    def _commit(self, state: State, file: NewFile) -> int:
        """Replace the state with `state` and the file. Raises SinkTroubleError if another export did so."""
        with _told(self._folder), self._folder.locked():
            if self._folder.state() != self._seen:
                raise SinkTroubleError(f"another export has written {self._table} to {self._folder.path}")
            state = replace(state, last=file.finished())
            self._folder.replace(state)
            if self._seen is not None and not set(self._seen.listed).issubset(state.listed):
                self._folder.remove_unlisted(state)
        self._seen = state
        return file.rows

    def _state_after(self, before: Position, after: Position, *, is_first: bool) -> State | None:
        """Return the state after a micro-batch, without its file, or None if the files contain it.

        A killed micro-batch is sent again, perhaps within a larger one, whose file then replaces its file.
        """
        own, start, end = self._own(self._seen), _at(before), _at(after)
        if own is None and is_first:
            return self._state(start, end, ())
        if own is not None and own.position == start:
            return self._state(start, end, own.listed)
        if own is not None and not Position(*own.position).is_before(after):
            return None
        if own is not None and own.before == start:
            return self._state(start, end, own.files)
        reached = "no position" if own is None else f"position {Position(*own.position)}"
        raise SinkTroubleError(f"{LABEL} of {self._table} have {reached}, not {before}; they are filled")

    def _own(self, state: State | None) -> State | None:
        """Return the state if it is this table's. Raises SinkTroubleError if it is a newer table's."""
        if state is not None and state.generation > self._exported.generation:
            raise SinkTroubleError(
                f"{self._folder.path} has rows from a lake that is newer than this one; each lake needs its "
                "own directory"
            )
        return state if state is not None and state.table == self._exported.sent_as else None

    def _whole(self) -> State | None:
        """Return the state if it is this table's, and no file is missing."""
        state = self._folder.state()
        is_its = state is not None and state.table == self._exported.sent_as
        return state if state is not None and is_its and self._folder.has_files_of(state) else None

    def _state(self, before: At, position: At, files: Sequence[str]) -> State:
        exported = self._exported
        return State(exported.sent_as, exported.generation, before, position, tuple(files))

    def _discard(self) -> None:
        if self._file is not None:
            self._file.discard()
        self._next = self._file = None


def audit(audited: Audited) -> Findings:
    """Compare gold, at the position in the directory, with the rows in the files."""
    exported = audited.exported
    folder = Folder(_directory(exported.settings) / exported.table.name)
    with _told(folder):
        state = folder.state()
        if state is None or state.table != exported.sent_as:
            return Findings(0, 1, [({}, f"{LABEL} have no position for this table")])
        if Position(*state.position).is_beginning:
            return Findings(not_compared=[f"not compared: {LABEL} are being filled"])
        if not folder.has_files_of(state):
            return Findings(0, 1, [({}, f"{LABEL} are incomplete: a file is missing")])
        rows = sorted(consistent_rows(folder.path, state).items(), key=lambda row: row[0].encode())
    stored = ((key, Stored(*row)) for key, row in rows)
    return compare(audited, state.position[0] - 1, stored, LABEL)


@contextmanager
def _told(folder: Folder) -> Iterator[None]:
    """Raise SinkTroubleError, with one line, for every error of the files."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        why = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise SinkTroubleError(f"the directory {folder.path} cannot be used: {why}") from error


def _directory(settings: Settings) -> Path:
    return Path(keys_of(settings, NAME, required="directory")["directory"])


def _day(now: datetime) -> date:
    return now.astimezone(UTC).date()


def _at(position: Position) -> At:
    return position.version, position.files


def _text(position: Position) -> str:
    """Return a position as part of a file's name."""
    return str(position.version) if position.files is None else f"{position.version}.{position.files}"


def _require(settings: Settings) -> None:
    directory = _directory(settings)
    if not directory.is_dir():
        raise SinkTroubleError(f"the directory {directory} (sinks.files.directory) is missing")


KIND = SinkKind(
    NAME,
    LABEL,
    is_set=lambda settings: NAME in settings.sinks,
    require=_require,
    make=ToFiles,
    audit=audit,
)
