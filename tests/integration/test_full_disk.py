"""The disk is full at each write in turn: a line says so, and with room again nothing is lost or doubled."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.common.errors import LakehouseError, TableError
from lakehouse.common.events import EventLog, Kind, note, noting
from lakehouse.engine.layers import LayerName
from lakehouse.engine.ops_tables import event_table
from lakehouse.engine.runtime import troubles
from lakehouse.engine.runtime.runner import RunOptions, run, utc_now
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.operations.audit import audit
from lakehouse.operations.telemetry import runs
from lakehouse.operations.telemetry.runs import Heartbeat, beating, read_runs
from lakehouse.settings import Settings
from lakehouse.storage.spark import files as storage
from lakehouse.storage.tables import Lake, leases
from lakehouse.storage.tables import delta_internals as delta
from tests.support import pipeline
from tests.support.full_disk import full, full_once, itself, jvm
from tests.support.pipeline import BRONZE, DEAD_LETTERS, GOLD, SILVER, STREAM, TABLES, Raw, await_
from tests.support.settings import MakeSettings

START = pipeline.utc("2026-03-01T00:00:00")
LAYERS: tuple[LayerName, ...] = ("bronze", "silver", "gold", "export")
FULL = "the disk is full (File too large): "
ATTEMPTS = 4


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(troubles, "FIRST_PAUSE_S", 0.05)


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """Return the settings of a lake with an event and a refused record waiting."""
    made = make_settings({"kafka.topic_partitions": 1})
    record = {"serviceId": "s", "metricName": "m", "value": 1, "timestamp": int(START.timestamp() * 1000)}
    pipeline.send(made, [Raw(json.dumps(record).encode()), Raw(b"not JSON")])
    return made


def run_all(spark: SparkSession, settings: Settings) -> list[str]:
    """Run all layers until they catch up, again if a step fails too often; return the notices."""
    said = list[str]()
    for _ in range(ATTEMPTS):
        options = RunOptions(AVAILABLE_NOW, on_notice=said.append)
        try:
            run(Lake(spark, settings.lake), [STREAM], LAYERS, settings, options)
        except LakehouseError:
            continue
        return said
    raise AssertionError(said)


def is_right(spark: SparkSession, settings: Settings) -> bool:
    """Return whether each record is where it belongs, once, and the export matches gold."""
    offsets = [
        [row["offset"] for row in pipeline.rows_of(settings, table)]
        for table in (BRONZE, SILVER, DEAD_LETTERS)
    ]
    assert (*offsets, [row["count"] for row in pipeline.rows_of(settings, GOLD)]) == ([0, 1], [0], [1], [1])
    topic = settings.topic("metrics-aggregated-1m")
    assert len(pipeline.read_topic(settings.kafka.bootstrap_servers, topic)) == 1
    return audit(Lake(spark, settings.lake), [STREAM], settings, utc_now()).is_clean


def table_of(txn: Any) -> str:
    return ".".join(Path(txn.deltaLog().dataPath().toUri().getPath()).parts[-2:])


@pytest.mark.slow
@pytest.mark.soak
def test_each_data_file_and_commit_of_each_layer_finds_the_disk_full_once(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = set[tuple[str, str]]()

    def of_files(txn: Any, _rows: object) -> object:
        met.add(("files", table_of(txn)))
        return "files", table_of(txn)

    def of_commit(_spark: object, txn: Any, *_: object) -> object:
        kind = "creation" if delta.read_version(txn) < 0 else "commit"
        met.add((kind, table_of(txn)))
        return kind, table_of(txn)

    monkeypatch.setattr(delta, "write_files", full_once(delta.write_files, of_files, jvm))
    monkeypatch.setattr(delta, "commit", full_once(delta.commit, of_commit, jvm))

    said = run_all(spark, settings)

    assert met == {(kind, table) for kind in ("creation", "files", "commit") for table in TABLES}
    failed = [line for line in said if "failed" in line]
    assert len(failed) == len(met)
    assert all(FULL in line for line in failed), failed
    assert is_right(spark, settings)


@pytest.mark.soak
def test_checkpoints_and_checksums_of_logs_that_find_no_room_stop_nothing(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit fits, but what Delta writes after it does not."""
    lake, commit = Lake(spark, settings.lake), delta.commit
    pipeline.run_layers(spark, settings, "bronze")
    path = pipeline.path_of(settings, BRONZE)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    pipeline.send(settings, [Raw(b"not JSON either")])
    size = max(file.stat().st_size for file in path.glob("_delta_log/*.json"))

    def commit_that_fits(*given: Any) -> int:
        with full(jvm(), but_for=size):
            return commit(*given)

    with monkeypatch.context() as patch:
        patch.setattr(delta, "commit", commit_that_fits)
        assert [done.result.rows for done in pipeline.run_layers(spark, settings, "bronze")] == [1]
    newest = pipeline.version_of(settings, BRONZE)
    assert newest not in pipeline.log_checkpoints(path)
    assert lake.read("bronze", "metrics_events").count() == 3
    pipeline.send(settings, [Raw(b"nor this")])
    pipeline.run_layers(spark, settings, "bronze")
    assert pipeline.log_checkpoints(path)[-1] == newest + 1
    assert len(pipeline.rows_of(settings, BRONZE)) == 4


