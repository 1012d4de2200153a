"""The note at the root of a copy: what it is a copy of, and up to which version of each table.

As long as it lies there, nothing may write to the copy, which would then no longer be one. `lakehouse adopt`
removes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from lakehouse.errors import TableError
from lakehouse.spark import storage
from lakehouse.tables import Lake

_NAME = "_lakehouse_copy.json"
_SEE = "docs/backups.md"


@dataclass(frozen=True)
class Copied:
    """A table's id, and the last version that the copy has."""

    id: str
    version: int


@dataclass(frozen=True)
class Marker:
    """What a copy is: of which lake, when its versions were chosen (ISO 8601, UTC), and these, by table.

    A copy without tables was never finished. `towards` are the versions that are being copied to it; they
    were left there by a copy that was killed.
    """

    of: str
    at: str = ""
    tables: Mapping[str, Copied] | None = None
    towards: Mapping[str, Copied] | None = None

    @property
    def known(self) -> Mapping[str, Copied]:
        """The tables that the copy may have, and the last versions of the original that it may have."""
        return {**(self.tables or {}), **(self.towards or {})}


def read(spark: SparkSession, root: str) -> Marker | None:
    """Return the note of a copy; null for a lake that is none. Raises TableError if it cannot be read."""
    file = _file(root)
    if not storage.exists(spark, file):
        return None
    try:
        said = json.loads(storage.read_text(spark, file))
        found = {name: _tables(said[name]) for name in ("tables", "towards")}
        return Marker(said["of"], said["at"], **found)
    except (ValueError, LookupError, TypeError) as error:
        raise TableError(f"{file} cannot be read, so it is unknown what {root} is a copy of") from error


def write(spark: SparkSession, root: str, marker: Marker) -> None:
    """Write the note, in place of the one before."""
    storage.write_text(spark, _file(root), json.dumps(asdict(marker)))


def remove(spark: SparkSession, root: str) -> None:
    """Make a copy a lake like others."""
    storage.delete(spark, _file(root))


def refuse_copy(lake: Lake) -> None:
    """Raise TableError if the lake is a copy, before anything writes to it."""
    marker = refuse_unfinished(lake)
    if marker is not None:
        raise TableError(
            f"{lake.root} is a copy of {marker.of} as of {marker.at}. If it shall take that lake's place, "
            f"stop whatever still runs there, and run `lakehouse adopt`; {_SEE}"
        )


def refuse_unfinished(lake: Lake) -> Marker | None:
    """Return the note of a copy, as `read` does; raises TableError if it was never finished, too."""
    marker = read(lake.spark, lake.root)
    if marker is not None and marker.tables is None:
        raise TableError(
            f"{lake.root} is an unfinished copy of {marker.of}: run `lakehouse copy` there again; {_SEE}"
        )
    return marker


def now() -> str:
    """Return the time as a marker says it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _tables(said: object) -> dict[str, Copied] | None:
    if said is None:
        return None
    if not isinstance(said, dict):
        raise TypeError
    return {name: Copied(one["id"], one["version"]) for name, one in said.items()}


def _file(root: str) -> str:
    return f"{root.rstrip('/')}/{_NAME}"
