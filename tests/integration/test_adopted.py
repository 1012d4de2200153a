"""Exports from a copy that replaces its lake, as readers of Kafka and Redis see them.

Rows are written to gold.metrics_1m directly, as in test_export.py. The original is at version 1 when it is
copied, and sends versions 2 and 3 afterwards. The copy then gets the same records, in different commits, and
one more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from pyspark.sql import SparkSession

from lakehouse.common.errors import PositionError
from lakehouse.dev.services.services import Endpoints
from lakehouse.engine.layers import export as export_layer
from lakehouse.engine.runtime.runner import BatchDone, RunOptions, run
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.operations.copies.copying import Copying, note_adoption
from lakehouse.sinks.kafka.slices import SlicedSink
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake
from tests.support import redis_databases
from tests.support.damage import as_in_a_new_process
from tests.support.exporting import ONE_TABLE, Export, State, of_key
from tests.support.settings import MakeSettings

pytestmark = pytest.mark.soak

REDIS_DATABASE = 15  # no other test uses it


@dataclass
class Moved:
    """A lake that has sent more than its copy holds, and that copy."""

    original: Export
    copy: Export

    def adopt(self) -> None:
        note_adoption(self.copy.lake)  # version 2
        self.copy.put(State("auth", 0, count=2), State("auth", 1, count=3))
        self.copy.put(State("auth", 0, count=5), State("cart", 0))
        self.copy.put(State("auth", 0, count=6))  # version 5

    def run(self) -> list[BatchDone]:
        done: list[BatchDone] = []
        options = RunOptions(AVAILABLE_NOW, on_batch=done.append, adopts=True)
        run(self.copy.lake, [ONE_TABLE], ["export"], self.copy.settings, options)
        return done

    def counts_of(self, service: str) -> dict[int, list[int]]:
        """Return the counts sent for each of a service's windows, in order."""
        found: dict[int, list[int]] = {}
        for message in of_key(self.copy.messages(), service):
            assert message is not None
            found.setdefault(window_of(message), []).append(message["count"])
        return found

    def stored(self, kind: str) -> dict[str, tuple[int, int, int]]:
        """Return window, count and version of each row in Redis; check that all rows are the copy's."""
        generation, found = tables.generation_ms(self.copy.spark, self.copy.path), {}
        with self.copy.redis() as client:
            if kind == "latest":
                texts = client.hgetall("lakehouse:metrics_1m:latest:latency")
            else:
                texts = {key: client.get(key) for key in client.scan_iter("lakehouse:metrics_1m:row:*")}
        for key, text in texts.items():
            row = json.loads(str(text))
            assert row["_generation"] == generation
            found[str(key)] = (window_of(row), row["count"], row["_version"])
        return found


def window_of(row: dict[str, Any]) -> int:
    return int(row["windowStart"] - State("", 0).start_ms) // 60_000


@pytest.fixture
def moved(
    spark: SparkSession, make_settings: MakeSettings, services: Endpoints, tmp_path: Path
) -> Iterator[Moved]:
    with redis_databases.emptied(services.redis, REDIS_DATABASE) as url:
        original = Export(spark, make_settings({"redis.url": SecretStr(url)}))
        original.put(State("auth", 0), State("auth", 1), State("auth", 2))
        original.run()
        place = str(tmp_path / "copy")
        Copying(original.lake, Lake(spark, place), [ONE_TABLE]).run()
        original.put(State("auth", 0, count=2), State("auth", 1, count=3))
        original.run()
        original.put(State("auth", 0, count=5), State("cart", 0))
        original.run()
        as_in_a_new_process(spark)
        yield Moved(original, Export(spark, original.settings.changed({"lake": place})))


