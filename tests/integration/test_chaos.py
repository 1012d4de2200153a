"""The pipeline's processes and the services beneath them are killed under load: the books balance.

Two short runs of tests/chaos, part of `make soak`: one process for all layers and one for each alternate,
with mixed records; and the four jobs on a standalone cluster, whose workers die. Both need the whole machine,
so they are in one module, whose tests never run side by side. `make chaos` runs for longer, and with faults
of other kinds.
"""

from __future__ import annotations

import pytest

from lakehouse.engine.layers import LAYERS
from tests.chaos.faults import FAULTS, MIXED, Outage
from tests.chaos.run import Outcome, Plan, run_chaos
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
    *MIXED,
)
ON_CLUSTER = (
    "kill a worker inside a micro-batch",
    "freeze silver inside a micro-batch",
    "freeze gold inside a micro-batch",
    "freeze export inside a micro-batch",
)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    plan = Plan(
        seed=5,
        rate=40,
        deck=DECK,
        shuffled=False,
        poison=0.2,
        quiet_s=1.0,
        calm=0.0,
        outage=Outage(1.0, 2.0),
        way="turns",
        mixed=True,
    )
    return run_chaos(tmp_path_factory.mktemp("chaos"), plan, print)


@pytest.mark.soak
def test_every_table_topic_redis_and_postgresql_row_is_the_oracles_after_it(outcome: Outcome) -> None:
    assert outcome.differences == []


@pytest.mark.soak
def test_the_faults_took_place_and_every_layer_came_back(outcome: Outcome) -> None:
    assert {name for name, times in outcome.faults.items() if times > 0} == set(DECK), outcome.misses
    assert sorted(outcome.starts) == sorted((ALL, *LAYERS))
    assert min(outcome.starts.values()) >= 2
    assert outcome.books.sent == outcome.books.clean + outcome.books.dead
    assert outcome.books.poison > 100


@pytest.fixture(scope="module")
def clustered(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    plan = Plan(
        seed=3,
        rate=40,
        deck=ON_CLUSTER,
        shuffled=False,
        poison=0.1,
        quiet_s=1.0,
        calm=1.0,
        outage=Outage(4.0, 8.0),
        way="cluster",
    )
    return run_chaos(tmp_path_factory.mktemp("cluster"), plan, print)


@pytest.mark.soak
def test_every_table_topic_and_redis_row_is_the_oracles_after_a_cluster(clustered: Outcome) -> None:
    assert clustered.differences == []


@pytest.mark.soak
def test_a_worker_was_lost_and_each_frozen_driver_met_its_successor(clustered: Outcome) -> None:
    assert {name for name, times in clustered.faults.items() if times > 0} == set(ON_CLUSTER), (
        clustered.misses
    )
    assert sorted(clustered.starts) == sorted(LAYERS)
    assert clustered.books.sent == clustered.books.clean + clustered.books.dead


def test_the_decks_are_of_known_faults() -> None:
    assert {*DECK, *ON_CLUSTER} <= FAULTS.keys()
