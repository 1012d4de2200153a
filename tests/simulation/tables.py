"""Actions on tables outside the layers: Delta's maintenance, and other writers' changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from deltalake import DeltaTable

from lakehouse.engine.layers import LAYERS
from tests.simulation.actions import Action
from tests.simulation.compare import landings
from tests.simulation.repairs import forget_in_time
from tests.simulation.world import World
from tests.support import delta_commands, pipeline
from tests.support.pipeline import DEAD_LETTERS, Coordinates, coordinates_of

_OF_SILVER = {"windows": {"value": "999"}, "sales": {"value": "999"}, "calls": {"user2": "'999'"}}
_AMOUNT = re.compile(rb'("(?:amount|value|analytics|metrics)": )[0-9]+')


def _changed_by(layer: str) -> set[str]:
    """Return the layers that may differ from the oracles after another writer's change in this layer."""
    return {"bronze": {"silver", "gold"}, "silver": {"silver", "gold"}}.get(layer, {layer})


@dataclass(frozen=True)
class _OfTable(Action):
    """Run an action on a table of the stream: bronze, silver, the letters or gold."""

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
    """VACUUM files that no version of the last week needs, or that the newest version does not need.

    In the second case (`everything`), all layers first read what they need of earlier versions. In gold, the
    audit of Redis also needs earlier versions while its rows live.
    """

    everything: bool = False

    def do(self, world: World) -> None:
        if self.everything:
            with world.process():
                world.run(LAYERS)
        table = self.table(world)
        delta_commands.vacuum(world.shared.spark, world.settings, table, everything=self.everything)


@dataclass(frozen=True)
class Restore(_OfTable):
    """RESTORE a table to its version a number of commits ago, as another writer might."""

    back: int = 1

    def do(self, world: World) -> None:
        table = self.table(world)
        version = max(0, pipeline.version_of(world.settings, table) - self.back)
        with _forgetting(world, table):
            if delta_commands.restore(world.shared.spark, world.settings, table, version):
                world.foreign |= _changed_by(self.layer)


@dataclass(frozen=True)
class ForeignUpdate(_OfTable):
    """UPDATE the first row of a table with delta-rs.

    An amount of 10 becomes 999 (in calls, the other user becomes 999), an open letter becomes replayed, and
    gold's count becomes 99. In bronze, the first amount in JSON becomes 999.
    """

    def do(self, world: World) -> None:
        if self.layer == "bronze":
            self._alter(world)
            return
        found = _first(world, self.table(world), self.layer)
        if found is not None:
            table = DeltaTable(str(world.path(self.table(world))))
            of_silver = _OF_SILVER.get(world.form, {"amount": "999"})
            of_gold = {"user2": "'999'"} if world.form == "calls" else {"count": "99"}
            of_layer = {"letters": {"status": "'replayed'"}, "gold": of_gold}
            table.update(of_layer.get(self.layer, of_silver), predicate=found)
            world.foreign |= _changed_by(self.layer)

    def _alter(self, world: World) -> None:
        rows = pipeline.rows_of(world.settings, self.table(world))
        for row in sorted(rows, key=coordinates_of):
            value, place = row["value"] or b"", coordinates_of(row)
            altered = _AMOUNT.sub(rb"\g<1>999", value)
            if altered != value:
                table = DeltaTable(str(world.path(self.table(world))))
                table.update({"value": f"decode('{altered.hex()}', 'hex')"}, predicate=_is_at(place))
                world.life.altered[place] = altered
                world.foreign |= _changed_by(self.layer)
                return


@dataclass(frozen=True)
class ForeignDelete(_OfTable):
    """DELETE the first row of a table with delta-rs; in bronze, delete the record of silver's first row."""

    def do(self, world: World) -> None:
        if self.layer == "bronze":
            self._lose(world)
            return
        found = _first(world, self.table(world), self.layer)
        if found is not None:
            with _forgetting(world, self.table(world)):
                DeltaTable(str(world.path(self.table(world)))).delete(found)
            world.foreign |= _changed_by(self.layer)

    def _lose(self, world: World) -> None:
        rows = pipeline.rows_of(world.settings, f"silver.{world.side(self.side).table}")
        there = landings(world.settings, world.stream).keys() - world.life.altered.keys()
        place = min(there & set(map(coordinates_of, rows)), default=None)
        if place is not None:
            world.note_landings()
            DeltaTable(str(world.path(self.table(world)))).delete(_is_at(place))
            world.life.altered[place] = None


@contextmanager
def _forgetting(world: World, table: str) -> Iterator[None]:
    """After the block, forget the in-time decisions for the silver rows that it removed."""
    if not table.startswith("silver."):
        yield
        return
    before = set(map(coordinates_of, pipeline.rows_of(world.settings, table)))
    yield
    forget_in_time(world, before - set(map(coordinates_of, pipeline.rows_of(world.settings, table))))


def _is_at(place: Coordinates) -> str:
    _, partition, offset = place
    return f'partition = {partition} AND "offset" = {offset}'


def _first(world: World, table: str, layer: str) -> str | None:
    """Return a condition for the first row or, among letters, the first open one; None if there is none."""
    rows = pipeline.rows_of(world.settings, table)
    if layer == "letters":
        rows = [row for row in rows if row["status"] == "open"]
    if not rows:
        return None
    if layer != "gold":
        return _is_at(min(map(coordinates_of, rows)))
    name = world.stream.gold[0].keys[0]
    return f"{name} = '{min(row[name] for row in rows)}'"
