"""Generate stories from seeds, run them, and shrink those that end in a difference.

A story consists of a form of the stream, and of actions. It is determined only by its seed and number, so it
can be generated again without the stories before it. Some of its actions are scheduled pairs (`turns`), some
are phrases that lead to a rare state, and the rest are random. Hypothesis is not used, because its shrinker
runs hundreds of cases, and each story takes seconds. Dropping halves, then single actions, then arguments
needs at most forty runs.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from random import Random

from tests.simulation import actions as do
from tests.simulation import operations, repairs, settings_actions, tables
from tests.simulation.actions import Action
from tests.simulation.checks import Check, DifferError, differences
from tests.simulation.forms import BROKEN
from tests.simulation.services import Shared
from tests.simulation.world import World

LENGTH = 12
_HOUR_S, _DAY_S = 3600, 86_400
_PAIRS, _PHRASED, _BETWEEN = 2, 0.6, 0.4
_AGES_S = (0, 60, 60, 60, 400, 2 * _HOUR_S, 3 * _DAY_S)

Chosen = Callable[[Random], Action]


@dataclass(frozen=True)
class Story:
    """A form of the stream, and the actions on its lake."""

    form: str
    actions: tuple[Action, ...]

    def __str__(self) -> str:
        """Return the story as lines."""
        return "\n".join([f"form {self.form}", *map(str, self.actions)])


def read_story(text: str) -> Story:
    """Return the story in the given lines; lines that begin with # are comments."""
    first, *lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return Story(first.removeprefix("form ").strip(), tuple(map(do.read, lines)))


@dataclass
class Ended:
    """The result of a story: its differences and its coverage."""

    story: Story
    differences: list[str] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    statuses: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    notices: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


_KINDS = (
    ("clean",) * 4
    + ("corrected",) * 3
    + ("deleted",) * 2
    + ("late",) * 3
    + ("duplicate", "future", "malformed")
)


def _send(rng: Random, kind: str | None = None) -> Action:
    kind = kind or rng.choice(_KINDS)
    return do.Send(
        kind,
        rng.choice("abcde" if kind in {"late", "future", "malformed"} else "abc"),
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
    which, allow_late = rng.choice((-1, -1, 0, 1)), rng.random() < 0.8
    return repairs.Replay(which, allow_late, land_before=rng.choice((0, 0, 0, 1, 3, 4, 5)))


def _discard(rng: Random) -> Action:
    return repairs.Discard(rng.choice((-1, 0, 1)), land_before=rng.choice((0, 0, 1, 2, 3)))


def _resolve(rng: Random) -> Action:
    return repairs.Resolve(rng.choice((0, 1)), rng.random() < 0.5, rng.choice((0, 0, 1, 2, 3)))


def _rebuild(rng: Random) -> Action:
    since_s, until_s = rng.choice(((0, 0), (0, 0), (_HOUR_S, 0), (0, 60), (_DAY_S, 60)))
    return repairs.RebuildSilver(rng.choice((0, 0, 1, 2)), since_s, until_s, rng.random() < 0.3)


def _maintain(rng: Random) -> Action:
    return repairs.Maintain(*(rng.choice(days) for days in ((0, 1, 3), (0, 1, 3), (0, 0, 3), (0, 1))))


def _set_ids(rng: Random) -> Action:
    return settings_actions.SetIds(
        rng.choice(("", "field", "field", "header")), rng.choice(("", "field", "header"))
    )


def _change_setting(rng: Random) -> Action:
    name, values = rng.choice(_SETTINGS)
    return settings_actions.ChangeSetting(name, rng.choice(values))


_SETTINGS: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("metrics.grace", ("0s", "10m")),
    ("metrics.idle_after", ("10s", "1h")),
    ("calls.gap", ("45s", "2m")),
    ("calls.grace", ("30s", "10m")),
    ("stream_defaults.future_tolerance_s", (300, 2 * _DAY_S)),
    ("stream_defaults.earliest_event_time", ("2000-01-01T00:00:00Z", "2027-01-02T00:00:00Z")),
    ("metrics.gold", tuple({"metrics_1m": {"emit": emit}} for emit in ("changes", "final"))),
    ("sales.threshold", (15,)),  # sent records are not withdrawn
    ("sales.notify", ("every_update",)),
    ("metrics.quantile_k", (200, 1600)),
)
_KILLED: tuple[tuple[int, Chosen], ...] = (
    (12, _run),
    (4, _replay),
    (2, _discard),
    (3, _rebuild),
    (2, _maintain),
    (1, lambda _rng: repairs.RebuildGold()),
    (1, _resolve),
    (1, lambda _rng: operations.Adopt()),
    (1, lambda _rng: repairs.ClearState()),
)
"""Actions during which a process may be killed."""

_HELD = ("run", "run", "rebuild silver", "rebuild gold", "replay", "maintain")
"""Actions during which a process may be suspended."""

