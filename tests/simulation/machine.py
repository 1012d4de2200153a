"""Makes stories by seed, runs them, and shrinks one that ends in a difference.

A story is a form of the stream, and actions. Chance alone chooses it, by seed and number, so that a story can
be made again without those before it. Not Hypothesis: its shrinker runs hundreds of cases, and one takes
seconds here. Dropping halves, then single actions, then arguments, ends within forty.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from random import Random

from tests.simulation import actions as do
from tests.simulation import repairs
from tests.simulation.actions import Action
from tests.simulation.checks import differences
from tests.simulation.services import Shared
from tests.simulation.world import World

LENGTH = 12
_HOUR_S, _DAY_S = 3600, 86_400
_AGES_S = (0, 60, 60, 60, 400, 2 * _HOUR_S, 3 * _DAY_S)

Chosen = Callable[[Random], Action]


@dataclass(frozen=True)
class Story:
    """A form of the stream, and what is done to its lake."""

    form: str
    actions: tuple[Action, ...]

    def __str__(self) -> str:
        """Return its lines."""
        return "\n".join([f"form {self.form}", *map(str, self.actions)])


def read_story(text: str) -> Story:
    """Return the story of these lines; those that begin with # say something to people."""
    first, *lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return Story(first.removeprefix("form ").strip(), tuple(map(do.read, lines)))


@dataclass
class Ended:
    """What came of a story: differences, and what it has reached."""

    story: Story
    differences: list[str] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    statuses: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    notices: list[str] = field(default_factory=list)


def _send(rng: Random) -> Action:
    kinds = (
        ("clean",) * 4
        + ("corrected",) * 3
        + ("deleted",) * 2
        + ("late",) * 3
        + ("duplicate", "future", "malformed")
    )
    return do.Send(
        rng.choice(kinds),
        rng.choice("abc"),
        rng.choice((1, 1, 2, 3)),
        rng.choice((10, 20)),
        rng.choice(_AGES_S),
        rng.choice((0, 1, 2)),
    )


def _run(rng: Random) -> Action:
    layers = rng.choice(
        ("bronze silver gold export",) * 3
        + ("bronze", "bronze silver", "silver", "gold export", "bronze silver gold")
    )
    return do.Run(layers, rng.choice((0, 0, 1)), rng.random() < 0.4)


def _replay(rng: Random) -> Action:
    return repairs.Replay(rng.choice((-1, -1, 0, 1)), rng.random() < 0.8)


def _discard(rng: Random) -> Action:
    return repairs.Discard(rng.choice((-1, 0, 1)))


def _rebuild(rng: Random) -> Action:
    return repairs.RebuildSilver(rng.choice((0, 0, 1, 2)))


def _maintain(rng: Random) -> Action:
    return repairs.Maintain(*(rng.choice(days) for days in ((0, 1, 3), (0, 1, 3), (0, 0, 3), (0, 1))))


_KILLED: tuple[tuple[int, Chosen], ...] = (
    (12, _run),
    (4, _replay),
    (2, _discard),
    (3, _rebuild),
    (2, _maintain),
    (1, lambda _rng: repairs.RebuildGold()),
    (1, lambda rng: repairs.Resolve(rng.choice((0, 1)))),
)
"""What a process may be doing that is killed."""

