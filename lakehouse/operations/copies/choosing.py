"""Choose consistent versions of all tables for a copy while the streams run.

Each table records how far it has read its source tables. Its version is chosen before the versions of its
source tables, which therefore contain everything that it has read. Dead letters and side tables are written
before their main table but chosen after it. In the copy, they can therefore contain extra rows, as after a
killed micro-batch. The first run on the copy completes this micro-batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lakehouse.common.errors import TableError
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.storage import tables
from lakehouse.storage.spark import files as storage
from lakehouse.storage.tables import Lake, leases
from lakehouse.storage.tables.entries import LOG, commits_among
from lakehouse.streams.definition import Stream

_LAYERS = ("gold", "silver", "bronze")
_PATIENCE_S = 300.0
_LOOK_S = 1.0


@dataclass(frozen=True)
class Chosen:
    """A table, identified by layer and name, and the version to copy."""

    layer: str
    name: str
    version: int

    @property
    def qualified_name(self) -> str:
        """The table's SQL name: layer.table."""
        return f"{self.layer}.{self.name}"

    @property
    def place(self) -> str:
        """The table's path below the lake's root."""
        return f"{self.layer}/{self.name}"


def choose(lake: Lake, streams: Sequence[Stream]) -> list[Chosen]:
    """Return all of a lake's tables with consistent versions: gold, silver, bronze, then other layers.

    Waits while a gold table is being rebuilt or maintained, or silver or its dead letters are being repaired,
    because these operations take several commits. Raises TableError after waiting for five minutes.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        names = sorted(_names(lake), key=lambda one: _rank(*one, streams=streams))
        before = {one: newest(lake, *one) for one in names}
        chosen = [Chosen(*one, newest(lake, *one)) for one in names]
        disturbed = next(_disturbed(lake, chosen, before), None)
        if disturbed is None:
            return [one for one in chosen if one.version >= 0]
        if time.monotonic() > deadline:
            raise TableError(
                f"{disturbed} is still being rebuilt, repaired or maintained; copy the lake afterwards"
            )
        time.sleep(_LOOK_S)


def newest(lake: Lake, layer: str, name: str) -> int:
    """Return a table's newest version, based on its log's file names, or -1 if the log has no commits."""
    return max(commits_among(storage.names(lake.spark, f"{lake.path(layer, name)}/{LOG}")), default=-1)


def _names(lake: Lake) -> Iterator[tuple[str, str]]:
    for layer in storage.names(lake.spark, lake.root):
        if not layer.startswith(("_", ".")):
            yield from (
                (layer, name) for name in storage.names(lake.spark, f"{lake.root.rstrip('/')}/{layer}")
            )


def _rank(layer: str, name: str, *, streams: Sequence[Stream]) -> tuple[int, bool]:
    place = _LAYERS.index(layer) if layer in _LAYERS else len(_LAYERS)
    beside = {f"gold.{side.name}" for stream in streams for table in stream.gold for side in table.sides}
    return place, f"{layer}.{name}" in {*beside, DEAD_LETTERS.qualified_name}


def _disturbed(lake: Lake, chosen: Sequence[Chosen], before: dict[tuple[str, str], int]) -> Iterator[str]:
    """Yield the names of leased gold tables, and of other tables whose rows were rewritten since `before`.

    Repairs do not write tables in the order of the layers. A replay writes silver before the dead letters,
    and a rebuild of silver changes rows before gold does.
    """
    for one in chosen:
        path = lake.path(one.layer, one.name)
        if one.layer == "gold":
            if one.version >= 0 and leases.is_held(lake.spark, path):
                yield one.qualified_name
        elif any(
            tables.read_commit(lake.spark, path, version).rewrites
            for version in range(before[one.layer, one.name] + 1, one.version + 1)
        ):
            yield one.qualified_name
