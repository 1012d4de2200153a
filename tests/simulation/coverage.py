"""Coverage of stories: the actions, writes and statuses that they have reached or missed."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.simulation.actions import Action
from tests.simulation.machine import Ended, name_of

STATUSES = ("open", "replayed", "discarded", "resent", "duplicate", "superseded", "deletion")


@dataclass
class Coverage:
    """Counts over stories: pairs of consecutive actions, write points, and statuses of letters.

    It also adds up the seconds spent on each kind of work, over all processes.
    """

    stories: int = 0
    actions: Counter[str] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    writes: set[str] = field(default_factory=set)
    killed: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)

    def add(self, ended: Ended) -> None:
        """Count a story."""
        self.stories += 1
        names = [name_of(one) for one in ended.story.actions]
        self.actions.update(names)
        self.pairs.update(itertools.pairwise(names))
        self.writes |= ended.writes
        self.killed.update(ended.killed)
        self.statuses.update(ended.statuses)
        self.seconds.update(ended.seconds)
        self.refusals.update(one[:90] for one in ended.notices if one.startswith("refused"))

    def lines(self) -> Iterator[str]:
        """Yield lines that say what was reached, and what was never reached."""
        known = sorted(self.actions)
        most = len(known) ** 2
        yield f"pairs of actions: {len(self.pairs)} of {most}"
        points = {f"{when} {write}" for write in self.writes for when in ("before", "after")}
        yield f"write points killed: {len(points & self.killed.keys())} of {len(points)}"
        yield f"statuses: {', '.join(f'{name} {self.statuses[name]}' for name in STATUSES)}"
        if self.refusals:
            yield f"refused: {dict(self.refusals.most_common(5))}"
        unused = sorted(
            name
            for name in Action.names
            if not name.startswith("_") and name not in {one.partition(" ")[0] for one in known}
        )
        yield f"never done: {', '.join(unused) or 'nothing'}"
        yield f"never killed: {', '.join(sorted(points - self.killed.keys())) or 'nothing'}"
        yield f"never reached: {', '.join(name for name in STATUSES if not self.statuses[name]) or 'nothing'}"
