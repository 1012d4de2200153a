"""The power fails while a step commits: its files are empty, and the next start repeats the step exactly.

Nobody continues from a commit until it is on disk. So only the newest commit of the step at work is damaged,
and nobody has read it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.common.errors import TableError
from lakehouse.engine.layers import LayerName
from lakehouse.engine.progress import sent
from lakehouse.engine.runtime.runner import utc_now
from lakehouse.operations.audit import audit
from lakehouse.operations.repair.rebuild_silver import Landed, rebuild_silver
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake, lasting
from lakehouse.testing.kills import CrashError, crash_at
from tests.support import pipeline
from tests.support.batches import silver_of, take_next
from tests.support.damage import as_in_a_new_process, damage, file_of, newest_commit
from tests.support.pipeline import BRONZE, DEAD_LETTERS, GOLD, SILVER, STREAM, Raw, path_of
from tests.support.settings import MakeSettings

START = pipeline.utc("2026-03-01T00:00:00")
LAYERS: tuple[LayerName, ...] = ("bronze", "silver", "gold", "export")
TABLE_OF: dict[LayerName, str] = {"bronze": BRONZE, "silver": SILVER, "gold": GOLD}
REFUSED = Raw(b"not JSON")


@pytest.fixture(autouse=True)
def sure_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lasting, "_SURELY_S", 0)


def event(minute: int) -> Raw:
    at = START + timedelta(minutes=minute)
    record = {"serviceId": "s", "metricName": "m", "value": 1, "timestamp": int(at.timestamp() * 1000)}
    return Raw(json.dumps(record).encode())


def newest_rows(path: Path) -> Path:
    return file_of(path, newest_commit(path))


@dataclass
class Filled:
    """A lake that has processed an event and a refused record; as many more are waiting."""

    spark: SparkSession
    settings: Settings

    def __post_init__(self) -> None:
        pipeline.send(self.settings, [event(0), REFUSED])
        self.run(*LAYERS)
        pipeline.send(self.settings, [event(1), REFUSED])

    def run(self, *layers: LayerName) -> None:
        pipeline.run_layers(self.spark, self.settings, *layers)

    def path(self, table: str) -> Path:
        return path_of(self.settings, table)

    def fail(self, file: Path, how: str = "empty") -> None:
        """Simulate a power failure before a file and its version's checksum reached the disk."""
        log = file.parent if file.suffix == ".json" else file.parent / "_delta_log"
        for checksum in [*log.glob("*.crc")][-1:]:
            damage(checksum, "empty")
        damage(file, how)
        as_in_a_new_process(self.spark)

    def is_right(self) -> bool:
        """Check that each record is where it belongs, once, and return whether the audit is clean."""
        offsets = [
            sorted(row["offset"] for row in pipeline.rows_of(self.settings, table))
            for table in (BRONZE, SILVER, DEAD_LETTERS)
        ]
        counts = [row["count"] for row in pipeline.rows_of(self.settings, GOLD)]
        assert (*offsets, counts) == ([0, 1, 2, 3], [0, 2], [1, 3], [1, 1])
        return audit(Lake(self.spark, self.settings.lake), [STREAM], self.settings, utc_now()).is_clean


@pytest.fixture
def lake(spark: SparkSession, make_settings: MakeSettings) -> Filled:
    return Filled(spark, make_settings({"kafka.topic_partitions": 1}))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("layer", "lost"),
    [
        ("bronze", newest_commit),
        ("silver", newest_rows),
        ("gold", newest_commit),
    ],
)
def test_a_step_whose_micro_batch_was_not_on_the_disk_does_it_again(
    lake: Filled, layer: LayerName, lost: Callable[[Path], Path]
) -> None:
    lake.run(*LAYERS[: LAYERS.index(layer) + 1])
    lake.fail(lost(lake.path(TABLE_OF[layer])))

    lake.run(*LAYERS)

    assert lake.is_right()


