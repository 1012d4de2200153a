"""The marker file at a copy's root. It contains the path of the original, and each table's copied version.

While the file exists, the copy is read-only. `lakehouse run all --adopt` removes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from lakehouse.common.errors import TableError
from lakehouse.storage.spark import files as storage
from lakehouse.storage.tables import Lake

_NAME = "_lakehouse_copy.json"
_SEE = "docs/backups.md"


@dataclass(frozen=True)
class Copied:
    """A table's id, and its newest version in the copy."""

    id: str
    version: int


@dataclass(frozen=True)
class Marker:
    """The contents of a marker file.

    `of` is the path of the original, and `at` is the time (ISO 8601, UTC) when the versions were chosen.
    `tables` contains the copied tables, or None if the copy was never finished. `towards` contains the
    versions that a run is copying, or was copying when it was killed.
    """

    of: str
    at: str = ""
    tables: Mapping[str, Copied] | None = None
    towards: Mapping[str, Copied] | None = None

    @property
    def known(self) -> Mapping[str, Copied]:
        """The tables that the copy might contain, with the newest possible version of each table."""
        return {**(self.tables or {}), **(self.towards or {})}


def read(spark: SparkSession, root: str) -> Marker | None:
    """Return a copy's marker, or None if the lake is not a copy.

    Raises TableError if the marker is unreadable.
    """
    file = _file(root)
    if not storage.exists(spark, file):
        return None
    try:
        said = json.loads(storage.read_text(spark, file))
        found = {name: _tables(said[name]) for name in ("tables", "towards")}
        return Marker(said["of"], said["at"], **found)
    except (ValueError, LookupError, TypeError) as error:
        raise TableError(f"{file} cannot be read, so it is unknown which lake {root} is a copy of") from error


def write(spark: SparkSession, root: str, marker: Marker) -> None:
    """Write the marker, replacing any earlier marker."""
    storage.write_text(spark, _file(root), json.dumps(asdict(marker)))


def remove(spark: SparkSession, root: str) -> None:
    """Remove the marker. The copy then becomes an ordinary lake."""
    storage.delete(spark, _file(root))


def refuse_copy(lake: Lake) -> None:
    """Raise TableError if the lake is a copy. Must be called before any write."""
    marker = refuse_unfinished(lake)
    if marker is not None:
        raise TableError(
            f"{lake.root} is a copy of {marker.of} as of {marker.at}. To use it instead of the "
            f"original, stop everything that runs there, then run `lakehouse run all --adopt` here; {_SEE}"
        )


def refuse_unfinished(lake: Lake) -> Marker | None:
    """Return a copy's marker, or None if the lake is not a copy. Raise TableError for an unfinished copy."""
    marker = read(lake.spark, lake.root)
    if marker is not None and marker.tables is None:
        raise TableError(
            f"{lake.root} is an unfinished copy of {marker.of}: rerun `lakehouse copy` to finish it; {_SEE}"
        )
    return marker


def now() -> str:
    """Return the current time in the format of `Marker.at`."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _tables(said: object) -> dict[str, Copied] | None:
    if said is None:
        return None
    if not isinstance(said, dict):
        raise TypeError
    return {name: Copied(one["id"], one["version"]) for name, one in said.items()}


def _file(root: str) -> str:
    return f"{root.rstrip('/')}/{_NAME}"
