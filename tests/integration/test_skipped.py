"""Records that silver cannot judge are named, skipped as dead letters, and judged again on request.

They cannot be judged because a user's own rule divides by the value, and 0 is a valid value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.cli.options import skipped
from lakehouse.cli.reports import dead_letters as report
from lakehouse.common.errors import RegistryError, SettingsError, StreamError
from lakehouse.common.terminal import Console
from lakehouse.engine.layers import LayerName
from lakehouse.engine.layers.culprits import MOST_FOUND, blamed, culprits
from lakehouse.engine.ops_tables.data_losses import LostRange
from lakehouse.engine.ops_tables.event_table import newest, recorded
from lakehouse.engine.records.dead_letters import Selection
from lakehouse.engine.runtime import troubles
from lakehouse.engine.runtime.runner import RunOptions, run
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.operations.audit.records import check_records
from lakehouse.operations.lines import TextLines
from lakehouse.operations.repair.rebuild_silver import Landed, rebuild_silver
from lakehouse.operations.repair.replay import Replayed, discard, replay
from lakehouse.operations.running import run_layers
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.spark.offset_ranges import OffsetRange
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Rule, Stream
from lakehouse.streams.registry import load
from lakehouse.testing.kills import CrashError, crash_at
from tests.support import pipeline
from tests.support.pipeline import DEAD_LETTERS, SILVER, STREAM, Raw
from tests.support.streams import tolerant

LANDED = pipeline.utc("2026-03-20T12:00:30")
NOW = LANDED + timedelta(hours=1)
SOUND = tolerant(STREAM, 3600)
PLACE = StructType().add("topic", "string").add("partition", "integer").add("offset", "long")
VALUES: Sequence[Sequence[float]] = ((1, 2), (3, 0, 4, 0, 5), (6,))  # 0 at offsets 3 and 5


def dividing() -> tuple[Rule, ...]:
    return (Rule("too_slow", "value", F.lit(1.0) / F.col("value") > 100, F.lit("it takes too long")),)


def broken(stream: Stream = SOUND) -> Stream:
    """Return the stream with a rule that cannot be evaluated for 0."""
    return replace(stream, sources=(replace(stream.sources[0], rules=dividing),))


def with_ids() -> Stream:
    """Return the stream with records that correct earlier ones with the same id."""
    source = replace(SOUND.sources[0], unique_by="header:id", sequence_by="header:sequence")
    return replace(SOUND, sources=(source,))


def event(value: float) -> Raw:
    record = {"serviceId": "s", "metricName": "m", "value": value, "timestamp": int(NOW.timestamp() * 1000)}
    headers = (("id", b"%d" % value), ("sequence", b"1"))
    return Raw(json.dumps(record | {"timestamp": int(LANDED.timestamp() * 1000)}).encode(), headers=headers)


@pytest.fixture
def landed(spark: SparkSession, lake_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(troubles, "FIRST_PAUSE_S", 0.01)
    settings = lake_settings.changed({"run.max_bytes": 1})
    cuts = [[event(value) for value in cut] for cut in VALUES]
    pipeline.land(spark, settings, cuts, landed_at=LANDED)
    return settings


def places(settings: Settings, *offsets: str) -> list[str]:
    return [f"{settings.topic('metrics-events')}/0/{one}" for one in offsets]


def failing(spark: SparkSession, settings: Settings, stream: Stream) -> str:
    """Run silver, and return the error that it ends with."""
    with pytest.raises(StreamError) as failed:
        pipeline.run_layers(spark, settings, "silver", stream=stream)
    return str(failed.value)


def skip(
    spark: SparkSession, settings: Settings, stream: Stream, wanted: Sequence[str], *layers: LayerName
) -> list[str]:
    """Run layers with --skip, and return the notices."""
    said = list[str]()
    options = RunOptions(AVAILABLE_NOW, skip=skipped(wanted, settings, load(settings)), on_notice=said.append)
    run(Lake(spark, settings.lake), [stream], layers or ["silver"], settings, options)
    return said


def in_silver(settings: Settings) -> list[int]:
    return sorted(row["offset"] for row in pipeline.rows_of(settings, SILVER))


def letters(settings: Settings) -> dict[int, tuple[str, list[str]]]:
    rows = pipeline.rows_of(settings, DEAD_LETTERS)
    assert len({row["offset"] for row in rows}) == len(rows)
    found = ((row["offset"], row["status"], [one["rule"] for one in row["reasons"]]) for row in rows)
    return {offset: (status, rules) for offset, status, rules in sorted(found)}


def differences(spark: SparkSession, settings: Settings, stream: Stream) -> int:
    """Return how many differences the audit finds in silver."""
    lake, source = Lake(spark, settings.lake), stream.sources[0]
    checks = check_records(lake, stream, source)
    return sum(check.differences for check in checks)


@pytest.mark.soak
@pytest.mark.parametrize("make", [lambda: SOUND, with_ids])
def test_a_record_that_cannot_be_judged_is_named_skipped_and_accepted_once_it_can_be(
    spark: SparkSession, landed: Settings, make: Callable[[], Stream], capsys: pytest.CaptureFixture[str]
) -> None:
    sound = make()
    stream, lake, (third, fifth) = broken(sound), Lake(spark, landed.lake), places(landed, "3", "5")

    said = failing(spark, landed, stream)

    assert said.startswith(f"{SILVER} cannot process the records at {third}, {fifth}: ")
    assert "[DIVIDE_BY_ZERO] Division by zero" in said
    assert f"`lakehouse run silver --skip {third} --skip {fifth} --trigger available-now`" in said
    assert in_silver(landed) == [0, 1]

    with recorded(landed.lake, "a test"):
        notices = skip(spark, landed, stream, re.findall(r"--skip (\S+)", said))
    told = [f"{SILVER} has skipped {one}; dead letters with the rule skipped: 1" for one in (third, fifth)]
    assert notices == told
    assert [one.message for one in newest(landed.lake, limit=9) if one.kind == "skip"] == told
    assert in_silver(landed) == [0, 1, 2, 4, 6, 7]
    assert letters(landed) == {3: ("open", ["skipped"]), 5: ("open", ["skipped"])}
    assert {row["value"] for row in pipeline.rows_of(landed, DEAD_LETTERS)} == {event(0).value}
    assert differences(spark, landed, stream) == 0
    assert skip(spark, landed, stream, [third, fifth]) == []

    done = rebuild_silver(lake, stream, Landed(), NOW)
    assert (done.judged, done.skipped, done.newly_refused, done.removed) == (6, 2, 0, 0)
    left = Replayed(skipped=2)
    assert replay(lake, [stream], Selection(), NOW) == left
    assert replay(lake, [stream], Selection(streams=("metrics",)), NOW, dry_run=True) == left
    report.print_replayed(left, Console())
    assert "2 skipped with --skip remain open; --rule skipped includes them" in capsys.readouterr().out
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
        replay(lake, [stream], Selection(rule="skipped"), NOW)
    assert letters(landed) == {3: ("open", ["skipped"]), 5: ("open", ["skipped"])}

    assert replay(lake, [sound], Selection(offset=3), NOW) == Replayed(passed=1)
    assert discard(lake, [stream], Selection(rule="skipped"), NOW).count == 1
    assert in_silver(landed) == [0, 1, 2, 3, 4, 6, 7]
    assert letters(landed) == {3: ("replayed", ["skipped"]), 5: ("discarded", ["skipped"])}
    assert differences(spark, landed, sound) == 0
    done = rebuild_silver(lake, sound, Landed(), NOW)
    assert (done.judged, done.skipped, done.inserted, done.removed) == (7, 1, 0, 0)


@pytest.mark.soak
def test_a_skipped_record_stays_so_if_the_run_is_killed_between_its_letter_and_the_clean_rows(
    spark: SparkSession, landed: Settings
) -> None:
    stream, wanted = broken(), places(landed, "3-5")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "append", crash_at(tables.append, 3, after=False))
        with pytest.raises(StreamError) as failed:
            skip(spark, landed, stream, wanted)
    assert isinstance(failed.value.__cause__, CrashError)
    assert (in_silver(landed), sorted(letters(landed))) == ([0, 1], [3, 4, 5])

    pipeline.run_layers(spark, landed, "silver", stream=stream)

    assert in_silver(landed) == [0, 1, 2, 6, 7]
    assert letters(landed) == dict.fromkeys((3, 4, 5), ("open", ["skipped"]))
    assert differences(spark, landed, stream) == 0


def test_a_failure_that_is_not_about_records_names_none(spark: SparkSession, landed: Settings) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "append", crash_at(tables.append, 1, after=False))
        assert failing(spark, landed, SOUND) == f"{SILVER} failed: CrashError: no message"


@pytest.mark.parametrize("layer", ["gold", "export"])
def test_layers_that_read_no_records_of_kafka_cannot_skip_any(
    lake_settings: Settings, layer: LayerName
) -> None:
    options = RunOptions(AVAILABLE_NOW, skip=[LostRange("t", 0, 1, 1)])
    with pytest.raises(SettingsError, match=r"^--skip applies to records that bronze reads or silver"):
        run_layers(lake_settings, [layer], [], options, TextLines(Console()))


def rows(spark: SparkSession, *partitions: int) -> DataFrame:
    """Return rows of a topic `t` at every other offset, as many for each partition as given."""
    places = [("t", number, 2 * n) for number, count in enumerate(partitions) for n in range(count)]
    return local_frame(spark, places, PLACE)


def at(partition: int, first: int, last: int | None = None) -> OffsetRange:
    return OffsetRange("t", partition, first, first if last is None else last)


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("false", []),
        ("partition = 1 AND offset IN (0, 6)", [at(1, 0), at(1, 6)]),
        ("partition = 0 AND offset = 16", [at(0, 16)]),
        ("partition = 1", [at(1, offset) for offset in range(0, 10, 2)]),
    ],
)
def test_the_records_at_which_something_fails_are_found(
    spark: SparkSession, where: str, found: list[OffsetRange]
) -> None:
    assert culprits(rows(spark, 9, 5), lambda some: some.where(where).count() > 0) == found


def test_of_many_that_fail_the_first_are_found_and_of_those_that_fail_together_the_range(
    spark: SparkSession,
) -> None:
    every = culprits(rows(spark, 20), lambda some: some.count() > 0)
    assert every == [at(0, 2 * number) for number in range(MOST_FOUND)]
    assert culprits(rows(spark, 8), lambda some: some.count() > 5) == [at(0, 0, 14)]


def test_nothing_is_blamed_on_records_if_all_fails_or_they_cannot_be_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    def fail(_some: DataFrame) -> DataFrame:
        raise ZeroDivisionError

    def wait(_some: DataFrame) -> DataFrame:
        raise RegistryError("the registry does not answer")

    here = rows(spark, 3)
    assert blamed(here, fail) is None
    with pytest.raises(RegistryError):
        blamed(here, wait)
    here.write.parquet(str(tmp_path / "rows"))
    gone = spark.read.parquet(str(tmp_path / "rows"))
    for file in (tmp_path / "rows").glob("*.parquet"):
        file.unlink()
    assert blamed(gone, lambda some: some) is None
