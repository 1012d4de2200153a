"""Two processes run the same layer: one writes a micro-batch, the other is refused, nothing is doubled."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.common.errors import PositionError
from lakehouse.dev.services.services import Endpoints
from lakehouse.engine.layers.step import Batch, Step
from lakehouse.engine.runtime.runner import RunOptions
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake
from tests.oracles.metrics import Metric
from tests.support import pipeline, verdicts
from tests.support.batches import bronze_of, gold_of, planned, silver_of, take_next, write
from tests.support.pipeline import BRONZE, DEAD_LETTERS, GOLD, SILVER, STREAM, Raw, await_
from tests.support.processes import place, running
from tests.support.settings import MakeSettings
from tests.support.streams import SALES

pytestmark = pytest.mark.soak

START = pipeline.utc("2026-03-01T00:00:00")
LANDED = pipeline.utc("2026-03-02T00:00:00")
REFUSED = Raw(b"not JSON")
SALES_SOURCE = SALES.sources[0]

HELD = """
import os, time
from pathlib import Path
from lakehouse.storage import tables

append, held = tables.append, Path(os.environ["HELD"])

def late(*given):
    held.touch()
    while held.exists():
        time.sleep(0.05)
    return append(*given)

tables.append = late
from lakehouse.cli.main import main
main()
"""
"""The command line, with appends that wait while a file exists."""


def event(number: int) -> Raw:
    at = START + timedelta(seconds=number)
    record = {"serviceId": "s", "metricName": "m", "value": number, "timestamp": int(at.timestamp() * 1000)}
    return Raw(json.dumps(record).encode())


def sold(product: str, value: int) -> Raw:
    return Raw(json.dumps({"product": product, "value": value}).encode(), key=product.encode())


def both_plan(make: Callable[[], Step], *, then: Callable[[], None] = lambda: None) -> None:
    """Have two steps plan the same; then more arrives. One writes, the other is refused and replaced."""
    first, second = make(), make()
    batch, same = planned(first), planned(second)
    then()
    write(first, batch, now=LANDED)
    with pytest.raises(
        PositionError, match=r"this process left it at .*. Another process is running the same layer"
    ):
        write(second, same, now=LANDED)
    for _ in range(2):
        take_next(make(), now=LANDED)


def test_of_two_that_plan_the_same_micro_batch_one_is_refused_in_every_layer(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    """More records arrive while they write; whichever continues takes them."""
    settings = make_settings({"kafka.topic_partitions": 1})
    pipeline.send(settings, [event(0), REFUSED])
    both_plan(partial(bronze_of, spark, settings), then=lambda: pipeline.send(settings, [event(1), REFUSED]))
    assert sorted(row["offset"] for row in pipeline.rows_of(settings, BRONZE)) == [0, 1, 2, 3]

    def land_more() -> None:
        pipeline.send(settings, [event(2), REFUSED])
        take_next(bronze_of(spark, settings), now=LANDED)

    both_plan(partial(silver_of, spark, settings), then=land_more)
    assert sorted(row["offset"] for row in pipeline.rows_of(settings, SILVER)) == [0, 2, 4]
    assert sorted(row["offset"] for row in pipeline.rows_of(settings, DEAD_LETTERS)) == [1, 3, 5]

    both_plan(partial(gold_of, spark, settings))
    assert [row["count"] for row in pipeline.rows_of(settings, GOLD)] == [3]


def overtake(make: Callable[[], Step], name: str) -> None:
    """Let the second step plan between the two writes of the first, which ends the micro-batch."""
    first, second = make(), make()
    batch, begun = planned(first), list[Batch]()
    done, calls = getattr(tables, name), list[object]()

    def between(*given: object, **named: object) -> object:
        calls.append(given)
        if len(calls) == 2:  # the first step is about to end it
            begun.append(planned(second))
        return done(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, name, between)
        write(first, batch, now=LANDED)
        with pytest.raises(PositionError, match="Another process is running the same layer"):
            write(second, begun[0], now=LANDED)
    assert begun[0].is_resumed
    assert take_next(make(), now=LANDED) is None


def test_a_second_one_may_begin_what_the_first_has_begun_and_only_one_ends_it(
    spark: SparkSession, lake_settings: Settings
) -> None:
    """The second one looks between dead letters and clean rows, and between a side table and the main one."""
    settings, landed = lake_settings, [sold("pen", 2500), REFUSED, sold("ink", 1)]
    pipeline.land(spark, settings, [landed], landed_at=LANDED, source=SALES_SOURCE)
    overtake(partial(silver_of, spark, settings, SALES), "append")
    overtake(partial(gold_of, spark, settings, SALES), "upsert")

    assert [row["offset"] for row in pipeline.rows_of(settings, DEAD_LETTERS)] == [1]
    assert sorted(row["offset"] for row in pipeline.rows_of(settings, "silver.sales_events")) == [0, 2]
    totals = {row["product"]: row["count"] for row in pipeline.rows_of(settings, "gold.product_sales")}
    assert totals == {"pen": 1, "ink": 1}
    notified = pipeline.rows_of(settings, "gold.sales_notifications")
    assert [(row["product"], row["value"]) for row in notified] == [("pen", 2500)]


@pytest.mark.slow
def test_the_process_that_comes_second_to_a_micro_batch_ends_and_says_so(
    spark: SparkSession, services: Endpoints, tmp_path: Path
) -> None:
    """The first process has planned but not written when the second takes the same records."""
    with place(tmp_path / "home", services, database=7) as here:
        settings, held = here.settings(), tmp_path / "held"
        command = [sys.executable, "-c", HELD, "run", "bronze", "--stream", "metrics", "--trigger", "200 ms"]
        environment = here.environment | {"HELD": str(held)}
        pipeline.send(settings, [Raw(b"one")])
        with running(command, environment, tmp_path / "first") as first:
            first.await_(held.exists)
            lake, options = Lake(spark, settings.lake), RunOptions("200 ms")
            with pipeline.running(lake, [STREAM], ["bronze"], settings, options) as failures:
                await_(lambda: pipeline.version_of(settings, BRONZE) == 1)
                held.unlink()
                assert first.wait() == 1, first.everything()
                pipeline.send(settings, [Raw(b"two")])
                await_(lambda: pipeline.version_of(settings, BRONZE) == 2)
            assert failures == []

        (said,) = [line for line in first.errors.splitlines() if line.startswith("error: ")]
        assert said.startswith(f"error: bronze.metrics_events reads {here.topic_in}:")
        assert said.endswith(
            "but this process left it at None. Another process is running the same layer; stop one of them"
        )
        landed = Counter(row["value"] for row in here.rows(BRONZE))
        assert landed == {b"one": 1, b"two": 1}


@pytest.mark.slow
def test_two_live_runs_of_all_layers_get_in_each_others_way_and_lose_and_double_nothing(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    settings, notices = make_settings({"kafka.topic_partitions": 2}), list[str]()
    options = RunOptions("100 milliseconds", on_notice=notices.append)

    def run_layers() -> AbstractContextManager[list[BaseException]]:
        lake = Lake(spark.newSession(), settings.lake)
        return pipeline.running(lake, [STREAM], ["bronze", "silver", "gold"], settings, options)

    with run_layers(), run_layers():
        for number in range(40):
            pipeline.send(settings, [event(number), event(1000 - number), REFUSED])
    pipeline.run_layers(spark, settings, "bronze", "silver", "gold")

    assert [line for line in notices if "Another process is running the same layer" in line]
    judged = verdicts.judge_batches([pipeline.rows_of(settings, BRONZE)], settings)
    assert len(judged) == 120
    assert len(pipeline.rows_of(settings, BRONZE)) == 120
    assert verdicts.same_silver(pipeline.rows_of(settings, SILVER), judged)
    assert verdicts.same_dead_letters(pipeline.rows_of(settings, DEAD_LETTERS), judged)
    gold = pipeline.rows_of(settings, GOLD)
    assert verdicts.window_differences(gold, verdicts.accepted(judged, Metric), settings) == []


def test_one_that_was_idle_while_another_went_on_does_not_judge_by_its_old_watermark(
    spark: SparkSession, lake_settings: Settings
) -> None:
    settings = lake_settings.changed({"stream_defaults.allowed_lateness_s": 600})
    noon = pipeline.utc("2026-01-01T12:00:00")
    later = noon + timedelta(hours=1)

    def land(at: datetime, offset: int) -> None:
        record = {"serviceId": "a", "metricName": "m", "value": 1, "timestamp": int(at.timestamp() * 1000)}
        cut = [Raw(json.dumps(record).encode())]
        pipeline.land(spark, settings, [cut], landed_at=later, first_offset=offset)

    idle, other = silver_of(spark, settings), silver_of(spark, settings)
    land(noon, 0)
    take_next(idle, now=noon)
    land(later, 1)
    take_next(other, now=later)
    land(noon + timedelta(minutes=1), 2)

    with pytest.raises(PositionError, match=rf"^{SILVER} has continued in another process"):
        take_next(idle, now=later)

    done = take_next(silver_of(spark, settings), now=later)
    assert done is not None
    assert done.written["dead_letters"] == 1
    (letter,) = pipeline.rows_of(settings, DEAD_LETTERS)
    assert [reason["rule"] for reason in letter["reasons"]] == ["late"]
