"""What is refused at the start of a query: checkpoints, tables and topics that do not belong together.

A lake of one stream is filled twice; each test breaks one thing of it, meets the refusal, and mends it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, TopicPartition
from pyspark.sql import SparkSession

from lakehouse import catalog, tables
from lakehouse.audit.landing import check_landing
from lakehouse.errors import CheckpointError, StreamError, TableError
from lakehouse.layers.query import Allow, LayerName
from lakehouse.runtime.runner import BatchDone, RunOptions, run
from lakehouse.runtime.triggers import AVAILABLE_NOW
from lakehouse.sandbox.services import Endpoints
from lakehouse.settings import Settings
from lakehouse.streams.metrics import METRICS_1M
from lakehouse.tables import Lake
from lakehouse.topics import create_topics, describe_topic
from tests import pipeline
from tests.conftest import MakeSettings, settings_for
from tests.pipeline import BRONZE, DEAD_LETTERS, GOLD, SILVER, SOURCE, Raw, await_

LAYERS: tuple[LayerName, ...] = ("bronze", "silver", "gold")
LOSSES = "ops.data_losses"


def event(service: str, **more: object) -> Raw:
    record = {"serviceId": service, "metricName": "m", "value": 1.0, "timestamp": 1_767_225_600_000}
    return Raw(json.dumps(record | more).encode(), partition=0)


@dataclass(frozen=True)
class FilledLake:
    """A lake that has been filled twice, and its checkpoints as they were after the first time."""

    settings: Settings
    older: Path


@pytest.fixture(scope="module")
def lake(
    spark: SparkSession,
    session_settings: Settings,
    services: Endpoints,
    tmp_path_factory: pytest.TempPathFactory,
) -> FilledLake:
    directory = tmp_path_factory.mktemp("guards")
    settings = settings_for(session_settings, services, directory)
    pipeline.send(settings, [event("a"), Raw(b"not JSON", partition=0)])
    pipeline.run_layers(spark, settings, *LAYERS)
    shutil.copytree(Path(settings.lake, "_checkpoints"), directory / "older")
    pipeline.send(settings, [event("b"), event("b")])
    done = pipeline.run_layers(spark, settings, *LAYERS)
    assert [(one.query, one.batch) for one in done] == [(BRONZE, 1), (SILVER, 1), (GOLD, 1)]
    return FilledLake(settings, directory / "older")


@contextmanager
def replaced(path: Path, other: Path | None = None) -> Iterator[None]:
    """Another directory, or none, in the place of one that is put back at the end."""
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    try:
        if other is not None:
            shutil.copytree(other, path)
        yield
    finally:
        shutil.rmtree(path, ignore_errors=True)
        aside.rename(path)


def refusal(spark: SparkSession, settings: Settings, layer: LayerName) -> str:
    """The message with which a start is refused; no table has been written."""
    before = pipeline.versions(settings)
    with pytest.raises(CheckpointError) as refused:
        pipeline.run_layers(spark, settings, layer)
    after = pipeline.versions(settings)
    assert {table: version for table, version in after.items() if before[table] >= 0} == {
        table: version for table, version in before.items() if version >= 0
    }
    message = str(refused.value)
    assert "\n" not in message
    return message


def table_id(settings: Settings, table: str) -> str:
    first = Path(pipeline.path_of(settings, table), "_delta_log", f"{0:020}.json").read_text()
    return next(str(json.loads(line)["metaData"]["id"]) for line in first.splitlines() if "metaData" in line)


def test_a_checkpoint_says_which_tables_and_topic_it_belongs_to(lake: FilledLake) -> None:
    settings = lake.settings
    topic = describe_topic(settings.kafka_bootstrap_servers, settings.topic(SOURCE.topic))
    identities = {
        name: json.loads((pipeline.checkpoint_of(settings, name) / "lakehouse.json").read_text())
        for name in (BRONZE, SILVER, GOLD)
    }

    assert topic is not None
    assert topic.id is not None
    assert identities[BRONZE]["topic"] == {"name": settings.topic(SOURCE.topic), "id": topic.id}
    assert {name: set(identity["tables"]) for name, identity in identities.items()} == {
        BRONZE: {BRONZE},
        SILVER: {BRONZE, SILVER, DEAD_LETTERS},
        GOLD: {SILVER, GOLD},
    }
    assert identities[GOLD]["tables"] == {SILVER: table_id(settings, SILVER), GOLD: table_id(settings, GOLD)}


@pytest.mark.parametrize(("layer", "table"), [("gold", GOLD), ("silver", BRONZE)], ids=["filled", "read"])
def test_a_table_made_anew_under_a_kept_checkpoint_is_refused(
    spark: SparkSession, lake: FilledLake, layer: LayerName, table: str
) -> None:
    with replaced(pipeline.path_of(lake.settings, table)):
        message = refusal(spark, lake.settings, layer)

    assert f"knows other tables of these names: {table} was deleted and recreated" in message
    assert "delete the checkpoint and" in message
    assert pipeline.run_layers(spark, lake.settings, layer) == []


def test_the_checkpoint_of_another_lake_is_refused(
    spark: SparkSession, lake: FilledLake, tmp_path: Path
) -> None:
    other = lake.settings.model_copy(update={"lake": str(tmp_path)})
    shutil.copytree(Path(lake.settings.lake, "_checkpoints"), tmp_path / "_checkpoints")

    message = refusal(spark, other, "gold")

    assert (
        f"{GOLD}, {SILVER} were deleted and recreated, or the checkpoint belongs to another lake" in message
    )


@pytest.mark.parametrize("name", [BRONZE, SILVER, GOLD])
def test_a_checkpoint_older_than_its_table_is_refused(
    spark: SparkSession, lake: FilledLake, name: str
) -> None:
    checkpoint = pipeline.checkpoint_of(lake.settings, name)
    with replaced(checkpoint, lake.older / name):
        message = refusal(spark, lake.settings, LAYERS[(BRONZE, SILVER, GOLD).index(name)])

    assert message.startswith(
        f"{name} has micro-batch 1 of {name}, but the checkpoint {checkpoint} has planned"
    )
    assert "none after 0" in message


def test_a_checkpoint_without_a_note_is_adopted_but_not_another_ones(
    spark: SparkSession, lake: FilledLake, tmp_path: Path
) -> None:
    checkpoint = pipeline.checkpoint_of(lake.settings, GOLD)
    noted = (checkpoint / "lakehouse.json").read_text()
    (checkpoint / "lakehouse.json").write_text(noted[:20])
    assert "lakehouse.json says what its checkpoint belongs to, and cannot be read" in refusal(
        spark, lake.settings, "gold"
    )
    (checkpoint / "lakehouse.json").unlink()
    shutil.copytree(checkpoint, tmp_path / "other")
    (tmp_path / "other" / ".metadata.crc").unlink(missing_ok=True)
    (tmp_path / "other" / "metadata").write_text('{"id":"00000000-0000-4000-8000-000000000000"}')

    with replaced(checkpoint, tmp_path / "other"):
        message = refusal(spark, lake.settings, "gold")
    assert message.startswith(f"{GOLD} was filled with another checkpoint than {checkpoint}")

    assert pipeline.run_layers(spark, lake.settings, "gold") == []
    assert json.loads((checkpoint / "lakehouse.json").read_text()) == json.loads(noted)


@pytest.mark.parametrize("name", [BRONZE, SILVER, GOLD])
def test_a_lost_checkpoint_is_refused_with_the_way_out(
    spark: SparkSession, lake: FilledLake, name: str
) -> None:
    checkpoint = pipeline.checkpoint_of(lake.settings, name)
    with replaced(checkpoint):
        message = refusal(spark, lake.settings, LAYERS[(BRONZE, SILVER, GOLD).index(name)])
        assert not (checkpoint / "offsets").exists()

    assert message.startswith(f"{name} has rows")
    assert f", but its checkpoint {checkpoint} is gone" in message
    assert "Put the checkpoint back, or delete" in message
    assert str(pipeline.path_of(lake.settings, name)) in message


def test_dead_letters_alone_are_reason_to_miss_a_checkpoint(spark: SparkSession, lake: FilledLake) -> None:
    settings = lake.settings
    with replaced(pipeline.checkpoint_of(settings, SILVER)), replaced(pipeline.path_of(settings, SILVER)):
        message = refusal(spark, settings, "silver")

    assert message.startswith(f"{SILVER} has rows in {DEAD_LETTERS}, but its checkpoint")
    assert f"the rows of {DEAD_LETTERS} where job = '{SILVER}'" in message


def test_gold_without_table_and_checkpoint_is_made_anew_from_silver(
    spark: SparkSession, lake: FilledLake
) -> None:
    settings = lake.settings
    right = pipeline.rows_of(settings, GOLD)
    assert {row["service_id"]: row["count"] for row in right} == {"a": 1, "b": 2}
    with replaced(pipeline.checkpoint_of(settings, GOLD)), replaced(pipeline.path_of(settings, GOLD)):
        pipeline.run_layers(spark, settings, "gold")
        anew = pipeline.rows_of(settings, GOLD)

    def exact(rows: list[pipeline.Row]) -> list[str]:
        return sorted(str({**row, "sketch": None}) for row in rows)

    assert exact(anew) == exact(right)


@pytest.mark.parametrize(
    ("layer", "setting", "value"),
    [("silver", "allowed_lateness_s", 60), ("gold", "quantile_k", 100), ("gold", "grace_s", 5)],
)
def test_a_setting_that_rows_depend_on_cannot_change_under_them(
    spark: SparkSession, lake: FilledLake, layer: LayerName, setting: str, value: int
) -> None:
    versions = pipeline.versions(lake.settings)
    changed = lake.settings.model_copy(update={setting: value})

    with pytest.raises(TableError) as refused:
        pipeline.run_layers(spark, changed, layer)

    table = {"silver": SILVER, "gold": GOLD}[layer]
    was = {"allowed_lateness_s": 604800, "quantile_k": 200, "grace_s": 60}[setting]
    assert f"{table} was made with {setting} = {was}, the settings say {value}" in str(refused.value)
    assert f"LAKEHOUSE_{setting.upper()}={was}" in str(refused.value)
    assert pipeline.versions(lake.settings) == versions


@pytest.mark.parametrize(
    ("changed", "was"),
    [
        pytest.param({"window_s": 300}, "window_s = 60, the stream now declares 300", id="window"),
        pytest.param(
            {"keys": ("service_id", "window_start")},
            "keys = service_id,metric_name,window_start, the stream now declares service_id,window_start",
            id="keys",
        ),
    ],
)
def test_other_windows_or_keys_are_refused(
    spark: SparkSession, lake: FilledLake, changed: dict[str, object], was: str
) -> None:
    stream = replace(pipeline.STREAM, gold=(replace(METRICS_1M, **changed),))  # type: ignore[arg-type]

    with pytest.raises(TableError) as refused:
        pipeline.run_layers(spark, lake.settings, "gold", stream=stream)

    assert f"{GOLD} was made with {was}; its rows depend on it" in str(refused.value)
    assert "LAKEHOUSE_KEYS" not in str(refused.value)


# The topic.


@contextmanager
def admin(settings: Settings) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=settings.kafka_bootstrap_servers)
    try:
        yield client
    finally:
        client.close()


def let_expire(settings: Settings, before: int) -> None:
    """Let the broker delete the records of partition 0 before an offset."""
    with admin(settings) as client:
        client.delete_records({TopicPartition(settings.topic(SOURCE.topic), 0): before})


def run_allowing_loss(spark: SparkSession, settings: Settings) -> tuple[list[BatchDone], list[str]]:
    done: list[BatchDone] = []
    notices: list[str] = []
    run(
        Lake(spark, settings.lake),
        [pipeline.STREAM],
        ["bronze"],
        settings,
        RunOptions(AVAILABLE_NOW, on_batch=done.append, allow=[Allow.DATA_LOSS], on_notice=notices.append),
    )
    return done, notices


def offsets(settings: Settings) -> list[int]:
    return sorted(row["offset"] for row in pipeline.rows_of(settings, BRONZE))


def losses(settings: Settings) -> list[tuple[int, int, int, str]]:
    rows = pipeline.rows_of(settings, LOSSES)
    return sorted((row["partition"], row["first_offset"], row["last_offset"], row["query"]) for row in rows)


@pytest.mark.usefixtures("nameless")
def test_expired_offsets_are_refused_until_they_are_allowed_and_noted(
    spark: SparkSession, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings()
    topic = settings.topic(SOURCE.topic)

    # Of a first micro-batch that was planned and not written, and of one that was not even planned.
    pipeline.send(settings, [event("a")] * 2)
    plan_without_writing(spark, settings, monkeypatch)
    let_expire(settings, 1)
    assert "offsets 0 to 0 of partition 0" in refusal(spark, settings, "bronze")
    shutil.rmtree(pipeline.checkpoint_of(settings, BRONZE) / "offsets")
    assert "offsets 0 to 0 of partition 0" in refusal(spark, settings, "bronze")
    assert [one.result.rows for one in run_allowing_loss(spark, settings)[0]] == [1]

    # Of one that has noted its last micro-batch.
    pipeline.send(settings, [event("b")] * 6)
    let_expire(settings, 5)

    message = refusal(spark, settings, "bronze")
    assert message.startswith(
        f"Kafka no longer has offsets 2 to 4 of partition 0 of topic {topic} (3 offsets), which {BRONZE} has"
    )
    assert "--allow data-loss" in message

    done, notices = run_allowing_loss(spark, settings)
    assert [one.result.rows for one in done] == [3]
    assert len(notices) == 1
    assert offsets(settings) == [1, 5, 6, 7]
    assert losses(settings) == [(0, 0, 0, BRONZE), (0, 2, 4, BRONZE)]

    # Of a micro-batch that was planned and not written, of which more expires before it is planned again.
    pipeline.send(settings, [event("c", region="eu", tier=1)] * 4)
    plan_without_writing(spark, settings, monkeypatch)
    let_expire(settings, 10)
    assert "offsets 8 to 9 of partition 0" in refusal(spark, settings, "bronze")
    done, _ = run_allowing_loss(spark, settings)
    assert [one.result.rows for one in done] == [2]
    assert offsets(settings) == [1, 5, 6, 7, 10, 11]
    assert losses(settings) == [(0, 0, 0, BRONZE), (0, 2, 4, BRONZE), (0, 8, 9, BRONZE)]

    assert run_allowing_loss(spark, settings) == ([], [])  # nothing more to allow
    assert pipeline.run_layers(spark, settings, "bronze") == []
    assert LOSSES in catalog.register(Lake(spark, settings.lake), settings)
    (landed,) = check_landing(Lake(spark, settings.lake), pipeline.STREAM, SOURCE, settings)
    lost = "expired unread; noted as lost by --allow data-loss for bronze.metrics_events"
    kept = "in 2 records, first in partition 0 at offset 10; kept in bronze only"
    assert landed.differences == 0
    assert landed.notes[-5:] == (
        f"{topic}-0: offsets 0 to 0 {lost}",
        f"{topic}-0: offsets 2 to 4 {lost}",
        f"{topic}-0: offsets 8 to 9 {lost}",
        f"unknown field 'region': {kept}",
        f"unknown field 'tier': {kept}",
    )


def plan_without_writing(spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bring about a micro-batch that is planned and not written, as by a crash before its write."""

    def crash(*_arguments: object) -> int:
        raise RuntimeError("crash")

    with monkeypatch.context() as patch:
        patch.setattr(tables, "append", crash)
        with pytest.raises(StreamError, match="crash"):
            pipeline.run_layers(spark, settings, "bronze")
    assert pipeline.planned(settings, BRONZE)[:-1] == pipeline.committed(settings, BRONZE)