def test_a_table_that_cannot_be_created_on_a_full_disk_says_so_and_nothing_of_what_lies_there(
    lake: Lake,
) -> None:
    with full(jvm()), pytest.raises(TableError) as caught:
        lake.ensure(event_table.EVENTS)
    said = str(caught.value)
    assert said.startswith("ops.events could not be created, and there is no table at")
    assert FULL in said
    assert "remove it" not in said
    assert lake.ensure(event_table.EVENTS)


def test_events_wait_for_room(tmp_path: Path) -> None:
    said = list[str]()
    write = partial(event_table.append, str(tmp_path))
    log = EventLog("a test", write, said.append, gather_s=0.01, pause_s=0.05)
    with noting(log):
        note(Kind.START, "first")
        await_(lambda: len(event_table.newest(str(tmp_path), limit=9)) == 1)
        with full(itself()):
            note(Kind.START, "second")
            await_(lambda: said)
        note(Kind.START, "third")
        await_(lambda: len(said) > 1)
    assert said[0].startswith("ops.events cannot be written; everything else continues: ")
    assert "File too large" in said[0]
    assert said[1:] == ["ops.events is being written again"]
    assert [one.message for one in event_table.newest(str(tmp_path), limit=9)] == [
        "first",
        "second",
        "third",
    ]


def test_a_sign_of_life_waits_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "EVERY_S", 0.05)
    said = list[str]()
    with full(itself()), beating(Heartbeat(["bronze"], ["metrics"], None), tmp_path, said.append):
        await_(lambda: said)
        assert read_runs(tmp_path, utc_now()) == []
    (line,) = said
    assert line.startswith("other processes cannot see this one, ")
    assert "File too large" in line
    assert list(tmp_path.rglob("*.*")) == []


def test_a_lease_that_finds_no_room_for_its_next_term_is_renewed_later(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lake.ensure(event_table.EVENTS)
    monkeypatch.setattr(leases, "_RENEWED_EVERY_S", 0.05)

    failing, renewed = full_once(storage.write_text, lambda *_: "term", itself), list[object]()

    def renew(*given: Any) -> None:
        failing(*given)
        renewed.append(given)

    with leases.held(spark, path, "ops.events"):
        monkeypatch.setattr(storage, "write_text", renew)
        await_(lambda: len(renewed) > 1, timeout_s=10)
        assert leases.is_held(spark, path)
    assert storage.names(spark, f"{path}/_lakehouse_lease") == []
