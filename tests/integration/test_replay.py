"""Judging again: replay, discard, a retry of silver under other rules, and a rebuild of silver.

Most tests copy a lake with seven records of partition 0, landed at LANDED in two cuts:

    0 clean   1 clean, in "env"   2 value 500   3 not JSON   4 ten minutes ahead │ 5 late   6 not JSON
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.common.errors import TableError
from lakehouse.engine.records.dead_letters import Selection
from lakehouse.operations.repair.rebuild_silver import Landed, SilverRebuilt, rebuild_silver
from lakehouse.operations.repair.replay import Discarded, Replayed, discard, replay
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.spark import files as storage
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Field, FieldType, Rule, Stream
from lakehouse.testing.kills import CrashError, crash_at
from tests.oracles.metrics import METRICS_SUMMARY_10M, Metric
from tests.support import pipeline, verdicts
from tests.support.batches import silver_of, take_next
from tests.support.pipeline import DEAD_LETTERS, GOLD, SILVER, SOURCE, STREAM, Raw, Row
from tests.support.streams import METRICS, tolerant

LANDED = pipeline.utc("2026-03-20T12:00:30")
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
NOW = pipeline.utc("2026-03-21T00:00:00")
SUMMARIES = "gold.metrics_summary_10m"
NOT_JSON = Raw(b"not JSON")
PATIENT_S = 3600
PATIENT = tolerant(METRICS, PATIENT_S)


def event(at: datetime, value: float = 1.0, **more: str) -> Raw:
    record = {"serviceId": "s", "metricName": "m", "value": value, "timestamp": int(at.timestamp() * 1000)}
    return Raw(json.dumps(record | more).encode())


CUTS = (
    (
        event(LANDED - 2 * MINUTE),
        event(LANDED - MINUTE, 2.0, env="prod"),
        event(LANDED, 500.0),
        NOT_JSON,
        event(LANDED + 10 * MINUTE, 4.0),
    ),
    (event(LANDED - 8 * DAY, 5.0), NOT_JSON),
)
BY_OFFSET = {
    0: (1.0, LANDED - 2 * MINUTE),
    1: (2.0, LANDED - MINUTE),
    2: (500.0, LANDED),
    4: (4.0, LANDED + 10 * MINUTE),
    5: (5.0, LANDED - 8 * DAY),
    7: (6.0, LANDED - 8 * DAY),
    8: (7.0, LANDED - 8 * DAY),
}


@pytest.fixture(scope="module")
def caught_up(
    spark: SparkSession, session_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Settings:
    lake = str(tmp_path_factory.mktemp("letters") / "lake")
    settings = session_settings.changed({"lake": lake, "run.max_bytes": 1})
    pipeline.land(spark, settings, CUTS, landed_at=LANDED)
    pipeline.run_layers(spark, settings, "silver", "gold", stream=METRICS)
    assert in_silver(settings) == [0, 1, 2]
    assert letters(settings) == {3: "open", 4: "open", 5: "open", 6: "open"}
    return settings


@pytest.fixture
def settings(caught_up: Settings, tmp_path: Path) -> Settings:
    """Copy the lake for this test alone, and return the copy's settings."""
    shutil.copytree(caught_up.lake, tmp_path / "lake")
    return caught_up.changed({"lake": str(tmp_path / "lake")})


def in_silver(settings: Settings) -> list[int]:
    return sorted(row["offset"] for row in pipeline.rows_of(settings, SILVER))


def files_of(settings: Settings) -> dict[str, int]:
    """Return every file of the lake with the time of its last write."""
    files = (path for path in Path(settings.lake).rglob("*") if path.is_file())
    return {str(path): path.stat().st_mtime_ns for path in files}


def letter_rows(settings: Settings) -> dict[int, Row]:
    rows = pipeline.rows_of(settings, DEAD_LETTERS)
    found = {row["offset"]: row for row in rows}
    assert len(found) == len(rows), "two letters for one record"
    return found


def letters(settings: Settings) -> dict[int, str]:
    return {offset: row["status"] for offset, row in sorted(letter_rows(settings).items())}


def gold_differences(settings: Settings, offsets: list[int]) -> list[str]:
    """Return the differences between both gold tables and what these records make."""
    clean = [
        Metric("s", "m", value, event_time_us=pipeline.micros(at))
        for value, at in (BY_OFFSET[offset] for offset in offsets)
    ]
    minutes, summaries = (pipeline.rows_of(settings, name) for name in (GOLD, SUMMARIES))
    return verdicts.window_differences(minutes, clean, settings) + verdicts.window_differences(
        summaries, clean, settings, METRICS_SUMMARY_10M
    )


