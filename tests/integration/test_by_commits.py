"""Queries of single layers find micro-batches by commits; Delta's source takes what commits cannot tell.

Real Delta tables, no Kafka: silver and gold.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakehouse import tables
from lakehouse.errors import StreamError
from lakehouse.layers import bronze
from lakehouse.layers.query import LayerName
from lakehouse.progress import backlogs
from lakehouse.runtime.runner import BatchDone, RunOptions
from lakehouse.settings import Settings
from lakehouse.tables import Lake, Transaction
from tests import pipeline
from tests.frames import local_frame
from tests.pipeline import BRONZE, GOLD, SILVER, SOURCE, STREAM, Raw, await_

NOON = pipeline.utc("2026-03-01T12:00:00")
READERS = ("read_stream", "read_change_stream")


def measured(value: int) -> Raw:
    """Return a metric that is in the minute of noon."""
    at_ms = int(NOON.timestamp() * 1000) + value
    event = {"serviceId": "s", "metricName": "m", "value": value, "timestamp": at_ms}
    return Raw(json.dumps(event).encode())


class Landed:
    """A lake of which bronze has records; each value lands once, in a commit of its own."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self.spark = spark
        self.settings = settings
        self.count = 0

    def land(self, *values: int) -> None:
        cuts = [[measured(value)] for value in values]
        pipeline.land(self.spark, self.settings, cuts, landed_at=NOON, first_offset=self.count)
        self.count += len(values)

    def catch_up(self) -> list[tuple[str, int | None, int]]:
        """Run silver and gold; return the micro-batches with the rows that each has read."""
        done = pipeline.run_layers(self.spark, self.settings, "silver", "gold")
        return [(one.query, one.batch, one.result.rows) for one in done]

    def sums(self) -> list[tuple[int, float]]:
        return [(row["count"], row["sum"]) for row in pipeline.rows_of(self.settings, GOLD)]

    def running(
        self, layer: LayerName, done: Callable[[BatchDone], None]
    ) -> AbstractContextManager[list[BaseException]]:
        """Run a layer live inside the block; its failure is in the list."""
        lake, options = Lake(self.spark, self.settings.lake), RunOptions("100 ms", on_batch=done)
        return pipeline.running(lake, [STREAM], [layer], self.settings, options)


@pytest.fixture
def lake(spark: SparkSession, lake_settings: Settings) -> Landed:
    return Landed(spark, lake_settings)


@contextmanager
def without_streams() -> Iterator[None]:
    """Inside the block, nothing may read a table by Delta's source."""

    def refuse(*_args: object, **_options: object) -> DataFrame:
        raise AssertionError("Delta's source is not needed here")

    with pytest.MonkeyPatch.context() as patch:
        for name in READERS:
            patch.setattr(tables, name, refuse)
        yield


@contextmanager
def counting_streams() -> Iterator[list[str]]:
    """Inside the block, the paths of the tables that Delta's source reads come into the list."""
    read: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in READERS:
            reader = getattr(tables, name)

            def noting(spark: SparkSession, path: str, *, max_bytes: str, reader: Any = reader) -> DataFrame:
                read.append(Path(path).name)
                frame: DataFrame = reader(spark, path, max_bytes=max_bytes)
                return frame

            patch.setattr(tables, name, noting)
        yield read


def test_layers_follow_commits_from_the_first_one_on(lake: Landed) -> None:
    with without_streams():
        lake.land(1, 2)
        assert lake.catch_up() == [(SILVER, 0, 2), (GOLD, 0, 2)]
        lake.land(3)
        assert lake.catch_up() == [(SILVER, 1, 1), (GOLD, 1, 1)]
        assert lake.catch_up() == []

    assert lake.sums() == [(3, 6.0)]


def test_a_micro_batch_takes_as_many_commits_as_fit_and_at_least_one(lake: Landed) -> None:
    lake.settings = lake.settings.model_copy(update={"max_bytes_per_batch": "1"})
    lake.land(1, 2, 3)

    with without_streams():
        assert lake.catch_up() == [(SILVER, number, 1) for number in range(3)] + [
            (GOLD, number, 1) for number in range(3)
        ]
    assert lake.sums() == [(3, 6.0)]