_CHOICES: tuple[tuple[int, Chosen], ...] = (
    (30, _send),
    (20, _run),
    (8, lambda rng: do.Kill(rng.choice((1, 1, 2, 2, 3, 4, 5, 6)), rng.random() < 0.5)),
    (3, lambda _rng: do.Restart()),
    (5, lambda rng: do.Wait(rng.choice((60, _HOUR_S, _DAY_S, 8 * _DAY_S, 20 * _DAY_S)))),
    (3, lambda rng: do.ClockBack(rng.choice((5, 600, _DAY_S)))),
    (9, _replay),
    (3, _discard),
    (2, lambda rng: repairs.Resolve(rng.choice((0, 1)))),
    (4, _rebuild),
    (3, lambda rng: repairs.RebuildGold(rng.choice((0, 0, 2)))),
    (5, _maintain),
    (3, lambda rng: repairs.Optimize(rng.choice(("bronze", "silver", "silver", "letters", "gold")))),
    (1, lambda rng: repairs.Vacuum(rng.choice(("bronze", "silver", "gold")))),
    (1, lambda _rng: repairs.ForeignUpdate("silver")),
    (1, lambda _rng: do.EmptyRedis()),
    (1, lambda _rng: do.AddPartitions()),
    (1, lambda rng: repairs.SetIds(sequences=rng.random() < 0.5)),
    (1, lambda rng: repairs.Restore(rng.choice(("silver", "gold")), rng.choice((1, 2)))),
    (3, lambda rng: do.TwoRuns(rng.choice(("bronze", "silver", "gold", "export")))),
    (1, lambda _rng: repairs.ForeignDelete("silver")),
    (2, lambda rng: repairs.ReplayWhileRunning(rng.choice((-1, 0)), before=rng.choice((1, 2)))),
    (1, lambda rng: do.ChangeLateness(rng.choice((_HOUR_S, 7 * _DAY_S, 30 * _DAY_S)))),
)


def make(seed: int, number: int, length: int = LENGTH) -> Story:
    """Return the story of this number."""
    rng = Random(f"{seed} {number}")
    form = rng.choice(("corrected",) * 4 + ("unique", "plain", "windows", "sales"))
    actions = [_send(rng), _send(rng), _run(rng)]
    while len(actions) < length:
        choices = _KILLED if isinstance(actions[-1], do.Kill) else _CHOICES
        weights = [weight for weight, _ in choices]
        actions.append(rng.choices([one for _, one in choices], weights)[0](rng))
    return Story(form, tuple(actions))


def run(shared: Shared, story: Story) -> Ended:
    """Run a story on a lake of its own, and say what is wrong at its end."""
    world, told = World(shared, story.form), Ended(story)
    try:
        world.begin()
        told.differences = _lived(world, story)
        told.killed = world.done
        told.notices = world.notices
        told.writes = set(world.writes.seen)
        told.statuses = world.statuses()
    finally:
        world.end()
    return told


def _lived(world: World, story: Story) -> list[str]:
    doing: object = "the beginning"
    try:
        for doing in story.actions:
            with world.shared.timed(type(doing).__name__):
                doing.do(world)
        doing = "the check"
        return differences(world)
    except Exception as error:  # noqa: BLE001 - whatever is raised is what the story has found
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
        return [f"{doing} raises {type(error).__name__}: {str(error)[:600]} ({where})"]


def kind_of(found: Iterable[str]) -> str:
    """Return what a shrunk story must still have: the first words of the first difference."""
    return " ".join(next(iter(found), "").split()[:2])


def shrunk(shared: Shared, ended: Ended, most: int = 40) -> Ended:
    """Drop actions and arguments as long as the first difference is of the same kind."""
    best, kind, left = ended, kind_of(ended.differences), most

    def try_(actions: Sequence[Action]) -> bool:
        nonlocal best, left
        if left <= 0 or tuple(actions) == best.story.actions:
            return False
        left -= 1
        found = run(shared, replace(best.story, actions=tuple(actions)))
        is_same = any(kind_of([one]) == kind for one in found.differences)
        if is_same:
            best = found
        return is_same

    size = max(1, len(best.story.actions) // 2)
    while size >= 1:
        start = 0
        while start < len(best.story.actions):
            rest = best.story.actions[:start] + best.story.actions[start + size :]
            if not try_(rest):
                start += size
        size = size // 2 if size > 1 else 0
    for place in range(len(best.story.actions)):
        one = best.story.actions[place]
        for part in fields(one):
            simpler = replace(one, **{part.name: part.default})
            if simpler != one and try_(
                (*best.story.actions[:place], simpler, *best.story.actions[place + 1 :])
            ):
                one = simpler
    return best
