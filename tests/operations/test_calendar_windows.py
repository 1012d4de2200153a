"""A table of weeks in Berlin through corrections, the audit, a rebuild, retention, and other lengths.

Seven records are near the two clock changes of 2026. A later record moves an amount from the last hour of
October's long week into the next week.
"""

from __future__ import annotations

import json
import zoneinfo
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from expectations.gold.windows import aligned
from lakehouse.common.errors import TableError
from lakehouse.engine.layers import gold
from lakehouse.operations.audit.gold import check_gold
from lakehouse.operations.maintenance import retention
from lakehouse.operations.repair.rebuild_gold import GoldRebuilt, WindowSpan, rebuild_gold
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Stream
from lakehouse.streams.kinds import Records, windowed_sums
from lakehouse.streams.suite_internals import ExpectRowsToMeet
from tests.support import pipeline
from tests.support.pipeline import Raw, micros, utc

GOLD = "gold.rent_week"


def weeks(length: str = "week", zone: str | None = "Europe/Berlin") -> Stream:
    records = Records("rent", event_time="at", unique_by="id", sequence_by="version")
    return windowed_sums(
        "rent", records, by="flat", value="paid", length=length, zone=zone, gold_table="rent_week"
    )


STREAM = weeks()
(SOURCE,), (TABLE,) = STREAM.sources, STREAM.gold
MARCH, APRIL = "2026-03-22 23:00", "2026-03-29 22:00"
OCTOBER, LAST, END = "2026-10-18 22:00", "2026-10-25 22:59:59.999", "2026-10-25 23:00"


def paid(id_: int, at: str, amount: int, version: int = 1) -> Raw:
    record = {"id": str(id_), "version": version, "flat": "a", "paid": amount, "at": f"{at}Z"}
    return Raw(json.dumps(record).encode())


def rows(settings: Settings) -> dict[int, tuple[int, int, int]]:
    """Return each window's end, total and count by its start."""
    return {
        row["window_start"]: (row["window_end"], int(row["total_paid"]), row["count"])
        for row in pipeline.rows_of(settings, GOLD)
    }


def at(text: str) -> int:
    return micros(utc(text))


@pytest.mark.soak
def test_a_table_of_weeks(spark: SparkSession, lake: Lake, lake_settings: Settings) -> None:
    landed = utc("2026-10-26 00:00")
    first = [
        paid(1, MARCH, 1),
        paid(2, "2026-03-29 21:59:59.999", 2),
        paid(3, APRIL, 4),
        paid(4, OCTOBER, 8),
        paid(5, LAST, 16),
        paid(6, LAST, 32),
        paid(7, END, 64),
    ]
    pipeline.land(spark, lake_settings, [first], landed_at=landed, source=SOURCE)
    pipeline.run_layers(spark, lake_settings, "silver", "gold", stream=STREAM)
    assert rows(lake_settings) == {
        at(MARCH): (at(APRIL), 3, 2),
        at(APRIL): (at("2026-04-05 22:00"), 4, 1),
        at(OCTOBER): (at(END), 56, 3),
        at(END): (at("2026-11-01 23:00"), 64, 1),
    }

    moved = [paid(6, END, 32, version=2)]
    pipeline.land(spark, lake_settings, [moved], landed_at=landed, first_offset=7, source=SOURCE)
    pipeline.run_layers(spark, lake_settings, "silver", "gold", stream=STREAM)
    right = {
        at(MARCH): (at(APRIL), 3, 2),
        at(APRIL): (at("2026-04-05 22:00"), 4, 1),
        at(OCTOBER): (at(END), 24, 2),
        at(END): (at("2026-11-01 23:00"), 96, 2),
    }
    assert rows(lake_settings) == right
    assert audited(lake) == 0
    assert misaligned(lake) == [0, 0]

    path = f"delta.`{pipeline.path_of(lake_settings, GOLD)}`"
    spark.sql(f"UPDATE {path} SET window_end = window_start + INTERVAL 7 DAYS")
    assert misaligned(lake) == [0, 2]
    assert audited(lake) == 2
    assert rebuild_gold(lake, TABLE, WindowSpan()) == [GoldRebuilt("rent_week", 4, 2, 0)]
    assert rows(lake_settings) == right

    # Records are accepted from 19 October on, in the second of the four weeks.
    cut = retention.gold_cut(STREAM, TABLE, TABLE, days=1)
    assert retention.take(lake, gold.spec(TABLE), cut, landed, dry_run=True) == 2

    for other, said in (
        (weeks(zone=None), "week (UTC)"),
        (weeks("month"), "month (Europe/Berlin)"),
        (weeks("7d", zone=None), "604800"),
    ):
        with pytest.raises(TableError) as refused:
            lake.ensure(gold.spec(other.gold[0]))
        was = f"{GOLD} was made with window_s = week (Europe/Berlin), but the stream now declares {said};"
        assert str(refused.value).startswith(was)


@pytest.fixture
def other_rules(tmp_path: Path) -> Iterator[None]:
    """Give Python another time zone database, in which Berlin's clocks show UTC. Java keeps its own."""
    for name in ("UTC", "Europe/Berlin"):
        file = tmp_path / "zoneinfo" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes((resources.files("tzdata") / "zoneinfo" / "UTC").read_bytes())
    zoneinfo.reset_tzpath([tmp_path / "zoneinfo"])
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath()
    zoneinfo.ZoneInfo.clear_cache()


@pytest.mark.soak
@pytest.mark.usefixtures("other_rules")
def test_a_recomputed_week_is_complete_if_python_knows_other_rules_of_its_zone(
    spark: SparkSession, lake_settings: Settings
) -> None:
    landed = utc("2026-10-26 00:00")
    first = [paid(1, OCTOBER, 8), paid(2, LAST, 16), paid(3, LAST, 32)]
    pipeline.land(spark, lake_settings, [first], landed_at=landed, source=SOURCE)
    pipeline.run_layers(spark, lake_settings, "silver", "gold", stream=STREAM)
    moved = [paid(3, END, 32, version=2)]
    pipeline.land(spark, lake_settings, [moved], landed_at=landed, first_offset=3, source=SOURCE)
    pipeline.run_layers(spark, lake_settings, "silver", "gold", stream=STREAM)
    assert rows(lake_settings) == {
        at(OCTOBER): (at(END), 24, 2),
        at(END): (at("2026-11-01 23:00"), 32, 1),
    }


def audited(lake: Lake) -> int:
    """Return how many rows differ from those recomputed from silver."""
    (check,) = check_gold(lake, STREAM, TABLE)
    return check.differences


def misaligned(lake: Lake) -> list[int]:
    """Return how many rows break each of the expectations for windows."""
    assert TABLE.window is not None
    kept = lake.read("gold", "rent_week")
    conditions = [
        one.condition for one in aligned(TABLE.keys, TABLE.window) if isinstance(one, ExpectRowsToMeet)
    ]
    return [kept.where(f"NOT ({condition})").count() for condition in conditions]
