"""The pipeline's processes and the services beneath them are killed under load: the books balance.

A short run of tests/chaos, part of `make soak`; `make chaos` is the long one.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lakehouse.engine.layers.step import LAYERS
from tests.chaos.faults import FAULTS, MIXED, Outage
from tests.chaos.run import Outcome, Plan, Way, run_chaos
from tests.chaos.supervisor import ALL

# Faults that hit each other's recovery: only those at a chosen point wait for a layer to be back.
DECK = (
    "kill silver between dead letters and clean rows",
    "kill gold right after a commit",
    "kill Kafka",
    "kill PostgreSQL",
    "kill export",
    "empty PostgreSQL",
    "the disk refuses writes",
)


@dataclass(frozen=True)
class Run:
    """How the layers run, the faults, and the processes that must have been started."""

    way: Way
    deck: tuple[str, ...]
    processes: tuple[str, ...]
    mixed: bool = False


RUNS = {
    "layers": Run("layers", DECK, LAYERS),
    "turns": Run("turns", DECK, (ALL, *LAYERS)),
    "mixed": Run("together", DECK + MIXED, (ALL,), mixed=True),
}


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest) -> Run:
    """Return a run: a process per layer, these alternating with one for all, or mixed records in one."""
    return RUNS[request.param]


@pytest.fixture(scope="module")
def outcome(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    plan = Plan(
        seed=5,
        rate=40,
        deck=run.deck,
        shuffled=False,
        poison=0.2,
        quiet_s=1.0,
        calm=0.0,
        outage=Outage(1.0, 2.0),
        way=run.way,
        mixed=run.mixed,
    )
    return run_chaos(tmp_path_factory.mktemp("chaos"), plan, print)


@pytest.mark.soak
def test_every_table_topic_redis_and_postgresql_row_is_the_oracles_after_it(outcome: Outcome) -> None:
    assert outcome.differences == []


@pytest.mark.soak
def test_the_faults_took_place_and_every_layer_came_back(run: Run, outcome: Outcome) -> None:
    assert {name for name, times in outcome.faults.items() if times > 0} == set(run.deck), outcome.misses
    assert sorted(outcome.starts) == sorted(run.processes)
    assert min(outcome.starts.values()) >= 2
    assert outcome.books.sent == outcome.books.clean + outcome.books.dead
    assert outcome.books.poison > 100


def test_the_deck_is_of_known_faults() -> None:
    assert set(DECK) <= FAULTS.keys()
