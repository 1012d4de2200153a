"""Read the rows that `shop_sinks.files` writes. This module needs pyarrow, but neither Spark nor lakehouse.

    <directory>/<table>/_position.json                                the table, the position, the files
    <directory>/<table>/day=2026-03-01/12-15-1f0c9a2b.parquet         the changes from position 12 to 15

Only the files listed in `_position.json` count. A file is never changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

POSITION = "_position.json"
At = tuple[int, int | None]
"""A position: a version, and a number of files of this version or None (`lakehouse.sinks.Position`)."""


@dataclass(frozen=True)
class State:
    """What a directory contains of a table.

    table       the table's name in recorded positions
    generation  the table's creation time, in ms since the epoch
    before      the position at which the last micro-batch begins
    position    the position up to which the table has been written
    files       the files up to `before`, in the order in which they were written
    last        the last micro-batch's file, or None if it has no rows
    """

    table: str
    generation: int
    before: At
    position: At
    files: tuple[str, ...]
    last: str | None = None

    @property
    def listed(self) -> tuple[str, ...]:
        """All files that count."""
        return self.files if self.last is None else (*self.files, self.last)

    def as_json(self) -> str:
        """Return the text of `_position.json`."""
        return json.dumps(asdict(self), indent=0)

    @classmethod
    def of_json(cls, text: str) -> State:
        """Return the state in the text of `_position.json`. Raises ValueError for any other text."""
        try:
            found: dict[str, Any] = json.loads(text)
            return cls(
                found["table"],
                found["generation"],
                _at(*found["before"]),
                _at(*found["position"]),
                tuple(found["files"]),
                found["last"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"{POSITION} has another form") from error


def _at(version: int, files: int | None) -> At:
    return version, files


def current_rows(directory: Path | str, table: str) -> dict[str, str]:
    """Return the newest message of each row that exists, keyed by row key.

    Raises FileNotFoundError if there are no rows of the table, not even deleted ones, and OSError if the
    directory cannot be read.
    """
    folder = Path(directory, table)
    rows = consistent_rows(folder, read_state(folder))
    return {key: message for key, (_, message) in rows.items() if message is not None}


def read_state(folder: Path) -> State:
    """Return the state of a table's folder. Raises OSError, and ValueError if the file is damaged."""
    return State.of_json((folder / POSITION).read_text(encoding="utf-8"))


def consistent_rows(folder: Path, state: State) -> dict[str, tuple[int, str | None]]:
    """Return each row's newest version and message (None if it was deleted), keyed by row key.

    If files are replaced while they are read, the new ones are read. Raises OSError.
    """
    while True:
        try:
            return {key: row for name in state.listed for key, row in _rows_of(folder / name)}
        except FileNotFoundError:
            newer = read_state(folder)
            if newer == state:
                raise
            state = newer


def _rows_of(file: Path) -> Iterator[tuple[str, tuple[int, str | None]]]:
    with pq.ParquetFile(file) as opened:
        for batch in opened.iter_batches():
            for row in batch.to_pylist():
                yield row["key"], (row["version"], None if row["is_deleted"] else row["message"])
