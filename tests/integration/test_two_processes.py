"""Two processes run the same layer: one writes a micro-batch, the other is refused, nothing is doubled."""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.common.errors import PositionError
from lakehouse.dev.services.services import Endpoints
from lakehouse.engine.runtime.runner import RunOptions
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from tests.oracles.metrics import Metric
from tests.support import pipeline, verdicts
from tests.support.batches import silver_of, take_next
from tests.support.pipeline import BRONZE, DEAD_LETTERS, GOLD, SILVER, STREAM, Raw, await_
from tests.support.processes import place, running
from tests.support.settings import MakeSettings

pytestmark = pytest.mark.soak

START = pipeline.utc("2026-03-01T00:00:00")
REFUSED = Raw(b"not JSON")

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
