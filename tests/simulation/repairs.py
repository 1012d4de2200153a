"""What people do to a lake: decide about letters, rebuild, maintain, change tables by other writers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar

from deltalake import DeltaTable

from lakehouse.maintenance.upkeep import Keeper, tasks
from lakehouse.records.dead_letters import Selection
from lakehouse.records.offsets import OffsetRange
from lakehouse.repair.rebuild_gold import WindowSpan, rebuild_gold
from lakehouse.repair.rebuild_silver import Landed, rebuild_silver
from lakehouse.repair.replay import discard, replay
from lakehouse.repair.resolve import resolve_by_record
from tests import pipeline
from tests.fuzz import commands
from tests.pipeline import DEAD_LETTERS, Coordinates, Row, coordinates_of
from tests.simulation.actions import Action
from tests.simulation.model import Decision
from tests.simulation.world import World


def open_letters(world: World) -> list[Row]:
    """Return the open letters, in the order of their places."""
    found = (row for row in pipeline.rows_of(world.settings, DEAD_LETTERS) if row["status"] == "open")
    return sorted(found, key=coordinates_of)


@dataclass(frozen=True)
class _OfLetters(Action):
    """Decide about open letters: about the n-th, or, with -1, about all."""

    which: int = -1

    what: ClassVar[str] = ""

    def do(self, world: World) -> None:
        letters = open_letters(world)
        if not letters:
            return
        chosen = letters if self.which < 0 else [letters[self.which % len(letters)]]
        selection = Selection() if self.which < 0 else Selection(id=chosen[0]["id"])
        places = {coordinates_of(letter) for letter in chosen}
        before = _admissions(world, places)
        after_us, at = processed(world), world.decided_at()
        is_done = False
        with world.process(partial(self.do, world)), world.refusing():
            self._decide(world, selection, at)
            is_done = True
        found = _admissions(world, places) - before
        if found:  # when a replay has let them in, it says itself
            after_us, _ = max(found, key=lambda one: one[1])
        if found or is_done or {coordinates_of(one) for one in open_letters(world)} & places < places:
            # Letters of a micro-batch that silver has not finished are left alone.
            landed = {coordinates_of(letter): letter["ingested_at"] or 0 for letter in chosen}
            for place in sorted(place for place in places if landed[place] <= after_us):
                self._put_down(world, place, after_us, pipeline.micros(at))

    @abstractmethod
    def _decide(self, world: World, selection: Selection, at: datetime) -> None: ...

    def _put_down(self, world: World, place: Coordinates, after_us: int, at_us: int) -> None:
        made = Decision(self.what, place, after_us, at_us, allows_late=getattr(self, "allow_late", False))  # type: ignore[arg-type]
        world.life.decisions[world.source.table].append(made)


def processed(world: World) -> int:
    """Return the greatest landing, in microseconds, that silver's commits say it has processed; 0: none."""
    table = f"silver.{world.source.table}"
    return pipeline.noted(world.settings, table).get(f"{table} landed", 0)


def _admissions(world: World, places: Collection[Coordinates]) -> set[tuple[int, int]]:
    """Return when replays have let in records of some places: after what, and when, in microseconds."""
    tables = (f"silver.{world.source.table}", DEAD_LETTERS)
    rows = (row for table in tables for row in pipeline.rows_of(world.settings, table))
    found = (row["admitted"] for row in rows if coordinates_of(row) in places)
    return {
        (0 if one["after"] is None else pipeline.micros(one["after"]), pipeline.micros(one["at"]))
        for one in found
        if one is not None
    }


@dataclass(frozen=True)
class Replay(_OfLetters):
    """Replay letters."""

    allow_late: bool = False
    what: ClassVar[str] = "replay"

    def _decide(self, world: World, selection: Selection, at: datetime) -> None:
        world.where = "replay"
        replay(world.lake, [world.stream], selection, at, allow_late=self.allow_late)


@dataclass(frozen=True)
class ReplayWhileRunning(Replay):
    """Run silver, and replay letters before the n-th of its commits."""

    before: int = 2

    allow_late: bool = True

    def _decide(self, world: World, selection: Selection, at: datetime) -> None:
        def decide() -> None:
            replay(world.lake, [world.stream], selection, at, allow_late=True)

        with world.before_commit(self.before, decide):
            world.run(("silver",))


@dataclass(frozen=True)
class Discard(_OfLetters):
    """Give letters up."""

    what: ClassVar[str] = "discard"

    def _decide(self, world: World, selection: Selection, at: datetime) -> None:
        world.where = "discard"
        discard(world.lake, [world.stream], selection, at)


@dataclass(frozen=True)
class Resolve(Action):
    """Close the n-th open letter by the newest row of silver."""

    which: int = 0

    def do(self, world: World) -> None:
        letters = open_letters(world)
        rows = pipeline.rows_of(world.settings, f"silver.{world.source.table}")
        if not letters or not rows:
            return
        letter = letters[self.which % len(letters)]
        topic, partition, offset = by = max(map(coordinates_of, rows), key=lambda one: one[2])
        after_us, at = processed(world), world.decided_at()
        with world.process(partial(self.do, world)), world.refusing():
            world.where = "resolve"
            record = OffsetRange(topic, partition, offset, offset)
            resolve_by_record(world.lake, [world.stream], Selection(id=letter["id"]), record, at)
        place = coordinates_of(letter)
        if place not in map(coordinates_of, open_letters(world)):
            made = Decision("resolve", place, after_us, pipeline.micros(at), by=by)
            world.life.decisions[world.source.table].append(made)


