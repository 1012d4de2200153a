"""What can be done to a lake: each action is plain data, one line of text, and can be read back."""

from __future__ import annotations

import ast
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, ClassVar

import redis
from deltalake import DeltaTable

from lakehouse.errors import LakehouseError
from lakehouse.layers.step import LayerName
from lakehouse.maintenance.upkeep import Keeper, tasks
from lakehouse.records.dead_letters import Selection
from lakehouse.records.offsets import OffsetRange
from lakehouse.repair.rebuild_gold import WindowSpan, rebuild_gold
from lakehouse.repair.rebuild_silver import Landed, rebuild_silver
from lakehouse.repair.replay import discard, replay
from lakehouse.repair.resolve import resolve_by_record
from tests import pipeline
from tests.fuzz import commands
from tests.pipeline import DEAD_LETTERS, Coordinates, Raw, Row, coordinates_of
from tests.simulation.model import Decision
from tests.simulation.world import World

DAY_S = 86_400


@dataclass(frozen=True)
class Action(ABC):
    """Something that is done to a lake."""

    names: ClassVar[dict[str, type[Action]]] = {}

    def __init_subclass__(cls) -> None:
        """Know the action by its name, for stories that are read."""
        Action.names[cls.__name__] = cls

    @abstractmethod
    def do(self, world: World) -> None:
        """Do it; what lakehouse refuses in words is noted, and everything else raised."""

    def __str__(self) -> str:
        """Return the line that says it, without what is as always."""
        given = (
            f"{one.name}={getattr(self, one.name)!r}"
            for one in fields(self)
            if getattr(self, one.name) != one.default
        )
        return f"{type(self).__name__}({', '.join(given)})"


def read(line: str) -> Action:
    """Return the action that a line says; raises ValueError for another line."""
    call = ast.parse(line.strip(), mode="eval").body
    if (
        not isinstance(call, ast.Call)
        or not isinstance(call.func, ast.Name)
        or call.func.id not in Action.names
    ):
        raise ValueError(f"no action: {line}")
    return Action.names[call.func.id](**{str(one.arg): ast.literal_eval(one.value) for one in call.keywords})


@contextmanager
def _refusing(world: World) -> Iterator[None]:
    try:
        yield
    except LakehouseError as error:
        world.refused(error)


@dataclass(frozen=True)
class Send(Action):
    """Send a record of the id, whose event time is so old by the clock.

    `kind` duplicate sends the last one of the id again as it was, corrected with the next sequence and
    another amount, deleted its key alone.
    """

    kind: str = "clean"
    id: str = "a"
    sequence: int = 1
    amount: int = 10
    age_s: int = 60
    partition: int = 0

    def do(self, world: World) -> None:
        world.tick()
        before = [one.fields for one in world.told if one.fields and one.fields["id"] == self.id]
        said = dict(before[-1]) if before and self.kind in {"duplicate", "corrected"} else self._fields(world)
        if before and self.kind == "corrected":
            said |= {"version": max(one["version"] for one in before) + 1, "amount": said["amount"] + 7}
        if self.kind == "deleted":
            world.tell(Raw(None, self.id.encode(), partition=self.partition), None)
            return
        record = _of_form(world.form, said)
        if self.kind == "malformed":
            record["amount" if "amount" in record else "value"] = "nonsense"
        world.tell(Raw(json.dumps(record).encode(), partition=self.partition), said)

    def _fields(self, world: World) -> dict[str, Any]:
        age_s = {"late": 20 * DAY_S, "future": -DAY_S}.get(self.kind, self.age_s)
        at_ms = int((world.now - timedelta(seconds=age_s)).timestamp() * 1000)
        return {"id": self.id, "version": self.sequence, "amount": self.amount, "at_ms": at_ms}


def _of_form(form: str, said: dict[str, Any]) -> dict[str, Any]:
    ids = {
        "windows": ("id", "version"),
        "corrected": ("transactionId", "version"),
        "unique": ("transactionId",),
    }
    found = dict(
        zip(ids.get(form, ("transactionId", "version")), (said["id"], said["version"]), strict=False)
    )
    user = "u" if said["id"] < "c" else "v"
    if form == "windows":
        return {
            **found,
            "serviceId": user,
            "metricName": "m",
            "value": said["amount"],
            "timestamp": said["at_ms"],
        }
    return {**found, "userId": user, "amount": said["amount"], "timestamp": said["at_ms"]}


@dataclass(frozen=True)
class Run(Action):
    """Run layers, each for so many micro-batches; 0: until nothing waits."""

    layers: str = "bronze silver gold export"
    batches: int = 0
    one_by_one: bool = False

    def do(self, world: World) -> None:
        layers: list[LayerName] = self.layers.split()  # type: ignore[assignment]
        with world.process():
            world.run(layers, self.batches or None, one_by_one=self.one_by_one)


@dataclass(frozen=True)
class Kill(Action):
    """End the process of the next action at its n-th write, which is done (`after`) or not."""

    number: int = 1
    after: bool = False

    def do(self, world: World) -> None:
        world.wait_for_kill = self.number, self.after


@dataclass(frozen=True)
class Restart(Action):
    """End the process between two micro-batches; the next one knows its tables alone."""

    def do(self, world: World) -> None:
        world.restart()


@dataclass(frozen=True)
class Wait(Action):
    """Let time pass."""

    seconds: int = 3600

    def do(self, world: World) -> None:
        world.now += timedelta(seconds=self.seconds)