def test_records_that_expire_under_a_running_query_end_it_with_the_same_words(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    settings = make_settings(topic_partitions=1)
    pipeline.send(settings, [event("a")])

    def on_batch(_done: BatchDone) -> None:
        pipeline.send(settings, [event("b")] * 3)
        let_expire(settings, 3)

    lake = Lake(spark, settings.lake)
    with pytest.raises(CheckpointError, match=r"no longer has offsets 1 to 2 of partition 0 .* data-loss"):
        run(lake, [pipeline.STREAM], ["bronze"], settings, RunOptions("100 ms", on_batch=on_batch))


def test_a_topic_that_was_deleted_and_made_again_is_refused(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    settings = make_settings()
    topic = settings.topic(SOURCE.topic)
    pipeline.send(settings, [event("a")] * 3)
    pipeline.run_layers(spark, settings, "bronze")
    with admin(settings) as client:
        client.delete_topics([topic])
        await_(lambda: topic not in client.list_topics())
        assert "is gone: its offsets run back" in refusal(spark, settings, "bronze")
    create_topics(settings.kafka_bootstrap_servers, {topic: 4})
    assert refusal(spark, settings, "bronze").startswith(f"topic {topic} was deleted and recreated: {BRONZE}")

    (pipeline.checkpoint_of(settings, BRONZE) / "lakehouse.json").unlink()  # as before there were ids
    message = refusal(spark, settings, "bronze")
    assert message.startswith(f"{BRONZE} has read topic {topic} up to 0:3")
    assert "its offsets run back" in message

    other = settings.model_copy(update={"topics": {**settings.topics, SOURCE.topic: f"{topic}-2"}})
    create_topics(settings.kafka_bootstrap_servers, {f"{topic}-2": 4})
    assert f"is of topic {topic}, the settings say {topic}-2" in refusal(spark, other, "bronze")
