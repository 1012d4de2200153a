"""Retention removes old rows from a lake whose audit remains clean, and nothing restores a part of them.

One lake goes through all the steps. Ten days ago, one record was good and one was not JSON; today one is
good, followed by one from ten days ago, which is now late.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.common.errors import SettingsError
from lakehouse.engine.records.dead_letters import Selection
from lakehouse.engine.runtime.runner import utc_now
from lakehouse.operations.audit import audit
from lakehouse.operations.maintenance.upkeep import Keeper, tasks
from lakehouse.operations.repair.rebuild_gold import GoldRebuilt, WindowSpan, rebuild_gold
from lakehouse.operations.repair.rebuild_silver import Landed, SilverRebuilt, rebuild_silver
from lakehouse.operations.repair.replay import Replayed, discard, replay
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from lakehouse.streams.keep_rows import check_keep_rows
from tests.support import pipeline
from tests.support.pipeline import BRONZE, DEAD_LETTERS, GOLD, SILVER, STREAM, Raw
from tests.support.streams import METRICS_1M, STREAMS, under

NOW = utc_now()
TODAY = NOW.replace(second=0, microsecond=0)
ONCE = TODAY - timedelta(days=10)
SMALL = {BRONZE: 2, SILVER: 3, DEAD_LETTERS: 1}


def event(at: datetime, value: float = 1.0) -> Raw:
    record = {
        "serviceId": "s",
        "metricName": "m",
        "value": value,
        "timestamp": int(at.timestamp() * 1000),
    }
    return Raw(json.dumps(record).encode(), partition=0)


@dataclass
class Story:
    """What the steps reported, and the tables after them."""

    took: dict[str, dict[str, int]] = field(default_factory=dict)
    left: dict[str, dict[str, list[datetime]]] = field(default_factory=dict)
    letters: dict[str, Counter[str]] = field(default_factory=dict)
    differences: dict[str, list[Any]] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module")
def story(spark: SparkSession, module_settings: Settings) -> Story:
    settings = module_settings.changed(
        {"stream_defaults.allowed_lateness_s": 3600, "kafka.topic_partitions": 1}
    )
    stream = under(settings, STREAM)
    lake, found = Lake(spark, settings.lake), Story()

    def keep(name: str, days: Mapping[str, int], *, dry_run: bool = False) -> None:
        keeping = settings.changed(
            {"maintenance.keep_rows_s": {name: 86_400 * many for name, many in days.items()}}
        )
        todo = [task for task in tasks([stream], keeping) if task.cut is not None]
        done = [Keeper(lake, keeping).keep(task, NOW, dry_run=dry_run) for task in todo]
        found.took[name] = {one.table: one.rows for one in done if one is not None and one.rows}
        times = {BRONZE: "timestamp", SILVER: "event_time", GOLD: "window_start"}
        found.left[name] = {
            table: sorted(row[time] for row in pipeline.rows_of(settings, table))
            for table, time in times.items()
        }
        found.letters[name] = Counter(row["status"] for row in pipeline.rows_of(settings, DEAD_LETTERS))

    def compare(name: str) -> None:
        report = audit(lake, [stream], settings, utc_now())
        found.differences[name] = [check for check in report.checks if check.differences]

    def run(*records: Raw) -> None:
        pipeline.send(settings, records)
        pipeline.run_layers(spark, settings, "bronze", "silver", "gold", "export")

    run(event(ONCE), Raw(b"{", partition=0))
    bronze = f"delta.`{pipeline.path_of(settings, BRONZE)}`"
    spark.sql(f"UPDATE {bronze} SET ingested_at = ingested_at - INTERVAL 10 DAYS")
    letters = f"delta.`{pipeline.path_of(settings, DEAD_LETTERS)}`"
    spark.sql(f"UPDATE {letters} SET first_seen = first_seen - INTERVAL 10 DAYS")
    run(event(TODAY))
    run(event(ONCE, 2.0))
    keep("nothing is old", dict.fromkeys(SMALL, 30))
    discard(lake, [stream], Selection(rule="not_json"), NOW)
    keep("looked", SMALL, dry_run=True)
    keep("small", SMALL)
    keep("again", SMALL)
    compare("small")
    found.said["gold"] = rebuild_gold(lake, METRICS_1M, WindowSpan(), force=True)
    found.said["silver"] = rebuild_silver(lake, stream, Landed(), NOW, allow_late=True)
    found.said["replay"] = replay(lake, [stream], Selection(), NOW, allow_late=True)
    keep("gold", SMALL | {GOLD: 3})
    run()
    compare("gold")
    topic = settings.topic("metrics-aggregated-1m")
    messages = pipeline.read_topic(settings.kafka.bootstrap_servers, topic)
    found.said["messages"] = [
        None if one.value is None else json.loads(one.value)["count"] for one in messages
    ]
    return found


def minute(at: datetime) -> int:
    return pipeline.micros(at)


@pytest.mark.soak
def test_young_rows_stay(story: Story) -> None:
    assert story.took["nothing is old"] == {}


@pytest.mark.soak
def test_a_dry_run_counts_and_takes_nothing(story: Story) -> None:
    # Silver's rows and letters are removed only once their records have left bronze.
    assert story.took["looked"] == {BRONZE: 2}
    assert story.left["looked"] == story.left["nothing is old"]


@pytest.mark.soak
def test_old_rows_leave_and_gold_that_was_made_of_them_stays(story: Story) -> None:
    assert story.took["small"] == {BRONZE: 2, SILVER: 1, DEAD_LETTERS: 1}
    assert story.left["small"][SILVER] == [minute(TODAY)]
    assert story.left["small"][GOLD] == [minute(ONCE), minute(TODAY)]
    assert story.letters["small"] == {"open": 1}
    assert story.took["again"] == {}


@pytest.mark.soak
def test_the_audit_knows_what_was_taken(story: Story) -> None:
    assert story.differences == {"small": [], "gold": []}


@pytest.mark.soak
def test_a_rebuild_leaves_gold_without_its_records_alone(story: Story) -> None:
    assert story.said["gold"] == [GoldRebuilt("metrics_1m", 1, 0, 0)]


@pytest.mark.soak
def test_a_late_record_of_that_time_stays_a_letter_even_if_late_ones_are_allowed(story: Story) -> None:
    assert story.said["silver"] == SilverRebuilt(judged=2)
    assert story.said["replay"] == Replayed(failed=1, failing={"late": 1})


@pytest.mark.soak
def test_gold_rows_leave_with_a_tombstone(story: Story) -> None:
    assert story.took["gold"] == {GOLD: 1}
    assert story.left["gold"][GOLD] == [minute(TODAY)]
    # The first window, the second, the first as final, and its deletion.
    assert story.said["messages"] == [1, 1, 1, None]


@pytest.mark.parametrize(
    ("days", "said"),
    [
        ({"gold.nothing": 1}, "there is no table gold.nothing"),
        ({"gold.product_sales": 1}, "gold.product_sales must keep every row: its rows have no time"),
        (
            {"bronze.sales_events": 1, "silver.sales_events": 1},
            "silver.sales_events must keep every row: gold.product_sales is computed from all of them",
        ),
        ({SILVER: 5}, "silver.metrics_events must keep rows at least as long as bronze.metrics_events"),
        ({BRONZE: 6, SILVER: 5}, "silver.metrics_events must keep rows at least as long"),
    ],
)
def test_what_must_stay_is_refused(days: dict[str, int], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        check_keep_rows(days, STREAMS)


def test_tables_with_times_may_forget() -> None:
    days = {BRONZE: 5, SILVER: 5, "gold.call_records": 9, DEAD_LETTERS: 5, "ops.events": 9}
    check_keep_rows(days, STREAMS)