@dataclass(frozen=True)
class ClockBack(Action):
    """Set the clock back."""

    seconds: int = 600

    def do(self, world: World) -> None:
        world.now -= timedelta(seconds=self.seconds)


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
        after_us = processed(world)
        world.tick()
        with world.process(), _refusing(world):
            self._decide(world, selection)
            for letter in chosen:
                self._put_down(world, coordinates_of(letter), after_us)

    @abstractmethod
    def _decide(self, world: World, selection: Selection) -> None: ...

    def _put_down(self, world: World, place: Coordinates, after_us: int) -> None:
        at_us = pipeline.micros(world.now)
        made = Decision(self.what, place, after_us, at_us, allows_late=getattr(self, "allow_late", False))  # type: ignore[arg-type]
        world.life.decisions[world.source.table].append(made)


def processed(world: World) -> int:
    """Return the greatest landing, in microseconds, of the records that silver has processed; 0 for none."""
    world.note_landings()
    rows = [
        *pipeline.rows_of(world.settings, f"silver.{world.source.table}"),
        *pipeline.rows_of(world.settings, DEAD_LETTERS),
    ]
    return max((world.life.landed.get(coordinates_of(row), 0) for row in rows), default=0)


@dataclass(frozen=True)
class Replay(_OfLetters):
    """Replay letters."""

    allow_late: bool = False
    what: ClassVar[str] = "replay"

    def _decide(self, world: World, selection: Selection) -> None:
        world.where = "replay"
        replay(world.lake, [world.stream], selection, world.now, allow_late=self.allow_late)


@dataclass(frozen=True)
class ReplayWhileRunning(Replay):
    """Run silver, and replay letters before the n-th of its commits."""

    before: int = 2

    def _decide(self, world: World, selection: Selection) -> None:
        def decide() -> None:
            replay(world.lake, [world.stream], selection, world.now, allow_late=True)

        with world.before_commit(self.before, decide):
            world.run(("silver",))


@dataclass(frozen=True)
class Discard(_OfLetters):
    """Give letters up."""

    what: ClassVar[str] = "discard"

    def _decide(self, world: World, selection: Selection) -> None:
        world.where = "discard"
        discard(world.lake, [world.stream], selection, world.now)


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
        after_us = processed(world)
        world.tick()
        with world.process(), _refusing(world):
            world.where = "resolve"
            record = OffsetRange(topic, partition, offset, offset)
            resolve_by_record(world.lake, [world.stream], Selection(id=letter["id"]), record, world.now)
            made = Decision("resolve", coordinates_of(letter), after_us, pipeline.micros(world.now), by=by)
            world.life.decisions[world.source.table].append(made)


@dataclass(frozen=True)
class RebuildSilver(Action):
    """Rebuild silver; before the n-th of its commits, records that wait in Kafka land and are judged."""

    land_before: int = 0

    def do(self, world: World) -> None:
        world.tick()
        landing = world.before_commit(self.land_before, lambda: world.run(("bronze", "silver")))
        with world.process(), _refusing(world), landing:
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
        with world.process(), _refusing(world):
            world.where = "rebuild gold"
            for table in world.stream.gold:
                rebuild_gold(world.lake, table, span, force=self.force)


@dataclass(frozen=True)
class Maintain(Action):
    """Maintain every table; 0 days keep everything."""

    bronze: int = 0
    silver: int = 0
    gold: int = 0

    def do(self, world: World) -> None:
        (table,), name = world.stream.gold, world.source.table
        given = {
            f"bronze.{name}": self.bronze,
            f"silver.{name}": self.silver,
            f"gold.{table.name}": self.gold,
        }
        kept = {one: days for one, days in given.items() if days}
        settings = world.settings.model_copy(update={"kept_days": kept})
        world.tick()
        with world.process(), world.retaining(), _refusing(world):
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
class ForeignUpdate(_OfTable):
    """UPDATE the first row of a table by delta-rs: 10 becomes 999."""

    def do(self, world: World) -> None:
        found = _first(world, self.table(world))
        if found is not None:
            column = "value" if world.form == "windows" else "amount"
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
class EmptyRedis(Action):
    """Take everything from Redis."""

    def do(self, world: World) -> None:
        with redis.Redis.from_url(world.settings.redis_url.get_secret_value()) as client:
            client.flushdb()


@dataclass(frozen=True)
class TwoRuns(Action):
    """Run a layer in two processes: the first has planned when the second runs to rest."""

    layer: str = "silver"

    def do(self, world: World) -> None:
        layer: LayerName = self.layer  # type: ignore[assignment]
        with world.process():
            world.run_beside(layer)


@dataclass(frozen=True)
class ChangeLateness(Action):
    """Allow records to be so late from now on."""

    seconds: int = 7 * DAY_S

    def do(self, world: World) -> None:
        world.change_settings(allowed_lateness_s=self.seconds)


@dataclass(frozen=True)
class SetIds(Action):
    """Compare records by id from now on, and by sequence; or no longer."""

    ids: bool = True
    sequences: bool = False

    def do(self, world: World) -> None:
        if world.form == "windows":
            return
        topic = "transactions-topic"
        world.change_settings(
            unique_by={topic: "transactionId"} if self.ids else {},
            sequence_by={topic: "version"} if self.sequences and self.ids else {},
        )
