"""Years of history in a lake: what may move the watermark, backfills, and changing lateness."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.common.errors import QueryError
from lakehouse.engine.layers import silver
from lakehouse.engine.layers.step import Permitted, Step
from lakehouse.engine.records.dead_letters import Selection
from lakehouse.operations.audit.gold import check_gold
from lakehouse.operations.audit.records import check_records
from lakehouse.operations.repair.rebuild_gold import GoldRebuilt, WindowSpan, rebuild_gold
from lakehouse.operations.repair.rebuild_silver import Landed, SilverRebuilt, rebuild_silver
from lakehouse.operations.repair.replay import replay
from lakehouse.operations.repair.resolve import Resolved, resolve_by_columns, resolve_by_record
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.spark.offset_ranges import OffsetRange
from lakehouse.storage.tables import Lake
from lakehouse.testing.kills import CrashError, crash_at
from tests.support import pipeline
from tests.support.batches import take_next
from tests.support.pipeline import DEAD_LETTERS, STREAM, Raw
from tests.support.streams import METRICS_1M, SALES, TRANSACTIONS, under, with_streams

SALES_SOURCE, SOURCE = SALES.sources[0], TRANSACTIONS.sources[0]
SILVER, GOLD = "silver.transactions", "gold.user_transactions_5m"
LANDED = pipeline.utc("2026-11-27T12:00:00")
NOT_JSON = Raw(b"not JSON")
ONE_CUT_A_BATCH = {"run.max_bytes": 1}


def sale(product: str, at: datetime, value: int = 1) -> Raw:
    record = {"product": product, "value": value, "timestamp": int(at.timestamp() * 1000)}
    return Raw(json.dumps(record).encode(), product.encode())


def spent(at: str, amount: int | str = 1) -> Raw:
    stamp = int(pipeline.utc(at).timestamp() * 1000)
    return Raw(json.dumps({"userId": "u", "amount": amount, "timestamp": stamp}).encode())


def land(spark: SparkSession, settings: Settings, first_offset: int, *cuts: list[Raw]) -> None:
    pipeline.land(spark, settings, cuts, landed_at=LANDED, source=SOURCE, first_offset=first_offset)


def step_of(spark: SparkSession, settings: Settings, *, is_backfill: bool) -> Step:
    lake, stream = Lake(spark, settings.lake), under(settings, TRANSACTIONS)
    (maker,) = silver.steps(lake, stream, settings.run.max_bytes, Permitted(is_backfill=is_backfill))
    return maker.make()


def take_all(spark: SparkSession, settings: Settings, *, is_backfill: bool = False) -> None:
    pipeline.run_layers(
        spark, settings, "silver", "gold", stream=under(settings, TRANSACTIONS), is_backfill=is_backfill
    )


def accepted(settings: Settings) -> list[int]:
    return sorted(row["offset"] for row in pipeline.rows_of(settings, SILVER))


def letters(settings: Settings) -> dict[int, list[str]]:
    rows = pipeline.rows_of(settings, DEAD_LETTERS)
    return {row["offset"]: [reason["rule"] for reason in row["reasons"]] for row in rows}


def rebuilt(spark: SparkSession, settings: Settings) -> SilverRebuilt:
    lake = Lake(spark, settings.lake)
    return rebuild_silver(lake, under(settings, TRANSACTIONS), Landed(), LANDED)


def forget(spark: SparkSession, settings: Settings, table: str, offsets: str) -> None:
    tables.delete(spark, str(pipeline.path_of(settings, table)), F.expr(f"offset IN ({offsets})"))


def test_a_tombstone_has_kafkas_time_and_does_not_move_the_watermark(
    spark: SparkSession, lake_settings: Settings
) -> None:
    settings = lake_settings.changed(ONE_CUT_A_BATCH)
    first, last = pipeline.utc("2010-12-01T08:00:00"), pipeline.utc("2010-12-20T08:00:00")
    cuts = [
        [Raw(None, b"pen")],
        [sale("ink", last)],
        [sale("pen", first), Raw(None, b"ink")],
        [sale("ink", last)],
    ]

    pipeline.land(spark, settings, cuts, landed_at=LANDED, source=SALES_SOURCE)
    pipeline.run_layers(spark, settings, "silver", stream=under(settings, SALES))

    rows = pipeline.rows_of(settings, "silver.sales_events")
    told = {row["offset"]: (row["event_time"], row["own_time"]) for row in rows}
    landed, own = pipeline.micros(LANDED), pipeline.micros(last)
    assert told == {0: (landed, None), 1: (own, own), 3: (landed, None), 4: (own, own)}
    (letter,) = pipeline.rows_of(settings, DEAD_LETTERS)
    assert [(reason["rule"], letter["offset"]) for reason in letter["reasons"]] == [("late", 2)]
    assert "before the watermark 2010-12-13 08:00:00" in letter["reasons"][0]["message"]


@pytest.mark.soak
def test_a_backfill_that_was_killed_is_ended_as_it_was_begun_and_later_records_are_late_again(
    spark: SparkSession, lake_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = lake_settings.changed(ONE_CUT_A_BATCH)
    land(spark, settings, 0, [spent("2026-11-27T11:00:00")])
    take_all(spark, settings)
    land(spark, settings, 1, [spent("2020-05-05T05:00:00"), NOT_JSON], [spent("2019-01-01T00:00:00")])
    with monkeypatch.context() as patch:  # the note and the letters are written, silver is not
        patch.setattr(tables, "append", crash_at(tables.append, 3, after=False))
        with pytest.raises(CrashError):
            take_next(step_of(spark, settings, is_backfill=True), now=LANDED)
    assert (accepted(settings), letters(settings)) == ([0], {2: ["not_json"]})

    take_all(spark, settings)

    assert accepted(settings) == [0, 1]
    assert letters(settings) == {2: ["not_json"], 3: ["late"]}
    forget(spark, settings, SILVER, "1")
    forget(spark, settings, DEAD_LETTERS, "2, 3")
    found = rebuilt(spark, settings)

    at = pipeline.utc("2020-05-05T05:00:00")
    assert found == SilverRebuilt(judged=4, inserted=1, newly_refused=2, first=at, last=at)
    assert accepted(settings) == [0, 1]
    assert letters(settings) == {2: ["not_json"], 3: ["late"]}


@pytest.mark.soak
def test_lateness_that_changes_twice_holds_for_the_records_of_its_time(
    spark: SparkSession, lake_settings: Settings
) -> None:
    hour, two, half = (
        lake_settings.changed({"stream_defaults.allowed_lateness_s": seconds})
        for seconds in (3600, 7200, 1800)
    )
    land(spark, hour, 0, [spent("2026-11-27T11:00:00")])
    take_all(spark, hour)
    for first, settings in ((1, hour), (4, two), (7, half)):
        land(spark, settings, first, [spent(f"2026-11-27T{at}:00") for at in ("10:10", "09:30", "08:30")])
        take_all(spark, settings)

    assert accepted(half) == [0, 1, 4, 5]
    assert letters(half) == {offset: ["late"] for offset in (2, 3, 6, 7, 8, 9)}
    forget(spark, half, SILVER, "1, 4, 5")
    forget(spark, half, DEAD_LETTERS, "2, 8")
    found = rebuilt(spark, half)
    assert (found.inserted, found.newly_refused, found.changed, found.removed) == (3, 2, 0, 0)
    assert accepted(half) == [0, 1, 4, 5]
    assert letters(half) == {offset: ["late"] for offset in (2, 3, 6, 7, 8, 9)}

    lake, stream = Lake(spark, half.lake), under(half, TRANSACTIONS)
    now_two = replay(lake, [under(two, TRANSACTIONS)], Selection(), LANDED, dry_run=True)
    assert (now_two.passed, now_two.failed) == (3, 3), "what has come, or is now, whichever is more"
    checks = [
        *check_records(lake, stream, stream.sources[0]),
        *check_gold(lake, stream, stream.gold[0]),
    ]
    assert [(check.subject, check.differences) for check in checks if check.differences] == []


@pytest.mark.soak
def test_a_letter_is_resent_once_one_row_of_silver_stands_in_its_place(
    spark: SparkSession, lake_settings: Settings
) -> None:
    def minutes(amount: int | str, *numbers: int) -> list[Raw]:
        return [spent(f"2026-11-27T10:0{number}:00", amount) for number in numbers]

    land(spark, lake_settings, 0, minutes("1", 0, 1, 2, 3))
    land(spark, lake_settings, 4, minutes(1, 0, 1, 3, 3, 5))
    take_all(spark, lake_settings)
    lake, stream = Lake(spark, lake_settings.lake), under(lake_settings, TRANSACTIONS)
    topic = lake_settings.topic(SOURCE.topic)

    def by_record(letter: int, offset: int) -> Resolved:
        record = OffsetRange(topic, 0, offset, offset)
        return resolve_by_record(lake, [stream], Selection(offset=letter), record, LANDED)

    done = resolve_by_columns(lake, [stream], Selection(), ("user_id", "event_time"), LANDED)
    assert done == Resolved(asked=4, resent=2, unmatched=1, ambiguous=1)
    with pytest.raises(QueryError, match="already resolves another letter"):
        by_record(2, 4)
    with pytest.raises(QueryError, match=r"silver\.transactions has no row for .*/0/17"):
        by_record(2, 17)
    with pytest.raises(QueryError, match="no open dead letter is selected"):
        by_record(0, 8)
    assert by_record(3, 7) == Resolved(asked=1, resent=1)

    rows = pipeline.rows_of(lake_settings, DEAD_LETTERS)
    told = {row["offset"]: (row["status"], row["reasons"][-1]["message"]) for row in rows}
    assert {offset: told[offset] for offset in (0, 1, 3)} == {
        offset: ("resent", f"sent again as {topic}/0/{by}") for offset, by in ((0, 4), (1, 5), (3, 7))
    }
    assert told[2][0] == "open"
    (records,) = check_records(lake, stream, stream.sources[0])
    assert records.differences == 0
    assert "1 open, 0 discarded, 3 resent" in " ".join(records.notes)
    assert rebuilt(spark, lake_settings) == SilverRebuilt(judged=6)


@pytest.mark.soak
def test_windows_stay_final_under_a_grace_that_is_raised_and_become_so_under_one_that_is_lowered(
    spark: SparkSession, lake_settings: Settings
) -> None:
    ten = pipeline.utc("2026-03-20T10:00:00")
    lake, count = Lake(spark, lake_settings.lake), 0

    def measured(at: str) -> Raw:
        stamp = int(pipeline.utc(f"2026-03-20T10:{at}").timestamp() * 1000)
        return Raw(json.dumps({"serviceId": "s", "metricName": "m", "value": 1, "timestamp": stamp}).encode())

    def final_under(grace_s: int, *times: str) -> dict[int, bool]:
        """Return whether each window, by its minute past ten, is final; check that an audit agrees."""
        nonlocal count
        settings = with_streams(lake_settings, metrics={"grace": f"{grace_s}s"})
        stream = under(settings, STREAM)
        pipeline.land(spark, settings, [list(map(measured, times))], landed_at=LANDED, first_offset=count)
        (before,) = check_gold(lake, stream, stream.gold[0]) if count else (None,)
        count += len(times)
        pipeline.run_layers(spark, settings, "silver", "gold", stream=stream, now=ten)
        (after,) = check_gold(lake, stream, stream.gold[0])
        assert (before.differences if before else 0, after.differences) == (0, 0)
        rows = pipeline.rows_of(settings, f"gold.{METRICS_1M.name}")
        return {(row["window_start"] - pipeline.micros(ten)) // 60_000_000: row["is_final"] for row in rows}

    assert final_under(60, "00:30", "05:00") == {0: True, 5: False}
    assert final_under(600, "07:00", "02:00") == {0: True, 2: True, 5: False, 7: False}
    assert final_under(30, "08:00") == {0: True, 2: True, 5: True, 7: False, 8: False}
    table = under(with_streams(lake_settings, metrics={"grace": "90s"}), STREAM).gold[0]
    assert rebuild_gold(lake, table, WindowSpan()) == [GoldRebuilt(table.name, 5, 0, 0)]
