"""The steps of one process: their state is in memory and ends with the process; only tables remain."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from delta.exceptions import DeltaConcurrentModificationException
from py4j.protocol import Py4JJavaError

from lakehouse.common.errors import LakehouseError, PositionError, TableError
from lakehouse.engine.layers import LayerName, bronze, export, gold, letters_export, silver
from lakehouse.engine.layers.step import Step, StepMaker
from lakehouse.testing.kills import CrashError

if TYPE_CHECKING:
    from tests.simulation.world import World

_MOST_BATCHES = 60
_TRIES = 3
CONFLICTS = (Py4JJavaError, DeltaConcurrentModificationException)


class StuckError(AssertionError):
    """A step does not come to rest, or fails repeatedly."""


class Stepping:
    """A process that runs the layers of a world's lake."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._steps: dict[LayerName, list[Step]] = {}

    def close(self) -> None:
        """Discard the steps' state, as if their process had ended."""
        for step in [one for steps in self._steps.values() for one in steps]:
            with suppress(Exception):
                step.close()
        self._steps.clear()

    def make(self, layers: Sequence[LayerName]) -> None:
        """Create the tables of layers, and keep no steps."""
        for maker in [one for layer in layers for one in self._makers(layer)]:
            maker.make().close()

    def run(self, layers: Sequence[LayerName], batches: int | None, *, one_by_one: bool) -> None:
        """Run layers for some micro-batches each, or to rest; with `one_by_one`, as small as possible."""
        for layer in layers:
            for number in range(len(self._makers(layer))):
                self._go(layer, number, batches, one_by_one=one_by_one)
            if layer == "export":  # resending is allowed once
                self._world.permitted = replace(self._world.permitted, allow=())

    def run_beside(self, layer: LayerName) -> None:
        """Plan a micro-batch of a layer, let another process run to rest, and write the planned one."""
        try:
            planning = self._stepped(layer)
        except TableError as error:
            if not self._waits(error):
                raise
            return
        for number, first in enumerate(planning):
            self._world.where = first.name
            batch = first.plan({})
            self._steps.pop(layer, None)
            self._go(layer, number, None, one_by_one=False)
            self._steps.pop(layer, None)
            if batch is None:
                continue
            # These errors mean that another process has written first.
            with suppress(PositionError, *CONFLICTS), first.write(batch, self._world.tick()):
                pass
            first.close()

    def refusal(self, layer: LayerName) -> str | None:
        """Return the reason why a layer may not plan its next micro-batch, or None if it may."""
        try:
            for step in self._stepped(layer):
                step.plan({})
        except LakehouseError as error:
            return str(error)
        return None

    def _go(self, layer: LayerName, number: int, batches: int | None, *, one_by_one: bool) -> None:
        world, failures = self._world, 0
        left = _MOST_BATCHES if batches is None else batches
        while left > 0:
            try:
                step = self._stepped(layer)[number]
                world.where = step.name
                step.limit = 1 if one_by_one else None
                if step.is_held() or not self._take(step, layer):
                    break
                left -= 1
            except CrashError:
                raise
            except Exception as error:
                if world.writes.killed is not None:
                    raise CrashError from error
                if self._waits(error):
                    return
                failures += 1
                self.close()
                if failures == _TRIES:
                    raise StuckError(f"{layer} fails: {type(error).__name__}: {str(error)[:600]}") from error
        if left == 0 and batches is None:
            raise StuckError(f"{layer} does not come to rest")

    def _waits(self, error: Exception) -> bool:
        """Return whether a layer waits for a rebuild that was killed, and note it."""
        waits = isinstance(error, TableError) and "existing rows depend on this setting" in str(error)
        if waits:
            self._world.notices.append(f"waits for a rebuild: {str(error)[:300]}")
        return waits

    def _take(self, step: Step, layer: LayerName) -> bool:
        world = self._world
        with world.shared.timed(f"{layer} plan"):
            batch = step.plan({})
        if batch is not None:
            with world.shared.timed(f"{layer} write"), step.write(batch, world.tick()):
                return True
        ticker = step.ticker
        if ticker is not None and ticker.is_due(world.now):
            with world.shared.timed(f"{layer} tick"):
                ticker.tick(world.now)
        return False

    def _stepped(self, layer: LayerName) -> list[Step]:
        if layer not in self._steps:
            with self._world.shared.timed(f"{layer} start"):
                self._steps[layer] = [maker.make() for maker in self._makers(layer)]
        return self._steps[layer]

    def _makers(self, layer: LayerName) -> list[StepMaker]:
        world, permitted = self._world, self._world.permitted
        lake, stream, settings = world.lake, world.stream, world.settings
        match layer:
            case "bronze":
                return bronze.steps(lake, stream, settings, permitted)
            case "silver":
                return silver.steps(lake, stream, settings.run.max_bytes, permitted)
            case "gold":
                return gold.steps(lake, stream, settings.run.max_bytes)
            case "export":
                letters = letters_export.steps(lake, stream, settings, permitted)
                return [*letters, *export.steps(lake, stream, settings, permitted)]