@pytest.mark.soak
def test_many_commits_are_taken_by_parts(lake: Landed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlogs, "MOST_COMMITS", 2)
    lake.land(1, 2, 3, 4)

    with without_streams():  # the first commit of bronze makes the table
        assert [rows for query, _, rows in lake.catch_up() if query == SILVER] == [1, 2, 1]
    assert lake.sums() == [(4, 10.0)]


def test_delta_s_source_finishes_what_was_planned_and_commits_go_on_from_there(lake: Landed) -> None:
    lake.land(1)
    lake.catch_up()
    lake.land(2)
    lake.catch_up()
    assert pipeline.forget_last_commit(lake.settings, SILVER) == 1
    lake.land(3)

    with counting_streams() as read:
        done = lake.catch_up()
    assert set(read) == {"metrics_events"}
    assert done == [(SILVER, 1, 0), (SILVER, 2, 1), (GOLD, 2, 1)]
    lake.land(4)
    with without_streams():
        assert lake.catch_up() == [(SILVER, 3, 1), (GOLD, 3, 1)]
    assert lake.sums() == [(4, 10.0)]


@pytest.mark.soak
def test_a_commit_that_is_too_large_is_read_by_parts(lake: Landed) -> None:
    lake.land(1)
    lake.catch_up()
    rows = pipeline.landed(lake.settings, [measured(2), measured(3)], landed_at=NOON, first_offset=1)
    frame = local_frame(lake.spark, rows, bronze.SCHEMA)
    path = Lake(lake.spark, lake.settings.lake).path("bronze", SOURCE.table)
    tables.append(frame.repartitionByRange(2, "offset"), path, Transaction("large", 0))
    lake.settings = lake.settings.model_copy(update={"max_bytes_per_batch": "1"})
    lake.count = 3
    lake.land(4)

    with counting_streams() as read:
        done = lake.catch_up()
    assert [rows for query, _, rows in done if query == SILVER] == [1, 1, 1]
    assert read == ["metrics_events"]
    assert lake.sums() == [(4, 10.0)]


@pytest.mark.soak
def test_rows_that_commits_do_not_tell_are_read_first(lake: Landed) -> None:
    """Something has rewritten the table before silver has ever read it."""
    lake.land(1, 2)
    path = Lake(lake.spark, lake.settings.lake).path("bronze", SOURCE.table)
    lake.spark.sql(f"UPDATE delta.`{path}` SET timestamp = timestamp + INTERVAL 1 SECOND WHERE offset = 0")

    with counting_streams() as read:
        assert [rows for query, _, rows in lake.catch_up() if query == SILVER] == [2]
    assert read == ["metrics_events"]
    lake.land(3)
    with without_streams():
        lake.catch_up()
    assert lake.sums() == [(3, 6.0)]


def test_maintenance_is_no_micro_batch(lake: Landed) -> None:
    lake.land(1, 2)
    lake.catch_up()
    path = Lake(lake.spark, lake.settings.lake).path("bronze", SOURCE.table)
    lake.spark.sql(f"OPTIMIZE delta.`{path}`")

    with without_streams():
        assert lake.catch_up() == []
        lake.land(3)
        assert lake.catch_up() == [(SILVER, 1, 1), (GOLD, 1, 1)]
    assert lake.sums() == [(3, 6.0)]


def test_a_live_layer_takes_what_another_process_lands(lake: Landed) -> None:
    done: list[BatchDone] = []
    lake.land(1)

    with without_streams(), lake.running("silver", done.append) as failures:
        await_(lambda: len(done) == 1)
        lake.land(2)
        await_(lambda: len(done) == 2)
    assert failures == []
    assert [(one.batch, one.result.rows) for one in done] == [(0, 1), (1, 1)]
    assert len(pipeline.rows_of(lake.settings, SILVER)) == 2


@pytest.mark.soak
def test_a_live_layer_ends_if_its_table_becomes_another_one(lake: Landed) -> None:
    done: list[BatchDone] = []
    lake.land(1)
    path = pipeline.path_of(lake.settings, BRONZE)

    with lake.running("silver", done.append) as failures:
        await_(lambda: len(done) == 1)
        shutil.rmtree(path)
        Lake(lake.spark, lake.settings.lake).ensure(bronze.spec(SOURCE))
        await_(lambda: failures, timeout_s=60)

    (failure,) = failures
    assert isinstance(failure, StreamError)
    assert str(failure).startswith("silver.metrics_events failed: ")
