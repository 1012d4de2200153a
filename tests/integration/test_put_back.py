"""RESTORE, CLONE and copies put back: what still works, what is refused, what the audit names. No Kafka.

Events of services a, b and c have passed through silver and gold, each in its own micro-batch.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.common.errors import PositionError, TableError
from lakehouse.engine.progress import reading
from lakehouse.operations.audit.gold import check_gold
from lakehouse.operations.audit.records import check_records
from lakehouse.operations.audit.report import Check
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from tests.support import pipeline
from tests.support.damage import as_in_a_new_process
from tests.support.pipeline import BRONZE, DEAD_LETTERS, GOLD, SILVER, SOURCE, STREAM, Raw
from tests.support.streams import METRICS_1M

NOON = pipeline.utc("2026-03-01T12:00:00")


@dataclass
class Filled:
    """A lake whose bronze has one event per service."""

    spark: SparkSession
    settings: Settings
    services: str = ""

    def land(self, *services: str) -> None:
        """Land one event for each service in turn, and run silver and gold after each."""
        for name in services:
            stamp = int(NOON.timestamp() * 1000)
            one = {"serviceId": name, "metricName": "m", "value": 1, "timestamp": stamp}
            cut = [Raw(json.dumps(one).encode())]
            first = len(self.services)
            pipeline.land(self.spark, self.settings, [cut], landed_at=NOON, first_offset=first)
            self.services += name
            self.run()

    def run(self) -> list[str]:
        done = pipeline.run_layers(self.spark, self.settings, "silver", "gold")
        return [one.query for one in done]

    def restore(self, table: str, version: int) -> None:
        path = pipeline.path_of(self.settings, table)
        self.spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {version}")

    def put_back(self, table: str, copy: Path) -> None:
        """Replace a table with a copy, as if everything were stopped: no process remembers the old one."""
        path = pipeline.path_of(self.settings, table)
        shutil.rmtree(path)
        shutil.copytree(copy, path)
        as_in_a_new_process(self.spark)

    @property
    def clean(self) -> str:
        return "".join(sorted(row["service_id"] for row in pipeline.rows_of(self.settings, SILVER)))

    @property
    def counted(self) -> dict[str, int]:
        return {row["service_id"]: row["count"] for row in pipeline.rows_of(self.settings, GOLD)}

    def audited(self) -> dict[str, set[str]]:
        """Return the differences that the audit finds in the records and in gold, by check."""
        lake = Lake(self.spark, self.settings.lake)
        checks: list[Check] = check_records(lake, STREAM, SOURCE)
        checks += check_gold(lake, STREAM, METRICS_1M)
        return {check.name: {one.what for one in check.examples} for check in checks}


CLEAN = {"records": set[str](), "gold": set[str]()}


@pytest.fixture
def lake(spark: SparkSession, lake_settings: Settings) -> Filled:
    filled = Filled(spark, lake_settings)
    filled.land("a", "b", "c")
    assert (filled.clean, filled.audited()) == ("abc", CLEAN)
    return filled


@pytest.mark.soak
def test_rows_that_restore_brings_back_to_bronze_are_read_again_and_the_audit_names_them(
    lake: Filled,
) -> None:
    lake.restore(BRONZE, 1)
    assert (lake.run(), lake.audited()) == ([], CLEAN | {"records": {"not in bronze"}})
    lake.restore(BRONZE, 3)
    assert lake.run() == [SILVER, GOLD]
    assert (lake.clean, lake.audited()) == ("abbcc", CLEAN | {"records": {"2 times in silver"}})


@pytest.mark.soak
def test_a_shallow_clone_is_refused(lake: Filled, tmp_path: Path) -> None:
    clone = lake.settings.changed({"lake": str(tmp_path / "clone")})
    for table in (BRONZE, SILVER, DEAD_LETTERS, GOLD):
        path, copy = (pipeline.path_of(one, table) for one in (lake.settings, clone))
        copy.parent.mkdir(parents=True, exist_ok=True)
        lake.spark.sql(f"CREATE TABLE delta.`{copy}` SHALLOW CLONE delta.`{path}`")
    for layer in ("silver", "gold"):
        with pytest.raises(TableError, match=r"names the file '.*, which lies outside the table"):
            pipeline.run_layers(lake.spark, clone, layer)


@pytest.mark.soak
def test_a_copy_that_is_older_than_its_reader_is_refused_and_what_is_missed_the_audit_names(
    lake: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(pipeline.path_of(lake.settings, SILVER), tmp_path / "copy")
    lake.land("d", "e")
    lake.put_back(SILVER, tmp_path / "copy")

    with pytest.raises(
        PositionError, match=rf"^{GOLD} has read version 5 of {SILVER}, whose newest version is 4"
    ):
        lake.run()  # silver has refilled its table in one commit
    assert lake.clean == "abcde"

    lake.land("f")  # the version that gold had read exists again within a minute, with other rows
    assert "f" not in lake.counted
    assert lake.audited() == CLEAN | {"gold": {"missing"}}
    monkeypatch.setattr(reading, "_CLOCKS_DIFFER_MS", 0)
    with pytest.raises(
        PositionError, match=f"^the version 5 of {SILVER} that {GOLD} read differs from the current version 5"
    ):
        lake.run()
