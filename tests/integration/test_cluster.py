"""The four jobs on a standalone cluster: workers die, drivers come back, and the books balance."""

from __future__ import annotations

import pytest

from lakehouse.engine.layers import LAYERS
from tests.chaos.faults import Outage
from tests.chaos.run import Outcome, Plan, run_chaos

DECK = (
    "kill a worker inside a micro-batch",
    "freeze silver inside a micro-batch",
    "freeze gold inside a micro-batch",
    "freeze export inside a micro-batch",
)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    plan = Plan(
        seed=3,
        rate=40,
        deck=DECK,
        shuffled=False,
        poison=0.1,
        quiet_s=1.0,
        calm=1.0,
        outage=Outage(4.0, 8.0),
        way="cluster",
    )
    return run_chaos(tmp_path_factory.mktemp("cluster"), plan, print)


@pytest.mark.soak
def test_every_table_topic_and_redis_row_is_the_oracles_after_it(outcome: Outcome) -> None:
    assert outcome.differences == []


@pytest.mark.soak
def test_a_worker_was_lost_and_each_frozen_driver_met_its_successor(outcome: Outcome) -> None:
    assert {name for name, times in outcome.faults.items() if times > 0} == set(DECK), outcome.misses
    assert sorted(outcome.starts) == sorted(LAYERS)
    assert outcome.books.sent == outcome.books.clean + outcome.books.dead
