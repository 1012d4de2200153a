"""Upkeep compacts small files, removes old files and commits, and keeps what a reader has not read.

One lake goes through all the steps. Bronze is compacted while silver has yet to read half of it.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.engine.runtime.runner import utc_now
from lakehouse.operations.audit import audit
from lakehouse.operations.maintenance.upkeep import Keeper, Kept, tasks
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from tests.support import pipeline
from tests.support.pipeline import BRONZE, GOLD, SILVER, STREAM, Raw

pytestmark = pytest.mark.soak

START = pipeline.utc("2026-03-01T00:00:00")
LANDED = pipeline.utc("2026-03-01T00:30:00")
CUTS = 9
LATER = 2
DAY_S = 24 * 3600


def event(number: int) -> Raw:
    at = START + timedelta(seconds=number)
    record = {"serviceId": "s", "metricName": "m", "value": 1.0, "timestamp": int(at.timestamp() * 1000)}
    return Raw(json.dumps(record).encode())


def data_files(path: Path) -> set[str]:
    return {file.name for file in path.glob("*.parquet")}


def commits(path: Path) -> list[int]:
    return sorted(int(file.stem) for file in (path / "_delta_log").glob("0*.json"))


def age(path: Path, days: int) -> None:
    """Make a table's commits this many days old as Delta sees them, by their files' times."""
    moment = time.time() - days * DAY_S
    for number, file in enumerate(sorted((path / "_delta_log").glob("0*"))):
        os.utime(file, (moment + number, moment + number))


@dataclass
class Story:
    """What the steps reported, and the contents of the tables' directories."""

    said: dict[str, Kept | None] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module")
def story(spark: SparkSession, module_settings: Settings) -> Story:
    settings = module_settings.changed({"maintenance.keep_versions_s": 0})
    lake, found = Lake(spark, settings.lake), Story()
    (task,) = (task for task in tasks([STREAM], settings) if task.spec.qualified_name == BRONZE)
    path = pipeline.path_of(settings, BRONZE)

    def keep(name: str, *, dry_run: bool = False) -> None:
        found.said[name] = Keeper(lake, settings).keep(task, utc_now(), dry_run=dry_run)

    def land(first: int, many: int = CUTS) -> None:
        cuts = [[event(number)] for number in range(first, first + many)]
        pipeline.land(spark, settings, cuts, landed_at=LANDED, first_offset=first)

    keep("no table")
    land(0)
    pipeline.run_layers(spark, settings, "silver")
    land(CUTS)
    before = data_files(path), pipeline.version_of(settings, BRONZE)
    keep("looked", dry_run=True)
    found.seen["unchanged"] = before == (data_files(path), pipeline.version_of(settings, BRONZE))
    rows = pipeline.rows_of(settings, BRONZE)
    keep("half read")
    found.seen["same rows"] = sorted(map(repr, rows)) == sorted(map(repr, pipeline.rows_of(settings, BRONZE)))
    found.seen["spared"] = before[0] <= data_files(path)

    pipeline.run_layers(spark, settings, "silver")
    keep("all read")
    found.seen["left"] = data_files(path)
    keep("again")

    land(2 * CUTS, LATER)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    age(path, days=3)
    keep("an old log, half read")
    found.seen["old log, half read"] = commits(path)
    pipeline.run_layers(spark, settings, "silver")
    age(path, days=3)
    keep("an old log")  # silver resumes from a version in it, although it has read everything
    for first in (2 * CUTS + LATER, 2 * CUTS + 2 * LATER):
        land(first, LATER)
        pipeline.run_layers(spark, settings, "silver")
    keep("an old log, all read")
    found.seen["old log"] = commits(path)
    pipeline.run_layers(spark, settings, "silver", "gold", "export")
    found.seen["silver"] = sorted(row["offset"] for row in pipeline.rows_of(settings, SILVER))
    found.seen["gold"] = [row["count"] for row in pipeline.rows_of(settings, GOLD)]
    found.seen["differences"] = [
        check for check in audit(lake, [STREAM], settings, utc_now()).checks if check.differences
    ]
    return found


def said(story: Story, name: str) -> Kept:
    kept = story.said[name]
    assert kept is not None
    return kept


def test_a_table_that_is_not_there_needs_no_upkeep(story: Story) -> None:
    assert story.said["no table"] is None


def test_a_look_says_what_would_be_done_and_does_nothing(story: Story) -> None:
    looked = said(story, "looked")

    assert [size.files for size in looked.files] == [2 * CUTS, 1]
    assert looked.removed == 0
    assert story.seen["unchanged"]


def test_many_small_files_become_one_with_the_same_rows(story: Story) -> None:
    assert [size.files for size in said(story, "half read").files] == [2 * CUTS, 1]
    assert story.seen["same rows"]


def test_files_that_a_layer_has_not_read_stay_and_the_layer_is_named(story: Story) -> None:
    held = said(story, "half read").held

    assert held is not None
    assert held.reader == SILVER
    assert said(story, "half read").removed == 0
    assert story.seen["spared"]


def test_files_that_nobody_needs_are_removed(story: Story) -> None:
    assert said(story, "all read").held is None
    assert said(story, "all read").removed == 2 * CUTS
    assert len(story.seen["left"]) == 1


def test_a_second_step_finds_nothing_to_do(story: Story) -> None:
    again = said(story, "again")

    assert (again.files[0], again.removed) == (again.files[1], 0)
    assert str(again) == f"{BRONZE}: nothing to do"


def test_commits_that_a_layer_has_not_read_stay_in_the_log(story: Story) -> None:
    assert story.seen["old log, half read"][0] == 0


def test_old_commits_leave_the_log(story: Story) -> None:
    first, last = story.seen["old log"][0], story.seen["old log"][-1]

    assert 0 < first <= last


def test_layers_go_on_and_no_row_is_lost_or_doubled(story: Story) -> None:
    events = 2 * CUTS + 3 * LATER
    assert story.seen["silver"] == list(range(events))
    assert story.seen["gold"] == [events]
    assert story.seen["differences"] == []