@pytest.mark.soak
def test_letters_that_still_fail_gain_an_attempt_and_are_open(lake: Lake, settings: Settings) -> None:
    version = pipeline.version_of(settings, SILVER)

    done = replay(lake, [METRICS], Selection(), NOW)

    assert done == Replayed(failed=4, failing={"future": 1, "late": 1, "not_json": 2})
    assert pipeline.version_of(settings, SILVER) == version
    found = letter_rows(settings)
    assert {(row["status"], row["attempts"], row["last_attempt"]) for row in found.values()} == {
        ("open", 2, pipeline.micros(NOW))
    }
    assert "before the watermark 2026-03-13 12:00:30" in found[5]["reasons"][0]["message"]


@pytest.mark.soak
def test_a_dry_run_says_what_a_replay_then_does_and_writes_nothing(lake: Lake, settings: Settings) -> None:
    before = files_of(settings)

    tried = replay(lake, [PATIENT], Selection(), NOW, dry_run=True)

    assert (tried, tried.asked) == (Replayed(passed=1, failed=3, failing={"late": 1, "not_json": 2}), 4)
    assert replay(lake, [METRICS], Selection(), NOW, allow_late=True, dry_run=True) == Replayed(
        passed=1, failed=3, failing={"future": 1, "not_json": 2}
    )
    assert files_of(settings) == before
    assert replay(lake, [PATIENT], Selection(), NOW) == tried


def test_what_passes_reaches_silver_and_gold_once_and_the_rest_is_not_touched(
    lake: Lake, settings: Settings
) -> None:

    done = replay(lake, [PATIENT], Selection(rule="future"), NOW)
    again = replay(lake, [PATIENT], Selection(rule="future"), NOW)
    pipeline.run_layers(lake.spark, settings, "silver", "gold", stream=PATIENT)

    assert (done, again) == (Replayed(passed=1), Replayed())
    assert letters(settings) == {3: "open", 4: "replayed", 5: "open", 6: "open"}
    assert [row["attempts"] for row in letter_rows(settings).values()].count(1) == 3
    assert in_silver(settings) == [0, 1, 2, 4]
    assert gold_differences(settings, [0, 1, 2, 4]) == []