_CHOICES: tuple[tuple[int, Chosen], ...] = (
    (30, _send),
    (20, _run),
    (8, lambda rng: do.Kill(after=rng.random() < 0.5)),
    (3, lambda _rng: do.Restart()),
    (5, lambda rng: do.Wait(rng.choice((60, _HOUR_S, _DAY_S, 8 * _DAY_S, 20 * _DAY_S)))),
    (3, lambda rng: do.ClockBack(rng.choice((5, 600, _DAY_S)))),
    (9, _replay),
    (3, _discard),
    (2, _resolve),
    (4, _rebuild),
    (3, lambda rng: repairs.RebuildGold(rng.choice((0, 0, 2)))),
    (5, _maintain),
    (1, lambda _rng: repairs.ClearState()),
    (3, lambda rng: tables.Optimize(rng.choice(("bronze", "silver", "silver", "letters", "gold")))),
    (1, lambda rng: tables.Vacuum(rng.choice(("bronze", "silver", "gold")))),
    (1, lambda rng: tables.Vacuum(rng.choice(("bronze", "silver", "letters")), everything=True)),
    (3, lambda _rng: Check()),
    (2, lambda rng: tables.ForeignUpdate(rng.choice(("silver", "silver", "gold", "letters", "bronze")))),
    (1, lambda _rng: do.EmptyRedis()),
    (1, lambda rng: operations.EvictRedis(rng.choice((0, 1)))),
    (1, lambda _rng: operations.Copy()),
    (1, lambda _rng: operations.Adopt()),
    (1, lambda _rng: operations.RecreateTopic()),
    (2, lambda rng: operations.Standby(rng.randint(1, 8), rng.choice(_HELD))),
    (1, lambda _rng: do.AddPartitions()),
    (2, _set_ids),
    (2, _change_setting),
    (1, lambda rng: tables.Restore(rng.choice(("silver", "gold")), rng.choice((1, 2)))),
    (3, lambda rng: do.TwoRuns(rng.choice(("bronze", "silver", "gold", "export")))),
    (2, lambda rng: tables.ForeignDelete(rng.choice(("silver", "silver", "gold", "letters", "bronze")))),
    (2, lambda rng: repairs.ReplayWhileRunning(rng.choice((-1, 0)), before=rng.choice((1, 2)))),
    (1, lambda rng: do.ChangeLateness(rng.choice((_HOUR_S, 7 * _DAY_S, 30 * _DAY_S)))),
)


def _late_and_replayed(rng: Random) -> list[Action]:
    """Return actions for a record that is only late: no other record has its id."""
    late = do.Send("late", rng.choice("de"), partition=rng.choice((0, 1)))
    return [late, do.Run(rng.choice(("bronze silver", do.Run().layers))), repairs.Replay(allow_late=True)]


def _future_and_replayed(_rng: Random) -> list[Action]:
    return [do.Send("future", "d"), do.Run(), do.Wait(2 * _DAY_S), repairs.Replay(allow_late=True)]


def _broken_and_sent_again(rng: Random) -> list[Action]:
    broken = do.Send("malformed", rng.choice("abc"))
    return [broken, do.Run("bronze silver"), replace(broken, kind="clean", sequence=2), do.Run()]


def _broken_and_given_up(_rng: Random) -> list[Action]:
    return [do.Send("malformed"), do.Run("bronze silver"), repairs.Discard()]


_PHRASES = (_late_and_replayed,) * 3 + (_future_and_replayed, _broken_and_sent_again, _broken_and_given_up)
"""Actions that lead to a status that chance rarely reaches."""

_LAYER_WRITES = {"bronze": 1, "silver": 2, "gold": 2, "export": 7}
_WRITES = {"Replay": 5, "RebuildSilver": 4, "RebuildGold": 3, "Maintain": 4, "Adopt": 12, "SetIds": 6}
"""The approximate number of writes per action."""


_FORMS = {
    "corrected": 8,
    "unique": 2,
    "plain": 2,
    "windows": 2,
    "sales": 2,
    "calls": 3,
    "debezium": 2,
    "aggregates": 2,
    "avro": 1,
    "protobuf": 1,
}
"""How often each form is chosen."""


def make(seed: int, number: int, length: int = LENGTH, form: str | None = None) -> Story:
    """Return the story with this number, in the given form if there is one."""
    rng = Random(f"{seed} {number}")
    chosen = rng.choices(list(_FORMS), list(_FORMS.values()))[0]
    form = form or chosen
    made: dict[str, Chosen] = {f"Send {kind}": partial(_send, kind=kind) for kind in dict.fromkeys(_KINDS)}
    made |= {name_of(chosen(Random(0))): chosen for _, chosen in _CHOICES if chosen is not _send}
    parts = [[made[name](rng) for name in pair] for pair in turns(seed, number, list(made))]
    kill = made["Kill"](rng)
    parts.append([kill, _by_chance(rng, kill)])
    if rng.random() < _PHRASED:
        parts.append(rng.choice(_PHRASES)(rng))
    rng.shuffle(parts)
    actions = [_send(rng, "clean"), _send(rng), _run(rng)]
    while parts and len(actions) + len(parts[-1]) <= length:
        actions += parts.pop()
        while len(actions) + sum(map(len, parts)) < length and rng.random() < _BETWEEN:
            actions.append(_by_chance(rng, actions[-1]))
    while len(actions) < length:
        actions.append(_by_chance(rng, actions[-1]))
    return Story(form, tuple(_of_form(rng, form, one) for one in _aimed(rng, actions)))


