"""Operators' actions and problems with a whole lake: copies, a second run, a lost topic, a small Redis."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from contextlib import closing
from contextvars import Context
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import redis

from lakehouse.engine.layers import LAYERS, Allow
from lakehouse.operations.audit.stores import check_store
from lakehouse.operations.copies import marker as markers
from lakehouse.operations.copies.copying import Copying, note_adoption
from lakehouse.settings import Settings
from lakehouse.sinks.registry import used_by
from lakehouse.storage.kafka.topics import administering, create_topics
from lakehouse.storage.tables import Lake, leases
from tests.simulation import compare, repairs
from tests.simulation.actions import Action, ChangeLateness, Send
from tests.simulation.model import Life, Row
from tests.simulation.stepping import Stepping
from tests.simulation.world import ANY_TIME, Copied, World
from tests.support import outputs, pipeline

_PATIENCE_S = 30.0
_MAY_DIFFER = {"lake", "stream_defaults"}


@dataclass(frozen=True)
class EvictRedis(Action):
    """Evict every second key from Redis, as a small Redis would; the audit must report the missing rows.

    The export writes them again, but at most every ten minutes (docs/redis.md). This action deletes the keys,
    and INFO counts them as evicted, because Redis itself would choose keys at random.
    """

    first: int = 0

    def do(self, world: World) -> None:
        before = {one.name: compare.lacking_in_redis(world.life, one.name) for one in world.stream.tables}
        url = world.settings.redis.url.get_secret_value()
        with closing(redis.Redis.from_url(url, decode_responses=True)) as client:
            chosen = sorted(client.scan_iter("*", count=1000))[self.first % 2 :: 2]
            world.evicted += int(client.delete(*chosen)) if chosen else 0
        for name, lacked in before.items():
            evicted = compare.lacking_in_redis(world.life, name) - lacked
            if evicted:
                _require_told(world, name, evicted)


def _require_told(world: World, name: str, evicted: set[str]) -> None:
    """Require that the audit names the evicted rows, unless the export has not yet sent all of gold."""
    (table,) = (one for one in world.stream.tables if one.name == name)
    (kind,) = (one for one in used_by(table, world.settings) if one.name == "redis")
    (check,) = check_store(world.lake, world.stream, table, kind, settings=world.settings, now=world.now)
    told = {str(one.key.get("row")) for one in check.examples}
    is_at_rest = f"version {pipeline.version_of(world.settings, f'gold.{name}')} of gold" in check.notes
    if is_at_rest and not check.not_compared and not evicted <= told:
        raise AssertionError(f"the audit says nothing of rows that Redis has evicted: {evicted - told}")


@dataclass(frozen=True)
class Copy(Action):
    """Copy the lake, or bring its copy up to date."""

    def do(self, world: World) -> None:
        world.note_landings()
        place = world.copied.lake if world.copied is not None else world.another_lake()
        Copying(world.lake, Lake(world.shared.spark, place), [world.stream]).run()
        world.copied = Copied(place, _as_of_now(world.life), world.settings, set(world.foreign))


def _as_of_now(life: Life) -> Life:
    def kept(lists: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return defaultdict(list, {name: list(one) for name, one in lists.items()})

    return replace(
        life,
        landed=dict(life.landed),
        decisions=kept(life.decisions),
        taken=kept(life.taken),
        lateness=dict(life.lateness),
        altered=dict(life.altered),
    )


@dataclass(frozen=True)
class Adopt(Action):
    """Lose the lake, and continue from its copy or, if there is none, from a copy that is made now.

    Decisions since the copy was made are lost with the lake. If the lake returns, it is refused.
    """

    def do(self, world: World) -> None:
        if world.copied is None or _differ(world.copied.settings, world.settings):
            Copy().do(world)
        copied, original, allowed_s = (
            world.copied,
            world.settings.lake,
            world.settings.stream_defaults.allowed_lateness_s,
        )
        if copied is None:
            raise TypeError("there is no copy")
        world.restart()
        life = replace(copied.life, sent=world.life.sent, is_adopted=True)
        world.life = _after(world, life)
        world.copied, world.foreign = None, copied.foreign
        world.change_settings(
            {
                "lake": copied.lake,
                "stream_defaults.allowed_lateness_s": copied.settings.stream_defaults.allowed_lateness_s,
            }
        )
        if allowed_s != world.settings.stream_defaults.allowed_lateness_s:
            ChangeLateness(int(allowed_s)).do(world)
        for _ in range(2):  # once more, if it was killed
            with world.process():
                self._adopt(world)
                break
        first = world.stream.gold[0].name
        if pipeline.rows_of(world.settings, f"gold.{first}") and outputs.last_messages(world.settings, first):
            self._require_refused(world, original)

    def _adopt(self, world: World) -> None:
        permitted = world.permitted
        world.permitted = replace(permitted, adopts=True)
        try:
            world.where = "adopt"
            note_adoption(world.lake)
            world.run(LAYERS)
            markers.remove(world.shared.spark, world.settings.lake)
        finally:
            world.restart()
            world.permitted = permitted

    def _require_refused(self, world: World, original: str) -> None:
        own = world.settings.lake
        world.change_settings({"lake": original})
        said = world.steps.refusal("export")
        world.change_settings({"lake": own})
        if "was adopted at" not in (said or ""):
            raise AssertionError(f"the lost lake may export after its copy was adopted: {said}")


def _differ(one: Settings, other: Settings) -> bool:
    return any(value != getattr(other, name) for name, value in one if name not in _MAY_DIFFER)


def _after(world: World, life: Life) -> Life:
    """Return the history of a lake that replaces the current one, including data that is left behind."""
    left: dict[str, list[Row]] = {
        table.name: list(outputs.last_messages(world.settings, table.name).values())
        for table in world.stream.tables
    }
    letters = compare.letters_sent(world.settings)
    return replace(life, left=left, letters_left=letters, since_ms=int(time.time() * 1000))


@dataclass(frozen=True)
class Standby(Action):
    """Suspend a process before its n-th write while another takes over; then the first one continues.

    The first one's leases have expired by then (docs/failures.md, "Standby runs").
    """

    number: int = 1
    doing: str = "run"

    def do(self, world: World) -> None:
        first, troubles = world.steps, list[Exception]()

        def take_over() -> None:
            where, world.steps = world.where, Stepping(world)
            try:
                with patch.object(leases, "_LENGTH_S", 0.0):
                    world.run(LAYERS)
            except AssertionError as error:  # a defect, but not in the first process
                troubles.append(error)
            world.where = where

        world.wait_for_hold = self.number, lambda: Context().run(take_over)
        self._do(world)
        if world.steps is not first:
            first.close()
        if troubles:
            raise troubles[0]

    def _do(self, world: World) -> None:
        if self.doing == "run":
            with world.process():
                world.run(LAYERS)
            return
        {
            "rebuild silver": repairs.RebuildSilver(),
            "rebuild gold": repairs.RebuildGold(),
            "replay": repairs.Replay(allow_late=True),
            "maintain": repairs.Maintain(1, 1),
        }[self.doing].do(world)


@dataclass(frozen=True)
class RecreateTopic(Action):
    """Delete a side's topic, recreate it, fill it beyond the position read, and continue in another lake.

    If bronze has read the old topic, it refuses the new one, both in the running process and in a new one.
    Then the new lake's export is refused until it may send again (docs/refused-topics.md). In calls, the new
    lake reads the other topic again.
    """

    side: int = 0

    def do(self, world: World) -> None:
        world.note_landings()
        source = world.side(self.side)
        topic = world.settings.topic(source.topic)
        has_read = any(place[0] == topic for place in world.life.landed)
        ends = Counter(one.place[1] for one in world.life.sent if one.source == source.table)
        _make_anew(world, topic)
        world.life.sent[:] = [one for one in world.life.sent if one.source != source.table]
        sent = Send(id="e", side=self.side)
        for partition, count in sorted(ends.items()):
            for number in range(count + 1):
                replace(sent, sequence=number + 1, partition=partition).do(world)
        if not has_read:
            return
        for _ in range(2):
            _require_said(world, "bronze", "was deleted and recreated")
            world.restart()
        had_sent = any(outputs.last_messages(world.settings, one.name) for one in world.stream.tables)
        world.life = _after(world, Life(world.settings, sent=world.life.sent))
        world.copied, world.foreign, world.unfinished = None, set(), []
        world.change_settings({"lake": world.another_lake()})
        world.steps.make(LAYERS[:3])
        if had_sent:
            _require_said(world, "export", "--allow resend")
        world.restart()
        world.permitted = replace(world.permitted, allow=(Allow.RESEND,))


def _make_anew(world: World, topic: str) -> None:
    with administering(world.settings.kafka.access) as admin:
        admin.delete_topics([topic])
        _await(lambda: topic not in admin.list_topics())
    create_topics(world.settings.kafka.access, {topic: world.partitions}, ANY_TIME)


def _require_said(world: World, layer: Any, words: str) -> None:
    said = world.steps.refusal(layer)
    if words not in (said or ""):
        raise AssertionError(f"{layer} should be refused, as {words!r}: {said}")


def _await(is_so: Any) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError("it has not come about")
        time.sleep(0.02)
