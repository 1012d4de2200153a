"""Maintenance clears what only merging needs, once nothing more can be merged, and nothing else.

One lake goes through all the steps. Silver accepts events up to an hour late, so a window is out of reach
once an event an hour after its end has been merged.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession

from lakehouse.operations.maintenance.fold_state import Cleared, clear_state
from lakehouse.operations.repair import recompute
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from tests.support import delta_commands as commands
from tests.support import other_writers, pipeline
from tests.support.pipeline import GOLD, SILVER, STREAM, Raw, Row
from tests.support.streams import METRICS, METRICS_1M, under

pytestmark = pytest.mark.soak

START = pipeline.utc("2026-03-01T00:00:00")
LANDED = pipeline.utc("2026-03-02T00:00:00")
HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)


def event(at: datetime, value: float = 1.0) -> Raw:
    record = {"serviceId": "s", "metricName": "m", "value": value, "timestamp": int(at.timestamp() * 1000)}
    return Raw(json.dumps(record).encode())


def cleared(rows: list[Row]) -> dict[datetime, bool]:
    return {
        datetime.fromtimestamp(row["window_start"] / 1_000_000, UTC): row["sketch"] is None
        and row["m2"] is None
        for row in rows
    }


@dataclass(frozen=True)
class Story:
    """What was cleared at each point, and gold's rows and message counts before and after the first clearing.

    in an empty lake            nothing has been merged
    a second before             an event an hour and 59 seconds after the first window's start
    gold is behind              silver has another event of that window, and one that puts it out of reach
    out of reach                gold has merged them too, and silver has been compacted and vacuumed
    again                       nothing new; afterwards, a session in Berlin rewrites gold
    not final                   three hours later, but one of the other two windows is not final
    """

    cleared: dict[str, list[Cleared]]
    before: list[Row]
    after: list[Row]
    messages_before: int
    messages_after: int
    wrong: int
    made_anew: list[Row]
    not_final: list[Row]


@pytest.fixture(scope="module")
def story(spark: SparkSession, module_settings: Settings) -> Story:
    settings = module_settings.changed({"stream_defaults.allowed_lateness_s": 3600, "run.max_bytes": 1})
    stream = under(settings, STREAM)
    lake, found = Lake(spark, settings.lake), dict[str, list[Cleared]]()

    def land(first_offset: int, *events: Raw) -> None:
        cuts = [[event] for event in events]
        pipeline.land(spark, settings, cuts, landed_at=LANDED, first_offset=first_offset)

    def messages() -> int:
        topic = settings.topic("metrics-aggregated-1m")
        return len(pipeline.read_topic(settings.kafka.bootstrap_servers, topic))

    found["in an empty lake"] = clear_state(lake, [under(settings, METRICS)])
    land(0, event(START, 2.0), event(START + HOUR + 59 * SECOND))
    pipeline.run_layers(spark, settings, "silver", "gold")
    found["a second before"] = clear_state(lake, [stream])

    land(2, event(START + 59 * SECOND, 5.0), event(START + HOUR + MINUTE))
    pipeline.run_layers(spark, settings, "silver")
    found["gold is behind"] = clear_state(lake, [stream])

    pipeline.run_layers(spark, settings, "gold", "export")
    before, messages_before = pipeline.rows_of(settings, GOLD), messages()
    commands.optimize(spark, settings, SILVER)
    commands.vacuum(spark, settings, SILVER, everything=True)
    found["out of reach"] = clear_state(lake, [stream])
    found["again"] = clear_state(lake, [stream])
    pipeline.run_layers(spark, settings, "export")
    after, messages_after = pipeline.rows_of(settings, GOLD), messages()
    cut = recompute.cut_of(lake, METRICS_1M)
    anew = recompute.made_anew(cut)["metrics_1m"]
    wrong = recompute.differences(cut.found["metrics_1m"], anew, METRICS_1M).count()

    with other_writers.in_zone(spark, "Europe/Berlin") as berlin:
        berlin.sql(f"UPDATE delta.`{pipeline.path_of(settings, GOLD)}` SET count = count")
    # Silver accepts no record for a cleared row unless it is told to, so this one is inserted by hand.
    path = str(pipeline.path_of(settings, SILVER))
    first = spark.read.format("delta").load(path).where("offset = 0")
    again = first.replace(0, 99, ["offset"]).replace(2.0, 8.0, ["value"])
    again.write.format("delta").mode("append").save(path)
    pipeline.run_layers(spark, settings, "gold")
    made_anew = pipeline.rows_of(settings, GOLD)

    land(4, event(START + 4 * HOUR))
    pipeline.run_layers(spark, settings, "silver", "gold")
    hour_us = pipeline.micros(START + HOUR)
    spark.sql(
        f"UPDATE delta.`{pipeline.path_of(settings, GOLD)}` SET is_final = false "
        f"WHERE unix_micros(window_start) = {hour_us}"
    )
    found["not final"] = clear_state(lake, [stream])
    not_final = pipeline.rows_of(settings, GOLD)
    return Story(found, before, after, messages_before, messages_after, wrong, made_anew, not_final)


def test_nothing_is_cleared_before_anything_is_merged(story: Story) -> None:
    assert story.cleared["in an empty lake"] == [
        Cleared("gold.metrics_1m", 0, None),
        Cleared("gold.metrics_summary_10m", 0, None),
    ]


def test_a_window_that_ends_after_the_watermark_keeps_its_state(story: Story) -> None:
    assert story.cleared["a second before"] == [Cleared(GOLD, 0, START + 59 * SECOND)]


def test_what_gold_has_not_merged_yet_holds_the_clearing_back(story: Story) -> None:
    assert [one.rows for one in story.cleared["gold is behind"]] == [0]
    assert sorted(row["count"] for row in story.before) == [1, 1, 2]


def test_rows_that_no_record_can_reach_lose_their_state_and_nothing_that_users_read(story: Story) -> None:
    assert story.cleared["out of reach"] == [Cleared(GOLD, 1, START + MINUTE)]
    assert set(cleared(story.before).values()) == {False}
    assert cleared(story.after) == {START: True, START + HOUR: False, START + HOUR + MINUTE: False}
    state = dict.fromkeys(("sketch", "m2"))
    assert sorted(map(repr, (row | state for row in story.after))) == sorted(
        map(repr, (row | state for row in story.before))
    )
    assert [one.rows for one in story.cleared["again"]] == [0]


def test_a_cleared_row_is_what_silver_makes_it(story: Story) -> None:
    assert story.wrong == 0


def test_a_row_that_is_not_final_keeps_its_state(story: Story) -> None:
    """The two rows cleared are the last one and the first, which was made anew and had some state again."""
    assert story.cleared["not final"] == [Cleared(GOLD, 2, START + 3 * HOUR)]
    by_start = cleared(story.not_final)
    assert (by_start[START + HOUR], by_start[START + HOUR + MINUTE]) == (False, True)


def test_a_record_for_a_cleared_row_has_the_row_made_anew_without_a_sketch(story: Story) -> None:
    row = min(story.made_anew, key=lambda row: row["window_start"])

    assert [row[name] for name in ("count", "sum", "p50", "p99", "m2", "is_final")] == [3, 15, 5, 8, 18, True]
    assert row["sketch"] is None


def test_a_cleared_row_does_not_leave_again(story: Story) -> None:
    assert story.messages_before == story.messages_after == 3