def _by_chance(rng: Random, last: Action) -> Action:
    choices = _KILLED if isinstance(last, do.Kill) else _CHOICES
    weights = [weight for weight, _ in choices]
    return rng.choices([one for _, one in choices], weights)[0](rng)


def _aimed(rng: Random, actions: Sequence[Action]) -> Iterator[Action]:
    """Yield the actions; each kill is aimed at one of the writes of the next action that writes."""
    for place, one in enumerate(actions):
        following = next(map(_writes_of, filter(_writes_of, actions[place + 1 :])), 1)
        yield replace(one, number=rng.randint(1, following)) if isinstance(one, do.Kill) else one


def _writes_of(action: Action) -> int:
    if isinstance(action, do.Run):
        return sum(_LAYER_WRITES[layer] for layer in action.layers.split())
    if isinstance(action, repairs.Discard | repairs.Resolve):
        return 1
    return _WRITES.get(type(action).__name__, 0)


def name_of(action: Action) -> str:
    """Return the name under which an action is counted."""
    return f"Send {action.kind}" if isinstance(action, do.Send) else type(action).__name__


def turns(seed: int, number: int, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of actions scheduled for the story with this number; all pairs occur equally often."""
    pairs = [(one, other) for one in names for other in names]
    Random(f"pairs of {seed}").shuffle(pairs)
    return [pairs[(number * _PAIRS + place) % len(pairs)] for place in range(_PAIRS)]


def _of_form(rng: Random, form: str, action: Action) -> Action:
    """Adapt an action to a form: to one of its sides, and with the form's poison."""
    if form == "calls":
        return _of_calls(rng, action)
    if isinstance(action, do.Send) and action.kind in {"malformed", "duplicate"} and form in BROKEN:
        return replace(action, kind=rng.choice((action.kind, *BROKEN[form])))
    return action


def _of_calls(rng: Random, action: Action) -> Action:
    """Adapt an action to a side; events are about a gap apart, and waits let calls close."""
    match action:
        case do.Send(kind=kind):
            plain = "clean" if kind in {"deleted", "corrected"} and rng.random() < 0.7 else kind
            id_, age_s = rng.choice("aab"), rng.choice((0, 30, 60, 90, 150, 150, 400, 2 * _HOUR_S))
            return replace(action, kind=plain, id=id_, age_s=age_s, side=rng.choice((0, 1)))
        case do.Wait():
            seconds = (50, 120, 250, 300, _HOUR_S, _DAY_S, 8 * _DAY_S, 20 * _DAY_S)
            return replace(action, seconds=rng.choice(seconds))
        case repairs.Maintain():
            return replace(action, side=rng.choice((-1, -1, 0, 1)))
        case _ if any(one.name == "side" for one in fields(action)):
            return replace(action, side=rng.choice((0, 1)))  # type: ignore[call-arg]
        case _:
            return action


def run(shared: Shared, story: Story) -> Ended:
    """Run a story on its own lake, and return the defects at its end."""
    world, told = World(shared, story.form), Ended(story)
    before = dict(shared.seconds)
    try:
        world.begin()
        told.differences = _lived(world, story)
        told.killed = world.done
        told.notices = world.notices
        told.writes = set(world.writes.seen)
        told.statuses = world.statuses()
    finally:
        world.end()
    told.seconds = {what: seconds - before.get(what, 0.0) for what, seconds in shared.seconds.items()}
    return told


def _lived(world: World, story: Story) -> list[str]:
    doing: object = "the beginning"
    try:
        for doing in story.actions:
            with world.shared.timed(type(doing).__name__):
                doing.do(world)
        doing = "the check"
        return differences(world)
    except DifferError as error:
        return list(error.found)
    except Exception as error:  # noqa: BLE001 - any error is a finding of the story
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
        return [f"{doing} raises {type(error).__name__}: {str(error)[:600]} ({where})"]


def kind_of(found: Iterable[str]) -> str:
    """Return the part of a difference that a shrunk story must still show: the first words."""
    return " ".join(next(iter(found), "").split()[:2])


def shrunk(shared: Shared, ended: Ended, most: int = 40) -> Ended:
    """Drop actions and arguments while the first difference stays of the same kind."""
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
