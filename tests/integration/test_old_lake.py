"""A lake that an earlier version has made is opened and carried on: rows, checkpoints, transactions, books.

The archive stays as it is; `tests.fixtures.make_lake` says what is in it and how it was made. Its topics are
made again by sending what its bronze has, so only their ids differ from those that its checkpoints know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from pyspark.sql import SparkSession

from lakehouse.audit import audit
from lakehouse.layers.query import LayerName
from lakehouse.records.dead_letters import Selection
from lakehouse.repair.replay import replay
from lakehouse.runtime.runner import BatchDone, RunOptions, run, utc_now
from lakehouse.runtime.triggers import AVAILABLE_NOW
from lakehouse.sandbox.services import Endpoints
from lakehouse.settings import Settings
from lakehouse.stream import Stream
from lakehouse.streams import STREAMS
from lakehouse.streams.metrics import METRICS
from lakehouse.tables import Lake
from lakehouse.topics import describe_topic
from tests import old_lakes, pipeline, verdicts
from tests.fixtures import make_lake
from tests.fixtures.make_lake import (
    NOW,
    OPEN_CALL,
    SOURCES,
    START,
    TOPICS,
    at,
    call,
    metric,
    sale,
    spent,
    tombstone,
)
from tests.old_lakes import QUERIES
from tests.pipeline import Raw, Row

LATER = OPEN_CALL + timedelta(hours=1)
NEW: make_lake.Records = {
    "metrics_events": [metric(5.0, 16), metric(7.0, 900), Raw(b"{", partition=0)],
    "call_analytics": [
        call("analytics", {"joined": True}, at(50, OPEN_CALL)),
        call("analytics", None, at(50, LATER)),
    ],
    "call_metrics": [call("metrics", "before its beginning", at(-20))],
    "sales_events": [sale("table", "2000", 80), sale("chair", "-2000", 90), tombstone("lamp")],
    "transactions": [spent("u1", "0.000000001", 42), spent("u4", "5", 43), spent("u4", "-5", 44)],
}


def delete_topics(settings: Settings) -> None:
    """Let go of topics that another test has made; returns when the broker knows of none."""
    names = list(TOPICS.values())
    client = KafkaAdminClient(bootstrap_servers=settings.kafka_bootstrap_servers)
    try:
        standing = [name for name in names if name in client.list_topics()]
        if standing:
            client.delete_topics(standing)
            pipeline.await_(lambda: not set(names) & set(client.list_topics()))
    finally:
        client.close()


def send_again(settings: Settings, bronze: Mapping[str, Sequence[Row]]) -> None:
    """Make the topics that bronze has read, with the same records at the same places."""
    delete_topics(settings)
    make_lake.make_topics(settings)
    for name, rows in bronze.items():
        records = [
            Raw(
                row["value"],
                row["key"],
                tuple((header["key"], header["value"]) for header in row["headers"] or ()),
                row["partition"],
                row["timestamp"] // 1000,
            )
            for row in sorted(rows, key=pipeline.coordinates_of)
        ]
        pipeline.send(settings, records, SOURCES[name])
        topic = describe_topic(settings.kafka_bootstrap_servers, settings.topic(SOURCES[name].topic))
        assert topic is not None
        noted = pipeline.checkpoint_of(settings, f"bronze.{name}") / "lakehouse.json"
        identity = json.loads(noted.read_text())
        noted.write_text(json.dumps(identity | {"topic": identity["topic"] | {"id": topic.id}}))
        noted.with_name(".lakehouse.json.crc").unlink(missing_ok=True)


def catch_up(
    spark: SparkSession, streams: Sequence[Stream], layers: Sequence[LayerName], settings: Settings
) -> list[BatchDone]:
    done: list[BatchDone] = []
    trigger = AVAILABLE_NOW
    run(
        Lake(spark, settings.lake),
        streams,
        layers,
        settings,
        RunOptions(trigger, on_batch=done.append, clock=lambda: LATER),
    )
    return done


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("is_audited", [False, True], ids=["compared", "audited"])
def test_a_lake_of_an_earlier_version_is_carried_on_and_its_books_balance(
    spark: SparkSession, session_settings: Settings, services: Endpoints, tmp_path: Path, *, is_audited: bool
) -> None:
    settings = old_lakes.unpack(session_settings, tmp_path).model_copy(
        update={"kafka_bootstrap_servers": services.kafka}
    )
    before = old_lakes.bronze_of(settings)
    assert {name: len(rows) for name, rows in before.items()} == {
        name: len(records) + len(make_lake.SECOND[name]) for name, records in make_lake.FIRST.items()
    }
    assert {
        (row["ts"], row["status"])
        for row in pipeline.rows_of(settings, "gold.call_records")
        if row["user1"] == "ann"
    } == {(pipeline.micros(START), "closed"), (pipeline.micros(OPEN_CALL), "open")}
    assert old_lakes.gold_differences(settings, old_lakes.judged(before, settings), NOW) == []
    send_again(settings, before)

    # Every query's last micro-batch comes again, as after a crash just before its checkpoint took note, and
    # after it new records.
    assert [pipeline.forget_last_commit(settings, query) for query in QUERIES] == [1] * len(QUERIES)
    make_lake.send(settings, NEW)
    done = catch_up(spark, STREAMS, ["bronze", "silver", "gold"], settings)
    assert {one.query: one.result.rows for one in done if one.batch == 1} == dict.fromkeys(QUERIES, 0)
    assert {one.query for one in done if one.batch == 2} == set(QUERIES)

    # A letter of then is let in, though it is late.
    lake, late = Lake(spark, settings.lake), Selection(rule="late")
    assert replay(lake, [METRICS], settings, late, utc_now(), allow_late=True).passed == 1
    catch_up(spark, [METRICS], ["gold"], settings)

    bronze = old_lakes.bronze_of(settings)
    assert {name: len(rows) for name, rows in bronze.items()} == {
        name: len(rows) + len(NEW[name]) for name, rows in before.items()
    }
    judged = {name: verdicts.judge_batches([rows], settings, SOURCES[name]) for name, rows in bronze.items()}
    for name, found in judged.items():
        assert verdicts.same_silver(pipeline.rows_of(settings, f"silver.{name}"), found), name
    assert old_lakes.gold_differences(settings, judged, LATER) == []
    if not is_audited:
        return
    report = audit(lake, STREAMS, settings, utc_now())
    assert [check for check in report.checks if check.differences] == []
    assert report.is_clean
    assert {(check.stream, check.name) for check in report.checks if check.compared} >= {
        (stream.name, name) for stream in STREAMS for name in ("files", "landed", "books", "gold")
    }
