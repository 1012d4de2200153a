"""Conditions that must hold at the end of a story and at its checks; each difference is a line of text.

    compare  records, letters, gold, topics, Redis and PostgreSQL match the oracles (`compare`)
    audit    the audit reports exactly the differences, and at times an audit of a part those in this part
    final    a window that was sent as final stays final, unless a copy has since replaced the lake
    rebuild  rebuilding silver changes nothing

If another writer has changed a table, a difference from the oracle is not a defect. It is a defect if the
audit does not name each of the rows, or if rebuilding silver and gold does not correct them. If retention has
deleted such a row's record from bronze, or a gold row's rows from silver, the original row cannot be
determined, so it is not checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from unittest.mock import patch

from lakehouse.common.errors import LakehouseError
from lakehouse.operations.audit import Check as Checked
from lakehouse.operations.audit import audit
from lakehouse.operations.audit.landing import check_landing
from lakehouse.operations.audit.records import check_records
from lakehouse.operations.repair.rebuild_silver import Landed, rebuild_silver
from lakehouse.storage.tables import from_micros
from tests.oracles.records import Place
from tests.simulation import compare
from tests.simulation.actions import Action
from tests.simulation.repairs import RebuildGold, RebuildSilver
from tests.simulation.stepping import StuckError
from tests.simulation.world import World
from tests.support import pipeline

_SHOWN = 6
_PARTLY_EVERY = 4


class DifferError(AssertionError):
    """A lake differs from the oracles in the middle of a story; `found` contains the differences."""

    def __init__(self, found: Sequence[str]) -> None:
        super().__init__(*found)
        self.found = found


@dataclass(frozen=True)
class Check(Action):
    """Bring the lake to rest, and compare it as at the end of a story, but without a rebuild."""

    def do(self, world: World) -> None:
        found = _compared(world)
        world.move_on()
        if found:
            raise DifferError(found)


def differences(world: World) -> list[str]:
    """Bring the lake to rest, and return all defects."""
    found = _compared(world)
    if found is None:
        return []
    if not found and world.foreign:
        with world.shared.timed("check: mend"):
            found += _mended(world)
    if not found:
        with world.shared.timed("check: rebuild"):
            found += _rebuild(world)
    return found


def _compared(world: World) -> list[str] | None:
    """Bring the lake to rest, and compare it. Return None if another writer's changes are unknown."""
    with world.shared.timed("rest"):
        try:
            world.rest()
        except StuckError as error:
            return [str(error)]
    world.note_landings()
    world.life.now_us = pipeline.micros(world.now)
    with world.shared.timed("check: compare"):
        wrong = compare.differences(world.life, world.stream)
    if world.foreign:
        wrong = compare.within_silver(wrong, world.life)
    if world.foreign and compare.is_beyond_bronze(wrong, world.settings, world.stream):
        return None
    with (
        world.shared.timed("check: audit"),
        patch("lakehouse.operations.audit._PAUSE_S", 0.0),
    ):  # nothing is in flight
        report = audit(world.lake, [world.stream], world.settings, world.now)
    own = [one for one in wrong if not one.is_left]
    found = [] if world.foreign else [str(one) for one in own[:_SHOWN]]
    found += compare.disagreements(wrong, report, compare.altered(world.life, world.stream))[:_SHOWN]
    if len(world.life.sent) % _PARTLY_EVERY == 0:  # costs nearly as much as the whole audit
        with world.shared.timed("check: audit of a part"):
            found += [*_in_part(world, report.checks)][:_SHOWN]
    if world.form == "windows":
        found += _final(world)
    return found


def _in_part(world: World, whole: Sequence[Checked]) -> Iterator[str]:
    """Audit the records that landed in the later half of the story, and yield what this audit gets wrong.

    It must name the same records as the whole audit does, of those in the part. If another writer has changed
    a row or a record outside the part, records with its id may differ by the whole audit alone, or by this.
    """
    named, access = _named(whole), world.settings.kafka.access
    for source in world.stream.sources:
        own = {one.place for one in world.life.sent if one.source == source.table}
        landed = {place: at for place, at in world.life.landed.items() if place in own}
        if not landed:
            continue
        since_us = sorted(landed.values())[len(landed) // 2]
        since, topic = from_micros(since_us), world.settings.topic(source.topic)
        checks = [
            *check_landing(world.lake, world.stream, source, topic, access, since=since),
            *check_records(world.lake, world.stream, source, since),
        ]
        found = _named(checks)
        due = {place for place in named if landed.get(place, 0) >= since_us}
        due = set() if world.foreign and due != named else due
        yield from (f"the audit of a part does not name {place}" for place in sorted(due - found))
        if not world.foreign:
            yield from (f"a false alarm of the audit of a part: {place}" for place in sorted(found - named))
            unnamed = [one for one in checks if one.differences and not one.examples]
            yield from (f"a false alarm of the audit of a part: {one}" for one in unnamed)


def _named(checks: Sequence[Checked]) -> set[Place]:
    """Return the coordinates of the records that checks name."""
    examples = (one for check in checks if check.name in {"landed", "records"} for one in check.examples)
    return {compare.place_of(one) for one in examples if "offset" in one.key}


def _mended(world: World) -> list[str]:
    """Rebuild tables that another writer has changed, and return the differences that remain."""
    RebuildSilver().do(world)
    world.rest()
    RebuildGold().do(world)
    world.rest()
    found = compare.within_silver(compare.differences(world.life, world.stream), world.life)
    return [f"not mended: {one}" for one in [one for one in found if not one.is_left][:_SHOWN]]


def _final(world: World) -> Iterator[str]:
    """Yield the windows that were sent as final but are provisional now."""
    name = world.stream.gold[0].name
    rows = pipeline.rows_of(world.settings, f"gold.{name}")
    open_ = {(row["service_id"], row["window_start"] // 1000) for row in rows if not row["is_final"]}
    topic = world.settings.topic(world.stream.gold[0].export.topic or "")
    sent = pipeline.read_topic(world.settings.kafka.bootstrap_servers, topic)
    said = (json.loads(one.value) for one in sent if one.value is not None)
    before = {(one["serviceId"], one["windowStart"]) for one in world.life.left.get(name, ())}
    final = {(one["serviceId"], one["windowStart"]) for one in said if one["isFinal"]}
    for key in sorted(final & open_ - before):
        yield f"final: {key} was sent as final, and is provisional"


def _rebuild(world: World) -> Iterator[str]:
    try:
        done = rebuild_silver(world.lake, world.stream, Landed(), world.tick(), dry_run=True)
    except LakehouseError as error:
        yield f"rebuild: refused: {str(error)[:300]}"
        return
    names = ("inserted", "changed", "removed", "newly_refused", "newly_accepted")
    if changed := {name: getattr(done, name) for name in names if getattr(done, name)}:
        yield f"rebuild: silver was not what a rebuild makes it: {changed}"
