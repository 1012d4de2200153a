"""The drill: a lake is copied under load and destroyed, and the copy carries on with the same services.

All streams run as processes, the first of which is killed, with poison among the events. Readers watch the
topics and Redis meanwhile: nothing goes back. At the end, everything is as the audit and the oracles compute
it from the topics.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from lakehouse.dev.services.services import Endpoints
from lakehouse.settings import Settings
from lakehouse.storage.kafka.topics import create_topics
from tests.chaos.checks import audit_differences, differences
from tests.chaos.load import Feeder
from tests.chaos.run import Outcome, await_end
from tests.support.outputs import BUILT_IN, last_messages
from tests.support.pipeline import read_topic, rows_of
from tests.support.processes import LAKEHOUSE, Process, finish, place, running

CHANGES = {"calls": {"gap": "3s", "grace": "60s"}, "sales": {"threshold": 100}}
"""A call is closed long after both its sides have landed, even on a busy machine, so the lost lake sends no
call that its copy would not make."""
DATABASE = 14  # of Redis; no other test uses it
EXPORTS = 8  # micro-batches between two events of the drill
COUNTED = {"metrics_1m": "metrics-aggregated-1m", "user_transactions_5m": "aggregated-transactions"}
WAIT_S = 600.0
LOOK_S = 0.1


class Watch:
    """A reader that polls Redis, and notes what goes back or disappears."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._counts: dict[str, int] = {}
        self._latest: dict[str, int] = {}
        self.wrong = Counter[str]()
        self.looks = 0

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Keep looking during the block."""
        over = threading.Event()
        thread = threading.Thread(target=self._look_on, args=(over,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _look_on(self, over: threading.Event) -> None:
        with redis.Redis.from_url(self._url, decode_responses=True) as client:
            while not over.wait(LOOK_S):
                self._look(client)
                self.looks += 1

    def _look(self, client: redis.Redis) -> None:
        for table in COUNTED:
            keys = [str(key) for key in client.scan_iter(f"lakehouse:{table}:row:*", count=1000)]
            self.wrong.update(
                f"{key} is gone" for key in self._counts if f":{table}:" in key and key not in keys
            )
            for key, text in zip(keys, client.mget(keys) if keys else (), strict=True):
                self._note(self._counts, key, json.loads(str(text))["count"])
        for key in map(str, client.scan_iter("lakehouse:metrics_1m:latest:*", _type="hash")):
            for member, text in client.hgetall(key).items():
                self._note(self._latest, f"{key} {member!s}", json.loads(str(text))["windowStart"])

    def _note(self, known: dict[str, int], key: str, value: int) -> None:
        if value < known.get(key, value):
            self.wrong[f"{key} went back from {known[key]} to {value}"] += 1
        known[key] = value


def went_back(settings: Settings, topic: str) -> list[str]:
    """Return the rows of a topic that go back, as a read-committed consumer sees them in order."""
    counts: dict[tuple[bytes, int], int] = {}
    found = []
    for one in read_topic(settings.kafka.bootstrap_servers, settings.topic(topic)):
        row: dict[str, Any] = json.loads(one.value)
        key = one.key, row["windowStart"]
        if row["count"] < counts.get(key, 0):
            found.append(f"{topic} {key!r}: {row['count']} after {counts[key]}")
        counts[key] = row["count"]
    return found


def await_exports(process: Process) -> None:
    """Wait for EXPORTS more micro-batches of exports."""
    until = process.output.count("\nexport.") + EXPORTS
    process.await_(lambda: process.output.count("\nexport.") >= until, WAIT_S)


@pytest.mark.soak
def test_a_lake_is_copied_under_load_and_destroyed_and_its_readers_see_nothing_lost_or_going_back(
    services: Endpoints, tmp_path: Path
) -> None:
    with place(tmp_path / "home", services, database=DATABASE) as here:
        settings, copy = here.settings({"streams": CHANGES}), tmp_path / "backup" / "lake"
        environment = here.environment | {"LAKEHOUSE_STREAMS": json.dumps(CHANGES)}
        of_copy = environment | {"LAKEHOUSE_LAKE": str(copy)}
        create_topics(services.access, dict.fromkeys(here.topics.values(), settings.kafka.topic_partitions))
        watch = Watch(here.redis_url)
        with Feeder(settings, rate=40, seed=7, poison=0.1) as feeder, watch.looking():
            with running([LAKEHOUSE, "run", "all"], environment, tmp_path / "first") as first:
                await_exports(first)
                for _ in range(2):  # the second brings it up to date
                    copied = finish([LAKEHOUSE, "copy", "--to", str(copy)], environment)
                    assert copied.returncode == 0, copied.stderr
                    print(copied.stdout)
                    await_exports(first)
                assert audit_differences(of_copy, tmp_path / "audit-of-copy") == []
                await_exports(first)
                os.killpg(first.pid, signal.SIGKILL)
            shutil.rmtree(settings.lake)
            left = {table: list(last_messages(settings, table).values()) for table in BUILT_IN}

            adopted = finish([LAKEHOUSE, "run", "all", "--adopt"], of_copy)
            assert adopted.returncode == 0, adopted.stdout + adopted.stderr
            print(adopted.stdout)

            moved = settings.changed({"lake": str(copy)})
            with running([LAKEHOUSE, "run", "all"], of_copy, tmp_path / "second") as second:
                await_exports(second)
                feeder.stop()
                assert await_end(moved, Outcome()) == []
                os.kill(second.pid, signal.SIGTERM)
                assert second.wait() == 0, second.everything()

        books, found = differences(moved, left=left)
        # The topics also hold states of the original between two of the copy's: this reader takes the last.
        assert [one for one in found if not one.endswith("too many") and " more" not in one] == []
        told, rows = left["sales_notifications"], rows_of(moved, "gold.sales_notifications")
        assert {(one["product"], one["value"]) for one in told} <= {
            (row["product"], row["value"]) for row in rows
        }
        assert audit_differences(of_copy, tmp_path / "audit") == []
        assert [one for topic in COUNTED.values() for one in went_back(moved, topic)] == []
        assert watch.wrong == Counter()
        assert watch.looks > 100
        assert books.sent == books.clean + books.dead > 1000
