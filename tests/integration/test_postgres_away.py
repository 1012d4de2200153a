"""PostgreSQL is killed during a live run: the others continue, status says why, and no row is lost."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from lakehouse.dev.services.services import Endpoints
from tests.support import postgres_servers
from tests.support.pipeline import Raw, await_, read_topic, send
from tests.support.postgres_servers import Server
from tests.support.processes import LAKEHOUSE, Place, finish, place, running

RUN = [LAKEHOUSE, "run", "all", "--stream", "metrics", "--trigger", "1 second"]


@pytest.fixture
def server() -> Iterator[Server]:
    with postgres_servers.server() as made:
        yield made


@pytest.fixture
def here(services: Endpoints, tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path / "home", services, database=14) as made:
        yield made


def feed(here: Place, *services: str) -> None:
    """Send one event for each service, all in the same minute."""
    now_ms = int(time.time() * 1000)
    names = ({"serviceId": one, "metricName": "latency", "value": 1.5} for one in services)
    send(here.settings(), [Raw(json.dumps({**name, "timestamp": now_ms}).encode()) for name in names])


def services_in(server: Server) -> set[str]:
    with server.connect() as connection:
        if connection.execute("SELECT to_regclass('gold.metrics_1m')").fetchone() == (None,):
            return set()
        return {name for (name,) in connection.execute("SELECT service_id FROM gold.metrics_1m").fetchall()}


def services_out(here: Place) -> set[str]:
    """Return the services of gold.metrics_1m that Kafka has."""
    records = read_topic(here.services.kafka, here.topic_out)
    return {json.loads(record.value)["serviceId"] for record in records}


def failing(output: str) -> list[str]:
    """Return the exports whose last message is that they failed."""
    last = dict(re.findall(r"^(export\.\w+) by the clock (failed|works again)", output, re.MULTILINE))
    return [name for name, what in last.items() if what == "failed"]


@pytest.mark.soak
def test_the_others_go_on_and_it_is_brought_up_to_date_however_often_it_is_killed(
    here: Place, server: Server, tmp_path: Path
) -> None:
    environment = here.environment | {"LAKEHOUSE_POSTGRES_URL": server.url()}
    sent = {"first"}
    with running(RUN, environment, tmp_path / "run") as live:
        feed(here, *sent)
        await_(lambda: services_in(server) == sent)

        server.end()
        sent.add("while it is away")
        feed(here, "while it is away")
        await_(lambda: services_out(here) == sent)
        said = "export.metrics_1m by the clock failed"
        live.await_output(said)
        status = finish([LAKEHOUSE, "status", "--stream", "metrics"], environment).stdout
        assert "PostgreSQL is unreachable" in " ".join(status.split())

        for number in range(6):
            name = f"service {number}"
            sent.add(name)
            feed(here, name)
            server.start()
            time.sleep(0.4 * number)
            server.end()
        server.start()
        await_(lambda: services_in(server) == sent)
        live.await_(lambda: not failing(live.everything()))  # otherwise the run would exit with an error
        os.kill(live.pid, signal.SIGTERM)
        assert live.wait() == 0, live.everything()

    with psycopg.connect(server.url()) as connection:
        rows = connection.execute(
            "SELECT service_id, window_start, count, sum, p99, is_final FROM gold.metrics_1m ORDER BY 1, 2"
        ).fetchall()
    names = ("service_id", "window_start", "count", "sum", "p99", "is_final")
    gold = sorted(tuple(row[name] for name in names) for row in here.rows("gold.metrics_1m"))
    assert [tuple(row) for row in rows] == gold
    audit = finish([LAKEHOUSE, "audit", "--stream", "metrics", "--format", "json"], environment)
    checks = [one for one in json.loads(audit.stdout)["checks"] if one["name"] == "postgres"]
    assert [one["differences"] for one in checks] == [0, 0]
    assert checks[0]["compared"] == len(gold)
