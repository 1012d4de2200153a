"""A column that a user adds to a table is carried along; a refused change says how to undo it.

Each event of service s is counted in its minute; anything that is not JSON becomes a dead letter.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import pytest
from pyspark.sql import SparkSession

from lakehouse.common.errors import TableError
from lakehouse.operations.audit.gold import check_gold
from lakehouse.operations.audit.stores import check_lead
from lakehouse.operations.repair.rebuild_gold import WindowSpan, rebuild_gold
from lakehouse.operations.repair.rebuild_silver import Landed, rebuild_silver
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from tests.support import pipeline
from tests.support.batches import gold_of
from tests.support.pipeline import DEAD_LETTERS, GOLD, SILVER, STREAM, Raw, Row
from tests.support.settings import MakeSettings
from tests.support.streams import METRICS_1M

NOON = pipeline.utc("2026-03-01T12:00:00")
CARRIED = (SILVER, DEAD_LETTERS, GOLD)


@dataclass
class Filled:
    """A lake whose streams run whenever something lands."""

    spark: SparkSession
    settings: Settings
    landed: int = 0

    @property
    def lake(self) -> Lake:
        return Lake(self.spark, self.settings.lake)

    def land(self, *minutes: int) -> None:
        """Land an event at each of these minutes after noon, and a record that is not an event."""
        stamps = [int(NOON.timestamp() * 1000) + 60_000 * minute for minute in minutes]
        one = {"serviceId": "s", "metricName": "m", "value": 1}
        cut = [Raw(json.dumps(one | {"timestamp": stamp}).encode()) for stamp in stamps]
        cut.append(Raw(b"{"))
        pipeline.land(self.spark, self.settings, [cut], landed_at=NOON, first_offset=self.landed)
        self.landed += len(cut)
        self.run()

    def run(self) -> None:
        pipeline.run_layers(self.spark, self.settings, "silver", "gold", "export")

    def sql(self, table: str, statement: str) -> None:
        name = f"delta.`{pipeline.path_of(self.settings, table)}`"
        self.spark.sql(statement.format(table=name))

    def rows(self, table: str) -> list[Row]:
        by = "window_start" if table == GOLD else "offset"
        return sorted(pipeline.rows_of(self.settings, table), key=lambda row: row[by])

    def notes(self, table: str) -> list[str | None]:
        return [row["note"] for row in self.rows(table)]

    def sent(self) -> list[int]:
        """Return the count in each exported message, in order."""
        topic = self.settings.topic(str(METRICS_1M.export.topic))
        found = pipeline.read_topic(self.settings.kafka.bootstrap_servers, topic)
        return [json.loads(one.value)["count"] for one in found]

    def differences(self) -> list[int]:
        checks = check_gold(self.lake, STREAM, METRICS_1M)
        checks += check_lead(self.lake, STREAM, METRICS_1M, self.settings)
        return [check.differences for check in checks]


@pytest.fixture
def filled(spark: SparkSession, make_settings: MakeSettings) -> Filled:
    found = Filled(spark, make_settings({"kafka.topic_partitions": 1}))
    found.land(0)
    return found


@pytest.mark.soak
def test_an_added_column_is_null_in_new_rows_and_kept_in_others_by_every_writer(filled: Filled) -> None:
    for table in CARRIED:
        filled.sql(table, "ALTER TABLE {table} ADD COLUMNS (note string FIRST, touched boolean)")
        filled.sql(table, "UPDATE {table} SET note = 'kept'")

    filled.land(0, 5)  # the row of minute 0 is merged

    assert [row["count"] for row in filled.rows(GOLD)] == [2, 1]
    assert (filled.notes(GOLD), filled.notes(SILVER)) == (["kept", None], ["kept", None, None])
    assert filled.notes(DEAD_LETTERS) == ["kept", None]
    filled.sql(GOLD, "UPDATE {table} SET count = 9")
    filled.sql(SILVER, "UPDATE {table} SET value = 9 WHERE offset = 0")
    done = rebuild_silver(filled.lake, STREAM, Landed(), NOON)
    (gold,) = rebuild_gold(filled.lake, METRICS_1M, WindowSpan())
    filled.run()
    assert (done.changed, gold.changed) == (1, 2)
    assert (filled.notes(GOLD), filled.notes(SILVER)) == (["kept", None], ["kept", None, None])
    # Minute 0 as it arrived, both minutes after the merge, and both after the rebuild.
    assert sorted(filled.sent()) == [1, 1, 1, 2, 2]
    assert filled.differences() == [0, 0]


@pytest.mark.soak
def test_what_is_refused_says_the_way_back_and_then_all_layers_go_on(filled: Filled) -> None:
    filled.sql(GOLD, "ALTER TABLE {table} ADD COLUMNS (_file string)")
    filled.sql(GOLD, "UPDATE {table} SET _file = 'mine', count = 5")

    with pytest.raises(TableError, match=r"_file\. .*Version 2 of the table changed them") as caught:
        gold_of(filled.spark, filled.settings)
    said = re.search(
        r'lakehouse sql --write "(RESTORE [^"]*)", and then lakehouse rebuild gold$', str(caught.value)
    )
    assert said is not None
    filled.spark.sql(said[1])
    filled.land(0, 5)

    assert [row["count"] for row in filled.rows(GOLD)] == [2, 1]
    assert filled.sent() == [1, 2, 1]
    assert filled.differences() == [0, 0]