@dataclass(frozen=True)
class RebuildSilver(Action):
    """Rebuild silver; before the n-th of its commits, records that wait in Kafka land and are judged."""

    land_before: int = 0

    def do(self, world: World) -> None:
        world.tick()
        landing = world.before_commit(self.land_before, lambda: world.run(("bronze", "silver")))
        with world.process(partial(RebuildSilver().do, world)), world.refusing(), landing:
            world.where = "rebuild silver"
            rebuild_silver(world.lake, world.stream, Landed(), world.now)
            world.foreign = 0


@dataclass(frozen=True)
class RebuildGold(Action):
    """Rebuild gold, or only the rows of the last hours."""

    hours: int = 0
    force: bool = True

    def do(self, world: World) -> None:
        span = WindowSpan(first=world.now - timedelta(hours=self.hours)) if self.hours else WindowSpan()
        world.tick()
        with world.process(partial(self.do, world)), world.refusing():
            world.where = "rebuild gold"
            for table in world.stream.gold:
                rebuild_gold(world.lake, table, span, force=self.force)


@dataclass(frozen=True)
class Maintain(Action):
    """Maintain every table; 0 days keep everything."""

    bronze: int = 0
    silver: int = 0
    gold: int = 0
    letters: int = 0

    def do(self, world: World) -> None:
        (table,), name = world.stream.gold, world.source.table
        given = {
            f"bronze.{name}": self.bronze,
            f"silver.{name}": self.silver,
            f"gold.{table.name}": self.gold,
            DEAD_LETTERS: self.letters,
        }
        kept = {one: days for one, days in given.items() if days}
        settings = world.settings.model_copy(update={"kept_days": kept})
        world.tick()
        with world.process(partial(self.do, world)), world.retaining(), world.refusing():
            world.where = "maintain"
            for task in tasks([world.stream], settings):
                Keeper(world.lake, settings).keep(task, world.now)


@dataclass(frozen=True)
class _OfTable(Action):
    """Do something to a table of the stream: of bronze, of silver, of the letters or of gold."""

    layer: str = "silver"

    def table(self, world: World) -> str:
        names = {"letters": DEAD_LETTERS, "gold": f"gold.{world.stream.gold[0].name}"}
        return names.get(self.layer, f"{self.layer}.{world.source.table}")


@dataclass(frozen=True)
class Optimize(_OfTable):
    """OPTIMIZE a table."""

    def do(self, world: World) -> None:
        commands.optimize(world.shared.spark, world.settings, self.table(world))


@dataclass(frozen=True)
class Vacuum(_OfTable):
    """VACUUM a table of what no version of the last week needs."""

    def do(self, world: World) -> None:
        commands.vacuum(world.shared.spark, world.settings, self.table(world), everything=False)


@dataclass(frozen=True)
class Restore(_OfTable):
    """RESTORE a table to the version so many commits ago, as another writer does."""

    back: int = 1

    def do(self, world: World) -> None:
        table = self.table(world)
        version = max(0, pipeline.version_of(world.settings, table) - self.back)
        if commands.restore(world.shared.spark, world.settings, table, version):
            world.foreign += 1


@dataclass(frozen=True)
class ForeignUpdate(_OfTable):
    """UPDATE the first row of a table by delta-rs: 10 becomes 999."""

    def do(self, world: World) -> None:
        found = _first(world, self.table(world))
        if found is not None:
            column = "value" if world.form in {"windows", "sales"} else "amount"
            DeltaTable(str(world.path(self.table(world)))).update({column: "999"}, predicate=found)
            world.foreign += 1


@dataclass(frozen=True)
class ForeignDelete(_OfTable):
    """DELETE the first row of a table by delta-rs."""

    def do(self, world: World) -> None:
        found = _first(world, self.table(world))
        if found is not None:
            DeltaTable(str(world.path(self.table(world)))).delete(found)
            world.foreign += 1


def _first(world: World, table: str) -> str | None:
    rows = pipeline.rows_of(world.settings, table)
    if not rows:
        return None
    _, partition, offset = min(map(coordinates_of, rows))
    return f'partition = {partition} AND "offset" = {offset}'


@dataclass(frozen=True)
class SetIds(Action):
    """Compare records by id, or no longer, and rebuild silver and gold, as docs/ids.md says."""

    ids: bool = True
    sequences: bool = False

    def do(self, world: World) -> None:
        if world.form in {"windows", "sales"} or (world.form == "corrected" and not self.sequences):
            return  # a column of silver is not taken away
        topic = "transactions-topic"
        world.change_settings(
            unique_by={topic: "transactionId"} if self.ids else {},
            sequence_by={topic: "version"} if self.sequences and self.ids else {},
        )
        RebuildSilver().do(world)
        with world.process():
            world.run(("silver", "gold"))
        RebuildGold().do(world)
