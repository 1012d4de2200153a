"""Refusals: tables and topics that do not match what was read from them.

A lake of one stream is filled twice; most tests break one part of it, meet the refusal, and repair it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, TopicPartition
from pyspark.sql import SparkSession

from lakehouse.common.errors import PositionError, StreamError, TableError
from lakehouse.dev.services.services import Endpoints
from lakehouse.engine.layers import Allow, LayerName
from lakehouse.engine.runtime.runner import BatchDone, RunOptions, run
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.operations.audit.files import check_files
from lakehouse.operations.audit.landing import check_landing
from lakehouse.operations.catalog import spark_sql as catalog
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.kafka.topics import create_topics
from lakehouse.storage.tables import Lake
from lakehouse.streams.window_lengths import Seconds
from tests.support import pipeline
from tests.support.pipeline import BRONZE, DEAD_LETTERS, GOLD, SILVER, SOURCE, STREAM, Raw, await_
from tests.support.settings import MakeSettings, settings_for
from tests.support.streams import METRICS_1M, STREAMS, under, with_streams

LAYERS: tuple[LayerName, ...] = ("bronze", "silver", "gold")
LOSSES = "ops.data_losses"


def event(service: str, **more: object) -> Raw:
    record = {"serviceId": service, "metricName": "m", "value": 1.0, "timestamp": 1_767_225_600_000}
    return Raw(json.dumps(record | more).encode(), partition=0)


@pytest.fixture(scope="module")
def settings(
    spark: SparkSession,
    session_settings: Settings,
    services: Endpoints,
    tmp_path_factory: pytest.TempPathFactory,
) -> Settings:
    """Return the settings of a lake that has been filled twice."""
    made = settings_for(session_settings, services, tmp_path_factory.mktemp("guards"))
    pipeline.send(made, [event("a"), Raw(b"not JSON", partition=0)])
    pipeline.run_layers(spark, made, *LAYERS)
    pipeline.send(made, [event("b"), event("b")])
    done = pipeline.run_layers(spark, made, *LAYERS)
    assert [(one.query, one.batch) for one in done] == [(BRONZE, 2), (SILVER, 2), (GOLD, 2)]
    return made


@contextmanager
def replaced(path: Path, other: Path | None = None) -> Iterator[None]:
    """Put another directory, or none, in place of one, which is restored at the end."""
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    try:
        if other is not None:
            shutil.copytree(other, path)
        yield
    finally:
        pipeline.remove(path)
        aside.rename(path)


def refusal(spark: SparkSession, settings: Settings, layer: LayerName) -> str:
    """Return the message that refuses a layer; check that no table has been written."""
    before = pipeline.versions(settings)
    with pytest.raises(PositionError) as refused:
        pipeline.run_layers(spark, settings, layer)
    after = pipeline.versions(settings)
    assert {table: version for table, version in after.items() if before[table] >= 0} == {
        table: version for table, version in before.items() if version >= 0
    }
    message = str(refused.value)
    assert "\n" not in message
    return message


@pytest.mark.soak
def test_a_table_with_column_mapping_is_refused_by_that_name_where_layers_start(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    path = pipeline.path_of(settings, SILVER)
    copy = shutil.copytree(path, tmp_path / SILVER)
    with replaced(path, copy):
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
        before = pipeline.versions(settings)
        with pytest.raises(TableError, match=rf"^{SILVER} at .* has Delta's table feature columnMapping"):
            pipeline.run_layers(spark, settings, *LAYERS)
        assert "columnMapping" in str(check_files(Lake(spark, settings.lake), STREAM))
        assert pipeline.versions(settings) == before


@pytest.mark.soak
def test_dead_letters_of_a_table_that_is_gone_are_refused(spark: SparkSession, settings: Settings) -> None:
    with replaced(pipeline.path_of(settings, SILVER)):
        message = refusal(spark, settings, "silver")

    assert message.startswith(f"{SILVER} has no recorded position, but rows already exist in {DEAD_LETTERS}")
    assert f"the rows of {pipeline.path_of(settings, DEAD_LETTERS)} where job = '{SILVER}'" in message


def test_gold_without_a_table_is_made_anew_from_silver(spark: SparkSession, settings: Settings) -> None:
    right = pipeline.rows_of(settings, GOLD)
    assert {row["service_id"]: row["count"] for row in right} == {"a": 1, "b": 2}
    with replaced(pipeline.path_of(settings, GOLD)):
        pipeline.run_layers(spark, settings, "gold")
        anew = pipeline.rows_of(settings, GOLD)

    assert exact(anew) == exact(right)


def exact(rows: list[pipeline.Row]) -> list[str]:
    """Return rows without what a rerun may change: sketches, and when a letter was written."""
    leaves = {"sketch", "first_seen", "last_attempt"}
    return sorted(str({name: value for name, value in row.items() if name not in leaves}) for row in rows)


@pytest.mark.parametrize(
    ("layer", "setting", "value"),
    [("gold", "quantile_k", 100)],
)
def test_a_setting_that_rows_depend_on_cannot_change_under_them(
    spark: SparkSession, settings: Settings, layer: LayerName, setting: str, value: int
) -> None:
    versions = pipeline.versions(settings)
    changed = with_streams(settings, metrics={setting: value})

    with pytest.raises(TableError) as refused:
        pipeline.run_layers(spark, changed, layer, stream=under(changed, pipeline.STREAM))

    table = {"silver": SILVER, "gold": GOLD}[layer]
    said = f"{table} was made with streams.metrics.{setting} = 1600, but the settings say {value}"
    assert said in str(refused.value)
    assert f"recompute the rows with `lakehouse rebuild {layer}`" in str(refused.value)
    assert pipeline.versions(settings) == versions


@pytest.mark.parametrize(
    ("changed", "was"),
    [
        pytest.param({"window": Seconds(300)}, "window_s = 60, but the stream now declares 300", id="window"),
        pytest.param(
            {"keys": ("service_id", "window_start")},
            "keys = service_id,metric_name,window_start, but the stream now declares service_id,window_start",
            id="keys",
        ),
    ],
)
def test_other_windows_or_keys_are_refused(
    spark: SparkSession, settings: Settings, changed: dict[str, object], was: str
) -> None:
    stream = replace(pipeline.STREAM, gold=(replace(METRICS_1M, **changed),))  # type: ignore[arg-type]

    with pytest.raises(TableError) as refused:
        pipeline.run_layers(spark, settings, "gold", stream=stream)

    assert f"{GOLD} was made with {was}; existing rows depend on this setting" in str(refused.value)
    assert "LAKEHOUSE_KEYS" not in str(refused.value)


# The topic.


@contextmanager
def admin(settings: Settings) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=settings.kafka.bootstrap_servers)
    try:
        yield client
    finally:
        client.close()


def let_expire(settings: Settings, before: int) -> None:
    """Have the broker delete the records of partition 0 before an offset."""
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


@pytest.mark.soak
@pytest.mark.usefixtures("nameless")
def test_expired_offsets_are_refused_until_they_are_allowed_and_noted(
    spark: SparkSession, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings()
    topic = settings.topic(SOURCE.topic)

    pipeline.send(settings, [event("a")] * 2)
    let_expire(settings, 1)  # records that nothing has read yet are not missed
    assert [one.result.rows for one in run_allowing_loss(spark, settings)[0]] == [1]

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
    assert losses(settings) == [(0, 2, 4, BRONZE)]

    # Records of a micro-batch that could not be written expire before it is retried.
    pipeline.send(settings, [event("c", region="eu", tier=1)] * 4)
    fail_to_write(spark, settings, monkeypatch)
    let_expire(settings, 10)
    assert "offsets 8 to 9 of partition 0" in refusal(spark, settings, "bronze")
    done, _ = run_allowing_loss(spark, settings)
    assert [one.result.rows for one in done] == [2]
    assert offsets(settings) == [1, 5, 6, 7, 10, 11]
    assert losses(settings) == [(0, 2, 4, BRONZE), (0, 8, 9, BRONZE)]

    assert run_allowing_loss(spark, settings) == ([], [])  # nothing more to allow
    assert pipeline.run_layers(spark, settings, "bronze") == []
    assert LOSSES in catalog.define_views(Lake(spark, settings.lake), STREAMS)
    (landed,) = check_landing(
        Lake(spark, settings.lake),
        pipeline.STREAM,
        SOURCE,
        settings.topic(SOURCE.topic),
        settings.kafka.access,
    )
    lost = "never landed; recorded as lost by --allow data-loss or --skip for bronze.metrics_events"
    kept = "in 2 records, first in partition 0 at offset 10; kept in bronze only"
    assert landed.differences == 0
    assert landed.notes[-4:] == (
        f"{topic}-0: offsets 2 to 4 {lost}",
        f"{topic}-0: offsets 8 to 9 {lost}",
        f"unknown field 'region': {kept}",
        f"unknown field 'tier': {kept}",
    )


def fail_to_write(spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a micro-batch planned but not written, as a crash before its write does."""

    def crash(*_arguments: object) -> int:
        raise RuntimeError("crash")

    with monkeypatch.context() as patch:
        patch.setattr(tables, "append", crash)
        with pytest.raises(StreamError, match="crash"):
            pipeline.run_layers(spark, settings, "bronze")


def test_records_that_expire_under_a_running_query_end_it_with_the_same_words(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    settings = make_settings({"kafka.topic_partitions": 1})
    pipeline.send(settings, [event("a")])

    def on_batch(_done: BatchDone) -> None:
        pipeline.send(settings, [event("b")] * 3)
        let_expire(settings, 3)

    lake = Lake(spark, settings.lake)
    with pytest.raises(PositionError, match=r"no longer has offsets 1 to 2 of partition 0 .* data-loss"):
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
        assert "is gone, as if it had been deleted" in refusal(spark, settings, "bronze")
    create_topics(settings.kafka.access, {topic: 4})
    assert refusal(spark, settings, "bronze").startswith(f"topic {topic} was deleted and recreated: {BRONZE}")

    other = settings.changed({"topics": {**settings.topics, SOURCE.topic: f"{topic}-2"}})
    create_topics(settings.kafka.access, {f"{topic}-2": 4})
    assert f"has read topic {topic}, but the settings say {topic}-2" in refusal(spark, other, "bronze")
