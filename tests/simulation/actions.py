"""Actions on a lake: each action is plain data, which is written as one line of text and read back."""

from __future__ import annotations

import ast
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import ClassVar

import redis

from lakehouse.engine.layers import LayerName
from lakehouse.storage.kafka import offsets
from lakehouse.storage.kafka.topics import administering
from lakehouse.streams.definition import Source
from tests.simulation.forms import Said, written
from tests.simulation.model import Lateness
from tests.simulation.world import World

DAY_S = 86_400


@dataclass(frozen=True)
class Action(ABC):
    """An action on a lake."""

    names: ClassVar[dict[str, type[Action]]] = {}

    def __init_subclass__(cls) -> None:
        """Register the action by its name, for reading stories."""
        Action.names[cls.__name__] = cls

    @abstractmethod
    def do(self, world: World) -> None:
        """Run the action; record refusals with a message, and raise all other errors."""

    def __str__(self) -> str:
        """Return the action as a line, without arguments that have default values."""
        given = (
            f"{one.name}={getattr(self, one.name)!r}"
            for one in fields(self)
            if getattr(self, one.name) != one.default
        )
        return f"{type(self).__name__}({', '.join(given)})"


def read(line: str) -> Action:
    """Return the action in a line; raise ValueError for any other line."""
    call = ast.parse(line.strip(), mode="eval").body
    if (
        not isinstance(call, ast.Call)
        or not isinstance(call.func, ast.Name)
        or call.func.id not in Action.names
    ):
        raise ValueError(f"no action: {line}")
    return Action.names[call.func.id](**{str(one.arg): ast.literal_eval(one.value) for one in call.keywords})


@dataclass(frozen=True)
class Send(Action):
    """Send a record with the id to a side, with an event time `age_s` before the clock.

    For `kind`, `duplicate` repeats the id's last record, `corrected` sends it with the next sequence and
    another amount, and `deleted` sends only its key; other kinds are in `forms.BROKEN`. In sales, the id is
    the product, so each record is another sale; in calls, it is a pair of users.
    """

    kind: str = "clean"
    id: str = "a"
    sequence: int = 1
    amount: int = 10
    age_s: int = 60
    partition: int = 0
    side: int = 0

    def do(self, world: World) -> None:
        world.tick()
        source = world.side(self.side)
        said = self._said(world, source)
        side, partition = world.stream.sources.index(source), self.partition % world.partitions
        for one in written(world.form, self.kind, said, side, world.encoder):
            headers = () if one.raw.value is None else _headers(said)
            world.tell(source, replace(one, raw=replace(one.raw, headers=headers, partition=partition)))

    def _said(self, world: World, source: Source) -> Said:
        told = (one.fields for one in world.told if one.source == source.table and one.fields)
        known = [one for one in told if one["id"] == self.id]
        before = [one for one in known if "is_deletion" not in one]
        said = dict(before[-1]) if before and self.kind in {"duplicate", "corrected"} else self._fields(world)
        if before and self.kind == "corrected":
            said["amount"] += 7
        if before and self.kind in {"corrected", "deleted"}:
            said["version"] = max(one["version"] for one in known) + 1
        return said

    def _fields(self, world: World) -> Said:
        age_s = {"late": 20 * DAY_S, "future": -DAY_S}.get(self.kind, self.age_s)
        at_ms = int((world.now - timedelta(seconds=age_s)).timestamp() * 1000)
        return {"id": self.id, "version": self.sequence, "amount": self.amount, "at_ms": at_ms}


def _headers(said: Said) -> tuple[tuple[str, bytes], ...]:
    """Return a different id, and a sequence that decreases with each version."""
    return ("order", f"o-{said['id']}".encode()), ("turn", str(100 - said["version"]).encode())


@dataclass(frozen=True)
class Run(Action):
    """Run layers, each for the given number of micro-batches; with 0, until there is nothing left to do."""

    layers: str = "bronze silver gold export"
    batches: int = 0
    one_by_one: bool = False

    def do(self, world: World) -> None:
        layers: list[LayerName] = self.layers.split()  # type: ignore[assignment]
        with world.process():
            world.run(layers, self.batches or None, one_by_one=self.one_by_one)


@dataclass(frozen=True)
class Kill(Action):
    """End the next action's process before its n-th write or, with `after`, after that write."""

    number: int = 1
    after: bool = False

    def do(self, world: World) -> None:
        world.wait_for_kill = self.number, self.after


@dataclass(frozen=True)
class Restart(Action):
    """End the process between two micro-batches; the next process knows only its tables."""

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


@dataclass(frozen=True)
class EmptyRedis(Action):
    """Delete everything in Redis."""

    def do(self, world: World) -> None:
        with redis.Redis.from_url(world.settings.redis.url.get_secret_value()) as client:
            client.flushdb()


@dataclass(frozen=True)
class TwoRuns(Action):
    """Run a layer in two processes: when the first has planned a micro-batch, the second runs to rest."""

    layer: str = "silver"

    def do(self, world: World) -> None:
        layer: LayerName = self.layer  # type: ignore[assignment]
        with world.process():
            world.run_beside(layer)


@dataclass(frozen=True)
class ChangeLateness(Action):
    """Change how late records may be from this point on."""

    seconds: int = 7 * DAY_S

    def do(self, world: World) -> None:
        for source in world.stream.sources:
            table, judged = source.table, dict[tuple[str, int], int]()
            for topic, partition, offset in world.judged(source):
                judged[topic, partition] = max(offset + 1, judged.get((topic, partition), 0))
            before = world.life.lateness.get(table, (Lateness(source.allowed_lateness_s),))
            world.life.lateness[table] = (*before, Lateness(self.seconds, judged))
        world.change_settings({"stream_defaults.allowed_lateness_s": self.seconds})


@dataclass(frozen=True)
class AddPartitions(Action):
    """Add a partition to each input topic, and wait until running processes are certain to see it."""

    def do(self, world: World) -> None:
        world.partitions += 1
        topics = [world.settings.topic(source.topic) for source in world.stream.sources]
        with administering(world.settings.kafka.access) as admin:
            admin.create_partitions(dict.fromkeys(topics, world.partitions))
        producer = world.shared.producer
        for topic in topics:
            while len(producer.list_topics(topic, 10).topics[topic].partitions) < world.partitions:
                time.sleep(0.05)
        time.sleep(offsets._METADATA_MS / 1000)
