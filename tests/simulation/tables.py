"""What is done to tables outside the layers: Delta's chores, and what other writers do."""

from __future__ import annotations

from dataclasses import dataclass, field

from deltalake import DeltaTable

from tests.simulation.actions import Action
from tests.simulation.world import World
from tests.support import delta_commands, pipeline
from tests.support.pipeline import DEAD_LETTERS, coordinates_of

_OF_SILVER = {"windows": {"value": "999"}, "sales": {"value": "999"}, "calls": {"user2": "'999'"}}


def _changed_by(layer: str) -> set[str]:
    """Return the layers that are no longer right: gold was made from the previous silver."""
    return {layer, "gold"} if layer == "silver" else {layer}


@dataclass(frozen=True)
class _OfTable(Action):
    """Do something to a table of the stream: bronze, silver, the letters or gold."""

    layer: str = "silver"
    side: int = field(default=0, kw_only=True)

    def table(self, world: World) -> str:
        names = {"letters": DEAD_LETTERS, "gold": f"gold.{world.stream.gold[0].name}"}
        return names.get(self.layer, f"{self.layer}.{world.side(self.side).table}")


@dataclass(frozen=True)
class Optimize(_OfTable):
    """OPTIMIZE a table."""

    def do(self, world: World) -> None:
        delta_commands.optimize(world.shared.spark, world.settings, self.table(world))


@dataclass(frozen=True)
class Vacuum(_OfTable):
    """VACUUM a table of what no version of the last week needs."""

    def do(self, world: World) -> None:
        delta_commands.vacuum(world.shared.spark, world.settings, self.table(world), everything=False)


@dataclass(frozen=True)
class Restore(_OfTable):
    """RESTORE a table to its version so many commits ago, as another writer might."""

    back: int = 1

    def do(self, world: World) -> None:
        table = self.table(world)
        version = max(0, pipeline.version_of(world.settings, table) - self.back)
        if delta_commands.restore(world.shared.spark, world.settings, table, version):
            world.foreign |= _changed_by(self.layer)


@dataclass(frozen=True)
class ForeignUpdate(_OfTable):
    """UPDATE the first row of a table with delta-rs.

    10 becomes 999 (in calls, the other user does), an open letter becomes replayed, and gold's count becomes
    99.
    """

    def do(self, world: World) -> None:
        found = _first(world, self.table(world), self.layer)
        if found is not None:
            table = DeltaTable(str(world.path(self.table(world))))
            of_silver = _OF_SILVER.get(world.form, {"amount": "999"})
            of_gold = {"user2": "'999'"} if world.form == "calls" else {"count": "99"}
            of_layer = {"letters": {"status": "'replayed'"}, "gold": of_gold}
            table.update(of_layer.get(self.layer, of_silver), predicate=found)
            world.foreign |= _changed_by(self.layer)


@dataclass(frozen=True)
class ForeignDelete(_OfTable):
    """DELETE the first row of a table with delta-rs."""

    def do(self, world: World) -> None:
        found = _first(world, self.table(world), self.layer)
        if found is not None:
            DeltaTable(str(world.path(self.table(world)))).delete(found)
            world.foreign |= _changed_by(self.layer)


def _first(world: World, table: str, layer: str) -> str | None:
    """Return a condition for the first row or, among letters, the first open one; None if there is none."""
    rows = pipeline.rows_of(world.settings, table)
    if layer == "letters":
        rows = [row for row in rows if row["status"] == "open"]
    if not rows:
        return None
    if layer != "gold":
        _, partition, offset = min(map(coordinates_of, rows))
        return f'partition = {partition} AND "offset" = {offset}'
    name = world.stream.gold[0].keys[0]
    return f"{name} = '{min(row[name] for row in rows)}'"