@pytest.mark.soak
def test_a_second_replay_is_refused_while_one_is_running(
    lake: Lake, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert, refusals = tables.insert_missing, list[str]()

    def overtaken(*arguments: Any, **named: Any) -> int:
        with pytest.raises(TableError) as refused:
            replay(lake, [PATIENT], Selection(rule="not_json"), NOW)
        refusals.append(str(refused.value))
        return insert(*arguments, **named)

    monkeypatch.setattr(tables, "insert_missing", overtaken)
    done = replay(lake, [PATIENT], Selection(rule="future"), NOW)

    assert done == Replayed(passed=1)
    (refusal,) = refusals
    assert f"replay of {SILVER} must wait: replay of {SILVER} (process {os.getpid()}" in refusal
    assert letters(settings)[4] == "replayed"


@pytest.mark.soak
def test_a_replay_that_was_killed_before_it_closed_the_letters_is_recognised(
    lake: Lake, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tables, "update_matched", crash_at(tables.update_matched, 1, after=False))
        with pytest.raises(CrashError):
            replay(lake, [PATIENT], Selection(), NOW)
    assert in_silver(settings) == [0, 1, 2, 4]
    assert letters(settings)[4] == "open"

    assert discard(lake, [METRICS], Selection(rule="future"), NOW) == Discarded(there_already=1)

    assert letters(settings)[4] == "replayed"
    assert in_silver(settings) == [0, 1, 2, 4]


@pytest.mark.soak
def test_a_letter_whose_bronze_row_is_gone_stays_open_and_is_reported(lake: Lake, settings: Settings) -> None:
    DeltaTable.forPath(lake.spark, str(pipeline.path_of(settings, pipeline.BRONZE))).delete("offset = 6")

    done = replay(lake, [METRICS], Selection(rule="not_json"), NOW)

    assert done == Replayed(failed=1, gone=1, failing={"not_json": 1})
    assert letters(settings)[6] == "open"


@pytest.mark.soak
def test_discarded_letters_are_not_replayed_and_a_rerun_discards_none(lake: Lake, settings: Settings) -> None:
    selection = Selection(rule="not_json", offset=3)

    first = discard(lake, [METRICS], selection, NOW)
    version = pipeline.version_of(settings, DEAD_LETTERS)
    second = discard(lake, [METRICS], selection, NOW)

    assert (first, second) == (Discarded(1, 0, {"not_json": 1}), Discarded())
    assert pipeline.version_of(settings, DEAD_LETTERS) == version + 2  # the lease, taken and released
    assert letters(settings) == {3: "discarded", 4: "open", 5: "open", 6: "open"}
    assert replay(lake, [METRICS], Selection(offset=3), NOW) == Replayed()


# A retry of a silver micro-batch under other rules.


@pytest.mark.soak
@pytest.mark.parametrize(
    ("first_s", "then_s"),
    [
        pytest.param(300, 3600, id="laxer: what has a letter is a row now"),
        pytest.param(3600, 300, id="stricter: what is refused now gets a letter"),
    ],
)
def test_a_retry_under_other_rules_leaves_every_record_in_one_table(
    spark: SparkSession,
    lake_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    *,
    first_s: int,
    then_s: int,
) -> None:
    """Offsets 2 and 4 are two hours ahead, and 3 is ten minutes ahead: 3 alone depends on the setting."""
    ahead = LANDED + 120 * MINUTE
    records = [event(LANDED), NOT_JSON, event(ahead), event(LANDED + 10 * MINUTE), event(ahead)]
    settings, first, then = lake_settings, tolerant(STREAM, first_s), tolerant(STREAM, then_s)
    pipeline.land(spark, settings, [records], landed_at=LANDED)

    with monkeypatch.context() as patch:
        patch.setattr(tables, "append", crash_at(tables.append, 1, after=True))
        with pytest.raises(CrashError):
            take_next(silver_of(spark, settings, first), now=LANDED)
    assert (in_silver(settings), 3 in letters(settings)) == ([], first_s == 300)

    assert take_next(silver_of(spark, settings, then), now=LANDED) is not None

    assert take_next(silver_of(spark, settings, then), now=LANDED) is None
    is_laxer = first_s < then_s
    assert in_silver(settings) == ([0, 3] if is_laxer else [0])
    assert letters(settings) == {1: "open", 2: "open", 3: "replayed" if is_laxer else "open", 4: "open"}
    assert pipeline.versions(settings, [SILVER, DEAD_LETTERS]) == {SILVER: 1, DEAD_LETTERS: 2}


@pytest.mark.soak
def test_letters_of_a_micro_batch_that_silver_has_not_finished_wait_and_are_told(
    spark: SparkSession, lake_settings: Settings
) -> None:
    lake = Lake(spark, lake_settings.lake)
    pipeline.land(spark, lake_settings, [[event(LANDED), NOT_JSON]], landed_at=LANDED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "append", crash_at(tables.append, 1, after=True))
        with pytest.raises(CrashError):
            take_next(silver_of(spark, lake_settings, STREAM), now=LANDED)

    assert replay(lake, [STREAM], Selection(), NOW) == Replayed(in_flight=1)
    assert replay(lake, [STREAM], Selection(), NOW, dry_run=True) == Replayed(in_flight=1)
    assert discard(lake, [STREAM], Selection(), NOW) == Discarded(in_flight=1)
    assert letters(lake_settings) == {1: "open"}

    assert take_next(silver_of(spark, lake_settings, STREAM), now=LANDED) is not None
    assert discard(lake, [STREAM], Selection(), NOW) == Discarded(1, 0, {"not_json": 1})


# Rebuilding silver.


def too_high() -> tuple[Rule, ...]:
    return (Rule("too_high", "value", F.col("value") > 100, F.lit("value is more than 100")),)


def changed_stream() -> Stream:
    """Return a stream that reads the environment from "env" and refuses values above 100."""
    fields = (*SOURCE.contract.fields[:3], Field("env", "environment", FieldType.STRING, required=False))
    source = replace(SOURCE, contract=replace(SOURCE.contract, fields=fields), rules=too_high)
    return tolerant(replace(STREAM, sources=(source,)), PATIENT_S)


EXPECTED = SilverRebuilt(
    judged=7,
    inserted=1,
    changed=1,
    removed=1,
    newly_refused=1,
    newly_accepted=1,
    first=LANDED - MINUTE,
    last=LANDED + 10 * MINUTE,
)
LETTERS_AFTER = {2: "open", 3: "open", 4: "replayed", 5: "open", 6: "open"}


@pytest.mark.soak
def test_silver_made_anew_follows_todays_rules_and_a_rerun_writes_no_row(
    lake: Lake, settings: Settings
) -> None:
    stream = changed_stream()
    environments = {row["offset"]: row["environment"] for row in pipeline.rows_of(settings, SILVER)}
    assert environments == {0: None, 1: None, 2: None}

    done = rebuild_silver(lake, stream, Landed(), NOW)

    versions = pipeline.versions(settings, [SILVER, DEAD_LETTERS])
    again = rebuild_silver(lake, stream, Landed(), NOW)
    assert (done, again) == (EXPECTED, SilverRebuilt(judged=7))
    versions[DEAD_LETTERS] += 2  # the lease, taken and released
    assert pipeline.versions(settings, [SILVER, DEAD_LETTERS]) == versions
    environments = {row["offset"]: row["environment"] for row in pipeline.rows_of(settings, SILVER)}
    assert environments == {0: None, 1: "prod", 4: None}
    assert letters(settings) == LETTERS_AFTER
    found = letter_rows(settings)[2]
    assert [reason["rule"] for reason in found["reasons"]] == ["too_high"]
    assert (found["value"], found["batch"], found["attempts"]) == (CUTS[0][2].value, None, 1)
    passed_over = pipeline.run_layers(lake.spark, settings, "silver", "gold", stream=stream)
    assert sum(one.result.rows for one in passed_over) == 0


@pytest.mark.soak
def test_records_that_a_restore_of_bronze_has_had_read_again_are_there_once(
    lake: Lake, settings: Settings
) -> None:
    """RESTORE adds back the files that a DELETE of all rows removed, and silver takes them for new ones."""
    bronze = DeltaTable.forPath(lake.spark, str(pipeline.path_of(settings, pipeline.BRONZE)))
    version = pipeline.version_of(settings, pipeline.BRONZE)
    bronze.delete()
    bronze.restoreToVersion(version)
    pipeline.run_layers(lake.spark, settings, "silver", stream=METRICS)
    assert in_silver(settings) == [0, 0, 1, 1, 2, 2]
    assert len(pipeline.rows_of(settings, DEAD_LETTERS)) == 8

    done = rebuild_silver(lake, STREAM, Landed(), NOW)

    assert (done.judged, done.inserted, done.removed) == (7, 0, 3)
    assert in_silver(settings) == [0, 1, 2]
    assert letters(settings) == {3: "open", 4: "open", 5: "open", 6: "open"}
    assert rebuild_silver(lake, STREAM, Landed(), NOW) == SilverRebuilt(judged=7)


@pytest.mark.usefixtures("settings")
@pytest.mark.soak
def test_no_replay_or_discard_comes_between_the_writes_of_a_rebuild_and_no_rebuild_between_theirs(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()

    def refused(judge: Callable[[], object]) -> None:
        with pytest.raises(TableError) as refusal:
            judge()
        said.append(str(refusal.value).split(" (process ")[0])
        assert f"(process {os.getpid()} on " in str(refusal.value)
        assert "is running; its lease lasts at least until 20" in str(refusal.value)
        assert "\n" not in str(refusal.value)

    def after(write: Callable[..., Any], *others: Callable[[], object]) -> Callable[..., Any]:
        def meanwhile(*arguments: Any, **named: Any) -> Any:
            for other in others:
                refused(other)
            return write(*arguments, **named)

        return meanwhile

    def judge_again() -> SilverRebuilt:
        return rebuild_silver(lake, tolerant(STREAM, PATIENT_S), Landed(), NOW)

    def replay_future() -> Replayed:
        return replay(lake, [PATIENT], Selection(rule="future"), NOW)

    def discard_late() -> Discarded:
        return discard(lake, [PATIENT], Selection(rule="late"), NOW)

    with monkeypatch.context() as patch:
        patch.setattr(tables, "replace", after(tables.replace, replay_future, discard_late, judge_again))
        assert rebuild_silver(lake, changed_stream(), Landed(), NOW) == EXPECTED
    with monkeypatch.context() as patch:
        patch.setattr(tables, "update_matched", after(tables.update_matched, judge_again))
        assert discard_late() == Discarded(1, 0, {"late": 1})
    assert replay(lake, [PATIENT], Selection(offset=2), NOW) == Replayed(passed=1)

    rebuilding = "must wait: rebuild of silver.metrics_events"
    assert said == [
        f"replay of silver.metrics_events {rebuilding}",
        f"discard of silver.metrics_events {rebuilding}",
        f"rebuild of silver.metrics_events {rebuilding}",
        "rebuild of silver.metrics_events must wait: discard of silver.metrics_events",
    ]


@pytest.mark.soak
def test_what_a_rebuild_that_was_killed_held_runs_out(lake: Lake, settings: Settings) -> None:
    path = str(pipeline.path_of(settings, DEAD_LETTERS))

    def hold(holder: str, until: float) -> str:
        held = "alone rebuild of silver.metrics_events (process 1 on a)"
        tables.begin(lake.spark, path).set_properties({f"lakehouse.lease.metrics_events.{holder}": held})
        storage.write_text(lake.spark, term := f"{path}/_lakehouse_lease/{round(until) * 1000}-{holder}", "")
        return term

    term = hold("alive", until=time.time() + 3600)
    with pytest.raises(TableError, match=r"rebuild of silver.metrics_events \(process 1 on a\) is running"):
        replay(lake, [METRICS], Selection(), NOW)

    storage.delete(lake.spark, term)
    hold("killed", until=time.time() - 1)
    assert replay(lake, [METRICS], Selection(), NOW).failed == 4
    assert not [one for one in tables.properties_of(tables.snapshot(lake.spark, path)) if "lease" in one]