@pytest.mark.soak
def test_dead_letters_that_were_not_on_the_disk_are_written_again(
    lake: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power fails between the two writes of silver's micro-batch."""
    lake.run("bronze")
    with monkeypatch.context() as patch, suppress(CrashError):
        patch.setattr(tables, "append", crash_at(tables.append, 2, after=False))
        take_next(silver_of(lake.spark, lake.settings), now=START)
    assert len(pipeline.rows_of(lake.settings, DEAD_LETTERS)) == 2
    lake.fail(newest_commit(lake.path(DEAD_LETTERS)))

    lake.run(*LAYERS)

    assert lake.is_right()


@pytest.mark.soak
def test_what_lies_beside_the_tables_is_done_without(lake: Filled) -> None:
    """The export's note, a lease's term, the logs' checkpoints and checksums, and Hadoop's own checksums."""
    topic = lake.settings.topic("metrics-aggregated-1m")
    note = Path(sent.file_of(str(lake.path(GOLD)), topic))
    assert note.exists()
    (lake.path(GOLD) / "_lakehouse_lease").mkdir(exist_ok=True)
    for table in (BRONZE, SILVER, DEAD_LETTERS, GOLD):
        log = lake.path(table) / "_delta_log"
        for name in (f"{3:020}.checkpoint.parquet", "_last_checkpoint"):
            (log / name).touch()
        for file in [*log.rglob("*.crc"), *lake.path(table).glob(".*.crc")]:
            file.write_bytes(b"")
    note.write_bytes(b"")
    as_in_a_new_process(lake.spark)

    lake.run(*LAYERS)

    assert lake.is_right()


@pytest.mark.soak
def test_a_loss_that_nothing_writes_again_is_one_line_and_the_audit_names_it_too(lake: Filled) -> None:
    """The disk has broken its promise: an earlier commit is empty, but a later one is not."""
    lost = newest_commit(lake.path(SILVER))
    lake.run(*LAYERS)
    lake.fail(lost)

    with pytest.raises(TableError) as caught:
        lake.run("silver", "gold")
    said = str(caught.value)
    assert said.startswith(
        f"{SILVER} has lost data from version 1: {lost} is empty, as after a power failure"
    )
    assert "\n" not in said
    report = audit(Lake(lake.spark, lake.settings.lake), [STREAM], lake.settings, utc_now())
    assert {
        (check.name, check.subject): [example.what for example in check.examples]
        for check in report.checks
        if check.differences
    } == {("files", SILVER): [said.partition("; also failed")[0]]}


@pytest.mark.soak
def test_dead_letters_that_the_disk_has_lost_after_all_are_named_by_the_audit_and_rebuilt(
    lake: Filled,
) -> None:
    lake.run("bronze", "silver")
    lake.fail(newest_commit(lake.path(DEAD_LETTERS)))
    lake.run(*LAYERS)

    report = audit(Lake(lake.spark, lake.settings.lake), [STREAM], lake.settings, utc_now())
    assert {
        check.name: [example.what for example in check.examples]
        for check in report.checks
        if check.differences
    } == {"records": ["neither in silver nor a dead letter"]}

    rebuild_silver(Lake(lake.spark, lake.settings.lake), STREAM, Landed(), utc_now())
    assert lake.is_right()


@pytest.mark.soak
def test_the_audit_names_a_data_file_that_is_shorter_than_it_was(lake: Filled) -> None:
    """The audit checks every file of a table; a start checks only those of the newest commits."""
    lake.run(*LAYERS)
    file = newest_rows(lake.path(SILVER))
    size = file.stat().st_size
    damage(file, "empty")

    report = audit(Lake(lake.spark, lake.settings.lake), [STREAM], lake.settings, utc_now())

    (named,) = [check for check in report.checks if check.name == "files" and check.differences]
    assert [(example.key, example.what) for example in named.examples] == [
        (
            {"file": file.name},
            f"has 0 bytes, but {size:,} in the table's log: a power failure may have truncated it",
        )
    ]
