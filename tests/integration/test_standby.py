"""Two processes that stand by for each other are killed, suspended and stopped while events arrive."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from lakehouse.dev.samples.loads import Load, send
from lakehouse.dev.services.services import Endpoints
from tests.support import pipeline
from tests.support.processes import LAKEHOUSE, finish, place, running

STANDBY = [LAKEHOUSE, "run", "all", "--stream", "transactions", "--standby"]
EVENTS = 500


@pytest.mark.soak
def test_whoever_is_killed_asleep_or_stopped_is_replaced_and_nothing_is_lost_or_doubled(
    services: Endpoints, tmp_path: Path
) -> None:
    with place(tmp_path / "home", services, database=11) as here:
        settings = here.settings()
        sent = 0

        def more() -> None:
            nonlocal sent
            sent += 1
            assert send(Load("transactions", EVENTS, seed=sent), settings).failed == 0

        def merged() -> int:
            gold = here.home / "lake/gold/user_transactions_5m/_delta_log" / f"{0:020}.json"
            return sum(here.table("gold.user_transactions_5m")["count"].to_pylist()) if gold.exists() else 0

        def all_are_merged() -> bool:
            return merged() == sent * EVENTS

        with (
            running(STANDBY, here.environment, tmp_path / "first") as first,
            running(STANDBY, here.environment, tmp_path / "second") as second,
        ):
            pipeline.await_(lambda: "running" in first.output + second.output, timeout_s=300)
            time.sleep(1)
            assert ("running" in first.output) != ("running" in second.output)
            works, stands_by = (first, second) if "running" in first.output else (second, first)
            more()
            works.await_(all_are_merged)
            stands_by.await_output(f"standing by: process {works.pid} on ")

            os.killpg(works.pid, signal.SIGKILL)
            more()
            stands_by.await_output("running")
            stands_by.await_(all_are_merged)
            works.wait()

            with running(STANDBY, here.environment, tmp_path / "third") as third:
                third.await_output(f"standing by: process {stands_by.pid} on ")
                os.killpg(stands_by.pid, signal.SIGSTOP)
                more()
                third.await_output("running")
                third.await_(all_are_merged)
                os.killpg(stands_by.pid, signal.SIGCONT)
                stands_by.await_output("another run is active; standing by")
                more()
                third.await_(all_are_merged)

                os.kill(third.pid, signal.SIGTERM)
                assert third.wait() == 0, third.everything()
                stands_by.await_(lambda: stands_by.output.count("running") == 2)
                more()
                stands_by.await_(all_are_merged)
                os.kill(stands_by.pid, signal.SIGTERM)
                assert stands_by.wait() == 0, stands_by.everything()

        audit = finish([LAKEHOUSE, "audit", "--stream", "transactions"], here.environment)
        assert audit.returncode == 0, audit.stdout + audit.stderr
        topic = here.topics["aggregated-transactions"]
        messages = Counter((one.key, one.value) for one in pipeline.read_topic(services.kafka, topic))
        assert set(messages.values()) == {1}
