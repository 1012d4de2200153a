"""All four streams at once in one live process.

In test_every_stream they catch up; in test_chaos each layer runs in its own process.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from lakehouse.dev.samples.loads import GENERATORS, Load, send
from lakehouse.dev.services.services import Endpoints
from lakehouse.settings import Settings
from tests.support.pipeline import read_topic
from tests.support.processes import LAKEHOUSE, NOISE, Place, place, running
from tests.support.streams import STREAMS

EVENTS = 500
TIMEOUT_S = 900.0


def load(here: Place, session_settings: Settings) -> None:
    settings = session_settings.changed(
        {"kafka.bootstrap_servers": here.services.kafka, "topics": here.topics}
    )
    for stream in GENERATORS:
        assert send(Load(stream, EVENTS, seed=1, malformed=0.02), settings).failed == 0


def rows_by_stream(here: Place, layer: str) -> dict[str, int]:
    return {
        stream.name: sum(here.table(f"{layer}.{source.table}").num_rows for source in stream.sources)
        for stream in STREAMS
    }


def dead_by_stream(here: Place) -> dict[str, int]:
    names = [row["stream"] for row in here.rows("silver.dead_letters")]
    return {stream.name: names.count(stream.name) for stream in STREAMS}


def counted_by_stream(here: Place) -> dict[str, int]:
    """Return how many clean records the gold tables account for."""
    calls = here.rows("gold.call_records")
    return {
        "metrics": sum(row["count"] for row in here.rows("gold.metrics_1m")),
        "calls": sum(row["analytics_events"] + row["metrics_events"] for row in calls),
        "sales": sum(row["count"] for row in here.rows("gold.product_sales")),
        "transactions": sum(row["count"] for row in here.rows("gold.user_transactions_5m")),
    }


def is_through(here: Place, events: int) -> bool:
    """Return whether every event is clean or dead, and every clean one counted, closed and sent."""
    try:
        return is_counted(here, events) and is_sent(here)
    except Exception:  # noqa: BLE001 - a table or topic is not there yet
        return False


def is_counted(here: Place, events: int) -> bool:
    silver, dead = rows_by_stream(here, "silver"), dead_by_stream(here)
    if any(silver[name] + dead[name] != events for name in silver):
        return False
    return (
        rows_by_stream(here, "bronze") == dict.fromkeys(silver, events) and counted_by_stream(here) == silver
    )


def is_sent(here: Place) -> bool:
    calls = here.rows("gold.call_records")
    if {row["status"] for row in calls} != {"closed"}:
        return False
    left = read_topic(here.services.kafka, here.topics["outputTopic"])
    newest = {message.key: message.value for message in left}  # a withdrawn call leaves a tombstone
    totals = read_topic(here.services.kafka, here.topics["aggregated-transactions"])
    users = {row["user_id"] for row in here.rows("gold.user_transactions_5m")}
    sent = [value for value in newest.values() if value is not None]
    return len(sent) == len(calls) and {json.loads(message.value)["userId"] for message in totals} == users


@pytest.mark.slow
@pytest.mark.soak
def test_all_streams_run_side_by_side_in_one_application(
    services: Endpoints, session_settings: Settings, tmp_path: Path
) -> None:
    with place(tmp_path / "home", services, database=9) as here:
        environment = {
            **here.environment,
            "LAKEHOUSE_STREAMS": json.dumps({"calls": {"gap": "5s", "grace": "5s"}}),
        }
        command = [LAKEHOUSE, "run", "all", "--trigger", "1 second"]
        with running(command, environment, tmp_path / "output") as application:
            load(here, session_settings)
            deadline = time.monotonic() + TIMEOUT_S
            while not is_through(here, EVENTS):
                assert time.monotonic() < deadline, application.everything()
                time.sleep(3)  # each check reads every table and topic, on the cores that the layers need
            os.kill(application.pid, signal.SIGTERM)
            assert application.wait() == 0, application.everything()
            assert application.left_behind() == []
            assert application.output.splitlines()[-1] == "stopped"
            assert not NOISE.search(application.everything()), application.everything()
