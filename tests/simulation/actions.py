"""What can be done to a lake: each action is plain data, one line of text, and can be read back."""

from __future__ import annotations

import ast
import json
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, ClassVar

import redis

from lakehouse.kafka.topics import administering
from lakehouse.layers.step import LayerName
from tests.pipeline import Raw
from tests.simulation.model import Lateness
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


@dataclass(frozen=True)
class Send(Action):
    """Send a record of the id, whose event time is so old by the clock.

    `kind` duplicate sends the last one of the id again as it was, corrected with the next sequence and
    another amount, deleted its key alone. Of sales the id is the product, so each is another sale.
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
        partition, headers = self.partition % world.partitions, _headers(said)
        if self.kind == "deleted":
            world.tell(Raw(None, self.id.encode(), partition=partition), None)
            return
        record = _of_form(world.form, said)
        if self.kind == "malformed":
            record["amount" if "amount" in record else "value"] = "nonsense"
        raw = Raw(json.dumps(record).encode(), self.id.encode(), headers=headers, partition=partition)
        world.tell(raw, said)

    def _fields(self, world: World) -> dict[str, Any]:
        age_s = {"late": 20 * DAY_S, "future": -DAY_S}.get(self.kind, self.age_s)
        at_ms = int((world.now - timedelta(seconds=age_s)).timestamp() * 1000)
        return {"id": self.id, "version": self.sequence, "amount": self.amount, "at_ms": at_ms}


def _headers(said: dict[str, Any]) -> tuple[tuple[str, bytes], ...]:
    """Return another id, and a sequence by which an earlier version is the greater one."""
    return ("order", f"o-{said['id']}".encode()), ("turn", str(100 - said["version"]).encode())


def ids_of(form: str) -> tuple[str, str]:
    """Return the fields with a record's id and sequence; sales have no id."""
    return {"windows": ("id", "version"), "sales": ("", "")}.get(form, ("transactionId", "version"))


def _of_form(form: str, said: dict[str, Any]) -> dict[str, Any]:
    if form == "sales":
        return {"product": said["id"], "value": said["amount"], "timestamp": said["at_ms"]}
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
        table, judged = world.source.table, dict[tuple[str, int], int]()
        for topic, partition, offset in world.judged():
            judged[topic, partition] = max(offset + 1, judged.get((topic, partition), 0))
        before = world.life.lateness.get(table, (Lateness(world.source.allowed_lateness_s),))
        world.life.lateness[table] = (*before, Lateness(self.seconds, judged))
        world.change_settings(allowed_lateness_s=self.seconds)


@dataclass(frozen=True)
class AddPartitions(Action):
    """Give the topic another partition."""

    def do(self, world: World) -> None:
        world.partitions += 1
        with administering(world.settings.kafka) as admin:
            admin.create_partitions({world.topic: world.partitions})
        while (
            len(world.shared.producer.list_topics(world.topic, 10).topics[world.topic].partitions)
            < world.partitions
        ):
            time.sleep(0.05)
