"""Stories are written as text, generated from seeds, and shrunk; the kept stories pass on a real lake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from lakehouse.dev.services.services import Endpoints
from lakehouse.settings import Settings
from tests.simulation import machine
from tests.simulation.actions import Action, Kill, Run, Send, Wait, read
from tests.simulation.coverage import Coverage
from tests.simulation.forms import BROKEN, FORMS
from tests.simulation.machine import Ended, Story, make, name_of, read_story, run, shrunk, turns
from tests.simulation.repairs import Maintain
from tests.simulation.services import Shared, shared
from tests.simulation.stories import QUICK, kept
from tests.support.chance import chance
from tests.support.counting import jobs_kept

NEW = 100
TEXT = """\
form corrected
Send(kind="late", id="b", partition=1)
Kill(number=2, after=True)
Run(layers="bronze silver")
"""
STORY = Story("corrected", (Send("late", "b", partition=1), Kill(2, after=True), Run(layers="bronze silver")))


@pytest.fixture(scope="module")
def found(session_settings: Settings, services: Endpoints, spark: SparkSession) -> Iterator[Shared]:
    with shared(session_settings.changed(services.update), spark) as one:
        yield one


def test_a_story_is_lines_of_text() -> None:
    assert read_story(f"# What it is about.\n\n{TEXT}") == STORY
    assert str(STORY) == TEXT.strip().replace('"', "'")


def test_a_line_that_is_no_action_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no action: print\('x'\)"):
        read("print('x')")


def test_a_seed_makes_the_same_story_again() -> None:
    assert make(7, 3) == make(7, 3)
    assert make(7, 3) != make(7, 4)
    assert len(make(7, 3).actions) == machine.LENGTH
    assert read_story(str(make(7, 3))) == make(7, 3)


def test_each_pair_of_actions_has_its_turn_before_any_has_it_again() -> None:
    names = ["Run", "Send", "Wait"]

    found = Counter(pair for number in range(9) for pair in turns(7, number, names))

    assert found == {(one, other): 2 for one in names for other in names}


def test_stories_have_the_pairs_whose_turn_it_is() -> None:
    names = list(dict.fromkeys(name_of(one) for number in range(500) for one in make(7, number).actions))

    seen = {pair for number in range(500) for pair in pairwise(map(name_of, make(7, number).actions))}

    assert len(seen) > len(names) ** 2 / 2


def test_every_form_is_chosen_and_corrected_records_are_the_usual_ones() -> None:
    chosen = Counter(make(7, number).form for number in range(400))

    assert chosen.keys() == FORMS.keys()
    assert chosen.most_common(1)[0][0] == "corrected"


def test_a_form_that_is_asked_for_has_its_sides_and_poison_of_its_own() -> None:
    calls = [one for number in range(60) for one in make(7, number, form="calls").actions]
    changes = [one for number in range(60) for one in make(7, number, form="debezium").actions]

    assert {one.side for one in calls if isinstance(one, Send)} == {0, 1}
    assert {one.side for one in calls if isinstance(one, Maintain)} == {-1, 0, 1}
    assert {one.kind for one in changes if isinstance(one, Send)} > set(BROKEN["debezium"])


def test_a_story_shrinks_to_what_its_difference_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    long: list[Action] = [Wait(60), Send("late", "c", 3), Run(), Kill(5, after=True), Maintain(3, 1), Wait(7)]

    def differing(_shared: Shared, story: Story) -> Ended:
        kills = [one for one in story.actions if isinstance(one, Kill)]
        sends = [one for one in story.actions if isinstance(one, Send) and one.kind == "late"]
        return Ended(story, ["gold: is wrong"] if kills and sends else [])

    monkeypatch.setattr(machine, "run", differing)
    nothing = cast("Shared", cast("Any", None))

    best = shrunk(nothing, Ended(Story("plain", tuple(long)), ["gold: is wrong"]))

    assert best.story == Story("plain", (Send("late"), Kill()))


def test_what_was_never_reached_is_listed() -> None:
    coverage = Coverage()
    reached = Ended(STORY, killed=["after silver delta"], statuses={"open"}, writes={"silver delta"})

    coverage.add(reached)

    lines = list(coverage.lines())
    assert lines[0] == "pairs of actions: 2 of 9"
    assert lines[1] == "write points killed: 1 of 2"
    assert "never killed: before silver delta" in lines
    assert "never reached: replayed, discarded, resent, duplicate, superseded, deletion" in lines


def test_every_story_that_make_test_runs_is_kept() -> None:
    assert {file.stem for file in kept()} >= QUICK


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, id=file.stem, marks=() if file.stem in QUICK else pytest.mark.soak)
        for file in kept()
    ],
)
def test_kept_stories_end_without_a_difference(found: Shared, file: Path) -> None:
    before = jobs_kept(found.spark, patience_s=0)
    assert run(found, read_story(file.read_text())).differences == []
    assert jobs_kept(found.spark, before) == []


@pytest.mark.soak
def test_new_stories_end_without_a_difference(found: Shared) -> None:
    """The seed is specific to this test; `python -m tests.simulation --seed` repeats and shrinks a story."""
    seed, wrong = chance(58).randrange(2**32), list[str]()
    for number in range(NEW):
        told = run(found, make(seed, number))
        if told.differences:
            wrong += [f"seed {seed}, story {number}:", str(told.story), *told.differences]
    assert wrong == []
