"""Write a table's folder so that a reader and a restarted export see a micro-batch completely or not at all.

A file gets its final name, and then `_position.json`, which lists it, is replaced in one step. A file that
is not listed does not count, and is removed. Everything is flushed to the disk before it is listed.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.sinks import Change, SinkTroubleError
from shop_sinks.reading import POSITION, State, read_state

_LOCK = "_lock"
_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("message", pa.string()),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("is_deleted", pa.bool_(), nullable=False),
    ]
)


class Folder:
    """A table's folder in the directory, which must exist: an unmounted disk is not written to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def state(self) -> State | None:
        """Return the folder's state, or None if it is missing or damaged.

        Raises OSError if the directory cannot be read.
        """
        try:
            return read_state(self.path)
        except FileNotFoundError:
            if not self.path.parent.is_dir():
                raise
        except ValueError:
            pass
        return None

    def has_files_of(self, state: State) -> bool:
        """Return whether all listed files exist."""
        return all((self.path / name).exists() for name in state.listed)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other exports from writing during the block. Raises SinkTroubleError if one is writing."""
        self.path.mkdir(exist_ok=True)
        with (self.path / _LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SinkTroubleError(f"another export is writing to {self.path}") from None
            yield

    def remove_unlisted(self, state: State | None) -> None:
        """Remove the files that do not count, such as those of a killed micro-batch."""
        listed = set() if state is None else {self.path / name for name in state.listed}
        for file in self.path.glob("day=*/*.parquet"):
            if file not in listed:
                file.unlink(missing_ok=True)

    def replace(self, state: State) -> None:
        """Replace the folder's state in one step."""
        file, new = self.path / POSITION, self.path / f"{POSITION}.new"
        new.write_text(state.as_json(), encoding="utf-8")
        _flush(new)
        new.replace(file)
        _flush(self.path)


class NewFile:
    """A file for rows, created with the first row, under a temporary name until it is `finished`."""

    def __init__(self, folder: Folder, day: date, span: str) -> None:
        name = f"{span}-{secrets.token_hex(4)}.parquet"
        self._folder, self._day = folder, f"day={day.isoformat()}"
        self._name, self._temporary = name, folder.path / self._day / f"_{name}"
        self._writer: pq.ParquetWriter | None = None
        self.rows = 0

    def add(self, changes: Sequence[Change]) -> None:
        """Write rows, in order."""
        if not changes:
            return
        if self._writer is None:
            self._temporary.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._temporary, _SCHEMA)
        rows = [_row(one) for one in changes]
        self._writer.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA))
        self.rows += len(rows)

    def finished(self) -> str | None:
        """Flush the file and give it its name, which is returned; or None if there are no rows."""
        if self._writer is None:
            return None
        self._writer.close()
        _flush(self._temporary)
        self._temporary.rename(self._temporary.with_name(self._name))
        _flush(self._temporary.parent)
        _flush(self._folder.path)
        return f"{self._day}/{self._name}"

    def discard(self) -> None:
        """Remove the file if it is not finished."""
        with suppress(OSError, pa.ArrowException):
            if self._writer is not None:
                self._writer.close()
            self._temporary.unlink(missing_ok=True)


def _row(change: Change) -> dict[str, object]:
    return {
        "key": change.row_key,
        "message": change.value,
        "version": change.version,
        "is_deleted": change.value is None,
    }


def _flush(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