def test_from_a_copy_that_is_adopted_no_row_goes_back_and_none_is_missing(moved: Moved) -> None:
    checks = moved.copy.audited()
    assert [check.differences for check in checks] == [0, 0]
    assert checks[0].notes[0].endswith("has sent version 3, but the newest version of this copy is 1")
    with pytest.raises(PositionError, match="an older copy was restored"):
        moved.copy.run()
    moved.adopt()
    with pytest.raises(
        PositionError, match=r"by the lake that this lake was copied from. Run `lakehouse run all --adopt`"
    ):
        moved.copy.run()

    done = moved.run()

    assert [(one.batch, one.result.written) for one in done] == [
        (5, {moved.copy.topic: 3, "redis": 0}),
        (None, {"redis": 4}),  # every row
    ]
    assert moved.counts_of("auth") == {0: [1, 2, 5, 6], 1: [1, 3, 3], 2: [1]}
    assert of_key(moved.copy.messages(), "cart") == [State("cart", 0).message()] * 2
    assert moved.stored("row") == {
        State("auth", 0).row_key: (0, 6, 5),
        State("auth", 1).row_key: (1, 3, 3),
        State("auth", 2).row_key: (2, 1, 1),
        State("cart", 0).row_key: (0, 1, 4),
    }
    assert moved.stored("latest") == {"auth": (2, 1, 1), "cart": (0, 1, 4)}
    assert [check.differences for check in moved.copy.audited()] == [0, 0]

    moved.copy.put(State("auth", 1, count=4))
    assert [one.result.written for one in moved.copy.run()] == [{moved.copy.topic: 1, "redis": 1}]
    assert moved.run() == []
    assert [check.differences for check in moved.copy.audited()] == [0, 0]
    moved.original.put(State("auth", 0, count=9))
    with pytest.raises(PositionError, match=r"^a copy of gold.metrics_1m was adopted at .* has sent rows"):
        moved.original.run()


def test_an_adopting_export_that_is_killed_between_slices_goes_on_with_the_next_one(
    moved: Moved, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_layer, "LARGE_FROM_ROWS", 1)
    monkeypatch.setattr("lakehouse.sinks.kafka.sink.SLICE_ROWS", 1)
    moved.adopt()
    send, slices = SlicedSink.send, 0

    def killed(sink: Any, *arguments: Any) -> Iterator[Any]:
        nonlocal slices
        for one in send(sink, *arguments):
            slices += 1
            if slices == 2:
                raise KeyboardInterrupt
            yield one

    with monkeypatch.context() as patch:
        patch.setattr(SlicedSink, "send", killed)
        with pytest.raises(KeyboardInterrupt):
            moved.run()
    moved.copy.put(State("auth", 0, count=7))

    moved.run()

    assert of_key(moved.copy.messages(), "cart") == [State("cart", 0).message()] * 2
    assert moved.counts_of("auth") == {0: [1, 2, 5, 6, 7], 1: [1, 3, 3], 2: [1]}
    assert moved.stored("row")[State("auth", 0).row_key] == (0, 7, 6)
    assert [check.differences for check in moved.copy.audited()] == [0, 0]


def test_of_two_copies_the_older_one_goes_on_after_the_newer_one_was_lost(
    moved: Moved, spark: SparkSession, tmp_path: Path
) -> None:
    """The first copy resends what the second, newer copy has sent under versions of its own."""
    newer = str(tmp_path / "newer")
    Copying(moved.original.lake, Lake(spark, newer), [ONE_TABLE]).run()
    as_in_a_new_process(spark)
    second = Moved(moved.original, Export(spark, moved.original.settings.changed({"lake": newer})))
    note_adoption(second.copy.lake)
    second.copy.put(State("auth", 0, count=6))
    second.run()
    assert second.stored("row")[State("auth", 0).row_key] == (0, 6, 5)

    moved.adopt()
    moved.run()

    assert moved.stored("row")[State("auth", 0).row_key] == (0, 6, 5)
    assert [check.differences for check in moved.copy.audited()] == [0, 0]


def test_where_kafka_has_forgotten_what_was_sent_the_copy_goes_on_from_its_own_note(moved: Moved) -> None:
    moved.adopt()
    moved.copy.forget_progress()
    with pytest.raises(PositionError, match="Run `lakehouse run all --adopt`"):
        moved.copy.run()

    moved.run()

    assert moved.stored("row")[State("auth", 0).row_key] == (0, 6, 5)
    assert of_key(moved.copy.messages(), "cart") == [State("cart", 0).message()] * 2
    assert [check.differences for check in moved.copy.audited()] == [0, 0]
