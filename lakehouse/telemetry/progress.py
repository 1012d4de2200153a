"""How far queries have come, from the files of their checkpoints, without a JVM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lakehouse.progress.checkpoints import application_of
from lakehouse.telemetry.delta_log import from_ms

Offsets = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True)
class Place:
    """How far a Delta table has been read: each version before this one, and its files up to `index`.

    An `index` of -1 means no file. With `is_starting`, the files are all that the table had in this version,
    the oldest first.
    """

    version: int
    index: int
    is_starting: bool


class Progress:
    """The checkpoint of a query, as of the last `refresh`.

    `application` is the name of the query's transactions; null before its first start. Numbers of
    micro-batches are null before the first.
    """

    def __init__(self, checkpoint: Path, query: str) -> None:
        self._checkpoint = checkpoint
        self._query = query
        self._plans: dict[int, tuple[datetime, list[str]]] = {}
        self.application: str | None = None
        self.planned: int | None = None
        self.done: int | None = None

    def refresh(self) -> None:
        """Look at the checkpoint again."""
        identity = _json(self._checkpoint / "metadata")
        application = None if identity is None else application_of(self._query, str(identity["id"]))
        if application != self.application:
            self._plans.clear()
        self.application = application
        # In this order: what is done was planned earlier.
        self.done = _last(self._checkpoint / "commits")
        self.planned = _last(self._checkpoint / "offsets")

    @property
    def planned_at(self) -> datetime | None:
        """When the last micro-batch was planned."""
        plan = None if self.planned is None else self._plan(self.planned)
        return None if plan is None else plan[0]

    @property
    def done_at(self) -> datetime | None:
        """When the last micro-batch was noted as done."""
        try:
            found = (self._checkpoint / "commits" / str(self.done)).stat()
        except OSError:
            return None
        return from_ms(found.st_mtime_ns // 1_000_000)

    def written(self, transactions: Mapping[str, int]) -> int | None:
        """Return the last written micro-batch: noted as done, or in the transactions of its table."""
        noted = transactions.get(self.application or "")
        if noted is None or self.planned is None or not (self.done or -1) < noted <= self.planned:
            return self.done
        return noted

    def kafka_offsets(self, batch: int | None) -> Offsets:
        """Return the offset after the last one that a micro-batch reads; without one, the first offset."""
        if batch is None:
            lines = _lines(self._checkpoint / "sources" / "0" / "0")
        else:
            plan = self._plan(batch)
            lines = [] if plan is None else plan[1]
        found: Mapping[str, Mapping[str, int]] = json.loads(lines[-1]) if lines else {}
        return {
            topic: {int(partition): int(offset) for partition, offset in places.items()}
            for topic, places in found.items()
        }

    def places(self, batch: int | None) -> dict[str, Place]:
        """Return how far a micro-batch reads each Delta table, by table id; empty without one."""
        plan = None if batch is None else self._plan(batch)
        found = [json.loads(line) for line in (plan[1] if plan else ()) if line != "-"]
        return {
            str(one["reservoirId"]): Place(
                int(one["reservoirVersion"]), max(int(one["index"]), -1), bool(one["isStartingVersion"])
            )
            for one in found
        }

    def _plan(self, batch: int) -> tuple[datetime, list[str]] | None:
        # A plan does not change, except for the last one, which a guard may replace.
        if batch not in self._plans or batch == self.planned:
            lines = _lines(self._checkpoint / "offsets" / str(batch))
            if len(lines) < 3:  # noqa: PLR2004 - a version, a header, and a line for each source
                return None
            header: dict[str, Any] = json.loads(lines[1])
            self._plans = {number: plan for number, plan in self._plans.items() if number >= batch - 2}
            self._plans[batch] = from_ms(int(header["batchTimestampMs"])), lines[2:]
        return self._plans[batch]


def _last(directory: Path) -> int | None:
    try:
        return max((int(path.name) for path in directory.iterdir() if path.name.isdecimal()), default=None)
    except OSError:
        return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _json(path: Path) -> dict[str, Any] | None:
    lines = _lines(path)
    found: dict[str, Any] | None = json.loads("".join(lines)) if lines else None
    return found
