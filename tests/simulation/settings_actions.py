"""Changes of settings in a running lake, and the steps that the docs require after them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from lakehouse.operations.catalog.spark_sql import ask
from lakehouse.operations.repair.rebuild_gold import WindowSpan, rebuild_gold
from lakehouse.operations.repair.rebuild_silver import Landed, rebuild_silver
from lakehouse.streams.builtin import TABLES
from tests.simulation.actions import Action
from tests.simulation.repairs import forget_in_time
from tests.simulation.world import World

_IDS = {
    "windows": ("id", "version"),
    **dict.fromkeys(("corrected", "unique", "plain", "aggregates"), ("transactionId", "version")),
}
"""The fields with a record's id and sequence, by form; in other forms, these settings are never changed."""
_EARLIEST = "stream_defaults.earliest_event_time"
_JUDGED = {"stream_defaults.future_tolerance_s", _EARLIEST}
_MADE_WITH = {"sales.threshold", "sales.notify", "metrics.quantile_k", "calls.gap", "calls.grace"}


@dataclass(frozen=True)
class SetIds(Action):
    """Turn comparison by id on or off, and rebuild silver and gold, as docs/ids.md says.

    Each argument is "field" (the form's field), "header", or "" for none. Records that retention has deleted
    cannot be judged by other ids, so this does nothing once retention has deleted anything, nor in forms that
    are not in `_IDS`.
    """

    ids: str = "field"
    sequences: str = ""

    def do(self, world: World) -> None:
        taken = world.life.taken[world.source.table]
        if world.form not in _IDS or any(one.gone or one.before_us is not None for one in taken):
            return
        id_, sequence = _IDS[world.form]
        names = {"field": id_, "header": "header:order", "": ""}
        places = {"field": sequence, "header": "header:turn", "": ""}
        ids, sequences = names[self.ids], places[self.sequences] if self.ids else ""
        if (ids or None, sequences or None) != (world.source.unique_by, world.source.sequence_by):
            forget_in_time(world)
        world.change_stream({"unique_by": ids or None, "sequence_by": sequences or None})
        rebuild(world)


@dataclass(frozen=True)
class ChangeSetting(Action):
    """Change a setting or a key of the stream, and rebuild what depends on it; ignore other streams' keys."""

    name: str = "metrics.grace"
    value: Any = "10m"

    def do(self, world: World) -> None:
        section, _, key = self.name.partition(".")
        value = datetime.fromisoformat(self.value) if self.name == _EARLIEST else self.value
        if section == world.stream.name:
            world.change_stream({key: value})
        elif section not in TABLES:
            world.change_settings({self.name: value})
        if self.name == "metrics.gold" and section == world.stream.name:
            _send_provisional(world)
        if self.name in _JUDGED:
            rebuild(world)
        elif self.name in _MADE_WITH:
            rebuild(world, "gold")


def _send_provisional(world: World) -> None:
    """Update the provisional rows, as docs/outputs.md says for rows that were not sent."""
    path = world.path(f"gold.{world.stream.gold[0].name}")
    if path.exists():
        statement = f"UPDATE delta.`{path}` SET is_final = is_final WHERE NOT is_final"
        ask(world.lake.spark, statement, limit=1, write=True)


def rebuild(world: World, layers: str = "silver gold") -> None:
    """Rebuild layers like `lakehouse rebuild`; gold first reads silver's previous rows."""
    world.tick()
    with world.process(partial(rebuild, world, layers)), world.refusing():
        if "silver" in layers:
            world.where = "rebuild silver"
            rebuild_silver(world.lake, world.stream, Landed(), world.now)
            world.foreign -= {"silver", "letters"}
            world.run(("gold",))
        world.where = "rebuild gold"
        for table in world.stream.gold:
            rebuild_gold(world.lake, table, WindowSpan(), force=True)
        if "silver" not in world.foreign:
            world.foreign.discard("gold")
