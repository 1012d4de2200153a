"""Records in Avro, JSON Schema and Protobuf over a real Kafka, with schemas from a real registry (Apicurio).

Records land as bytes. Silver decodes each by the schema that it names; the contract judges the fields.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession

from lakehouse.common.errors import RegistryError
from lakehouse.common.memory import forget
from lakehouse.common.record_lines import RecordFormat
from lakehouse.dev.samples.loads import Load
from lakehouse.engine.formats import schemas
from lakehouse.engine.formats.decode import decoded
from lakehouse.engine.formats.encoding import registered_encoder
from lakehouse.engine.formats.protobuf import compiled
from lakehouse.engine.formats.protobuf_types import message_class
from lakehouse.engine.layers import bronze
from lakehouse.engine.records.validation import judge
from lakehouse.engine.runtime import troubles
from lakehouse.engine.runtime.runner import RunOptions, run
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.operations.repair.rebuild_silver import Landed, rebuild_silver
from lakehouse.settings import Settings
from lakehouse.settings.registry_access import RegistryAccess
from lakehouse.storage.kafka.schema_registry import Missing, Registered, register
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Source
from tests.support import pipeline
from tests.support.commands import Ended, run_command
from tests.support.pipeline import DEAD_LETTERS, SILVER, STREAM, Raw
from tests.support.processes import unused_port
from tests.support.registries import Registry, registry
from tests.support.settings import MakeSettings
from tests.support.streams import SALES, STREAMS, under

AT_MS = 1_767_225_600_000  # 2026-01-01
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
TOPIC = "metrics-events"
FIELDS = ("service_id", "metric_name", "value", "environment")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry(tmp_path_factory.mktemp("registry")) as found:
        yield found


def avro(schema: dict[str, Any], record: dict[str, Any]) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), record)
    return written.getvalue()


def framed(schema_id: int, body: bytes) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + body


def schema(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "Metric",
        "fields": [{"name": name, "type": type_} for name, type_ in fields],
    }


def settings_of(make_settings: MakeSettings, running: Registry, format_: str) -> Settings:
    return make_settings(
        {
            "streams": {"metrics": {"format": format_}},
            "schema_registry.url": running.access.url,
            "kafka.topic_partitions": 1,
        }
    )


def send_and_judge(spark: SparkSession, settings: Settings, values: Iterable[bytes | None]) -> None:
    pipeline.send(settings, [Raw(value, key=b"k") for value in values])
    pipeline.run_layers(spark, settings, "bronze", "silver")


def clean(settings: Settings) -> list[tuple[Any, ...]]:
    rows = sorted(pipeline.rows_of(settings, SILVER), key=lambda row: row["offset"])
    return [(row["offset"], *(row[name] for name in FIELDS), row["event_time"]) for row in rows]


def refused(settings: Settings) -> list[tuple[Any, ...]]:
    rows = sorted(pipeline.rows_of(settings, DEAD_LETTERS), key=lambda row: row["offset"])
    return [(row["offset"], [(one["rule"], one["column"]) for one in row["reasons"]]) for row in rows]


def test_each_record_is_read_by_its_writers_schema_and_judged_by_the_contract(
    spark: SparkSession, make_settings: MakeSettings, running: Registry
) -> None:
    settings = settings_of(make_settings, running, "avro")
    source = under(settings, STREAM).sources[0]
    encode = registered_encoder(source, "of the contract")
    older = schema(
        ("metricName", "string"),
        ("serviceId", ["null", "string"]),
        ("host", "string"),
        ("value", "float"),
        ("timestamp", {"type": "long", "logicalType": "timestamp-micros"}),
    )
    without = schema(("serviceId", "string"), ("metricName", "string"), ("timestamp", "long"))
    textual = schema(("serviceId", "string"), ("metricName", "int"), ("value", "string"))
    ids = {
        name: register(running.access, name, Registered("AVRO", json.dumps(one)))
        for name, one in (("older", older), ("without", without), ("textual", textual))
    }
    ids["itself"] = register(running.access, "itself", Registered("AVRO", '"string"'))
    record = {
        "serviceId": "api",
        "metricName": "cpu",
        "value": 1.5,
        "timestamp": AT_MS,
        "environment": "test",
    }
    of_older = {"metricName": "cpu", "serviceId": "old", "host": "h", "value": 0.1}
    of_older["timestamp"] = datetime(2026, 1, 1, 0, 0, 0, 123_456, tzinfo=UTC)
    good, old = encode(json.dumps(record).encode()), framed(ids["older"], avro(older, of_older))
    assert good is not None
    values = (
        good,
        old,
        encode(json.dumps(record | {"environment": None, "value": -3}).encode()),
        framed(ids["older"], avro(older, of_older | {"serviceId": None})),
        encode(json.dumps(record | {"serviceId": "", "value": 1e200}).encode()),
        framed(ids["older"], avro(older, of_older | {"value": float("nan")})),
        encode(json.dumps(record | {"timestamp": 17}).encode()),
        framed(ids["without"], avro(without, {"serviceId": "a", "metricName": "m", "timestamp": AT_MS})),
        framed(ids["textual"], avro(textual, {"serviceId": "a", "metricName": 1, "value": "x"})),
        good.replace(b"\x06api", b"\x06a\xffi"),
        good[:-3],
        good + b"\x00",
        good[:5] + b"\xfe\xff\xff\xff\x07" + good[5:],  # as if a gigabyte of text followed
        framed(ids["itself"], b"\x02a"),
        framed(0xFFFFFF, good[5:]),
        b"\x00\x00",
        json.dumps(record).encode(),
        None,
    )
    send_and_judge(spark, settings, values)

    at = AT_MS * 1000
    expected = [
        (0, "api", "cpu", 1.5, "test", at),
        (1, "old", "cpu", 0.10000000149011612, None, at + 123_456),
        (2, "api", "cpu", -3.0, None, at),
    ]
    letters = [
        (3, [("null_field", "service_id")]),
        (4, [("empty_string", "service_id"), ("beyond_magnitude", "value")]),
        (5, [("not_finite", "value")]),
        (6, [("bad_timestamp", "event_time")]),
        (7, [("schema_lacks_field", "value")]),
        (8, [("wrong_type", "metric_name"), ("wrong_type", "value")]),
        (9, [("not_utf8", "service_id")]),
        (10, [("undecodable", None)]),
        (11, [("trailing_bytes", None)]),
        (12, [("undecodable", None)]),
        (13, [("undecodable", None)]),
        (14, [("unknown_schema", None)]),
        (15, [("not_framed", None)]),
        (16, [("not_framed", None)]),
        (17, [("value_null", None)]),
    ]
    assert clean(settings) == expected
    assert refused(settings) == letters
    landed = sorted(pipeline.rows_of(settings, pipeline.BRONZE), key=lambda row: row["offset"])
    assert [row["value"] for row in landed] == list(values)

    running.stop()  # the lake's schemas are enough, except for the id that the registry did not know
    try:
        forget()
        for table in (SILVER, DEAD_LETTERS):
            shutil.rmtree(pipeline.path_of(settings, table))
        with pytest.raises(RegistryError, match=r"does not answer the request for schema 16777215: "):
            pipeline.run_layers(spark, settings, "silver")
    finally:
        running.start()
    pipeline.run_layers(spark, settings, "silver")
    assert (clean(settings), refused(settings)) == (expected, letters)


def told(settings: Settings) -> dict[int, str]:
    """Return the message of each letter's first reason, by offset."""
    return {row["offset"]: row["reasons"][0]["message"] for row in pipeline.rows_of(settings, DEAD_LETTERS)}


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that collects the number of registry requests of each micro-batch."""
    asked: list[int] = []
    look_up = schemas.SchemaStore.look_up

    def counting(store: schemas.SchemaStore, *arguments: Any) -> schemas.Found:
        found = look_up(store, *arguments)
        asked.append(found.asked)
        return found

    monkeypatch.setattr(schemas.SchemaStore, "look_up", counting)
    return asked


@pytest.mark.soak
def test_bytes_that_look_like_ids_cost_few_requests_and_crowd_out_no_schema(
    spark: SparkSession, make_settings: MakeSettings, running: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(make_settings, running, "avro")
    encode = registered_encoder(under(settings, STREAM).sources[0], "of the contract")
    record = {"serviceId": "api", "metricName": "cpu", "value": 1.5, "timestamp": AT_MS}
    good = encode(json.dumps(record).encode())
    assert good is not None
    impossible = [framed(one, b"\x01\x02") for one in (0, 1 << 31, 0xFFFFFFFF)]
    junk = [framed(900_000 + one, b"") for one in range(1_500)]
    asked = counted(monkeypatch)
    forget()
    send_and_judge(spark, settings, [*impossible, good, good, *junk])
    assert asked == [1 + schemas.MOST_MISSING]
    assert [row[0] for row in clean(settings)] == [3, 4]
    of_ids = told(settings)
    assert of_ids[0] == "no registry has a schema 0: ids range from 1 to 2,147,483,647"
    assert of_ids[1] == "no registry has a schema 2147483648: ids range from 1 to 2,147,483,647"
    assert of_ids[2] == "no registry has a schema 4294967295: ids range from 1 to 2,147,483,647"
    looked_up = [
        one for one in range(1_500) if of_ids[5 + one] == f"the registry has no schema {900_000 + one}"
    ]
    assert looked_up == list(range(schemas.MOST_MISSING))
    assert of_ids[5 + 1_499] == (
        "schema 901499 was not looked up: too many other ids in the micro-batch have no schema; "
        "replay the record to look it up"
    )
    assert {rules for _, rules in refused_rules(settings)} == {("unknown_schema",)}

    forget()  # another process knows only the lake's files; here the good id is the rarest
    twice = [framed(700_000 + one, b"") for one in range(1_100) for _ in range(2)]
    send_and_judge(spark, settings, [*twice, good])
    send_and_judge(spark, settings, [*twice[:40], good])
    assert asked[1:] == [schemas.MOST_MISSING, 0]
    assert len(clean(settings)) == 4


def refused_rules(settings: Settings) -> set[tuple[int, tuple[str, ...]]]:
    return {(offset, tuple(rule for rule, _ in reasons)) for offset, reasons in refused(settings)}


def test_a_kept_schema_that_is_damaged_is_asked_for_again_or_its_file_is_named(
    spark: SparkSession, tmp_path: Path, running: Registry
) -> None:
    schema_ = Registered("AVRO", '{"type":"record","name":"kept","fields":[]}')
    one = register(running.access, "kept", schema_)
    away = replace(running.access, url="http://127.0.0.1:1")
    file = tmp_path / schemas.DIRECTORY / f"{one}.json"

    def look_up(access: RegistryAccess, schema_id: int) -> schemas.Found:
        return schemas.SchemaStore(str(tmp_path)).look_up(spark, access, [schema_id])

    assert look_up(running.access, one) == schemas.Found({one: schema_}, {}, 1)
    assert look_up(away, one) == schemas.Found({one: schema_}, {}, 0)
    whole = file.read_bytes()
    other_kind = b'{"kind": "XSD", "text": "x", "has_references": false}'
    for damaged in (b"", whole[:-7], b"[]", b"null", b"\x00", b"\xff", b'{"kind": "AVRO"}', other_kind):
        file.write_bytes(damaged)
        with pytest.raises(RegistryError, match=rf"does not answer .*; {file} is damaged: restore it from"):
            look_up(away, one)
        assert look_up(running.access, one) == schemas.Found({one: schema_}, {}, 1)
        assert file.read_bytes() == whole

    other = file.with_name("888888.json")
    other.write_bytes(b"{")
    store = schemas.SchemaStore(str(tmp_path))
    with pytest.raises(
        RegistryError, match=rf"the registry has no schema 888888; {other} is damaged: restore"
    ):
        store.look_up(spark, running.access, [888_888])
    other.unlink()
    assert store.look_up(spark, running.access, [888_888]).missing == {888_888: Missing()}


@pytest.mark.soak
def test_a_url_that_leads_to_no_registry_makes_no_letters(
    spark: SparkSession, make_settings: MakeSettings, running: Registry
) -> None:
    settings = settings_of(make_settings, running, "avro")
    elsewhere = settings.schema_registry.url.removesuffix("/ccompat/v7")
    wrong = settings.changed({"schema_registry.url": elsewhere})
    pipeline.send(settings, [Raw(framed(1, b""), key=b"k")])
    forget()
    with pytest.raises(
        RegistryError, match=r"apis is not a schema registry, or it rejects this user: it answered 404, "
    ):
        pipeline.run_layers(spark, wrong, "bronze", "silver")
    assert refused(settings) == []


def test_that_there_is_no_schema_is_remembered_for_a_while_and_of_few_ids(
    spark: SparkSession, tmp_path: Path, running: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schemas, "MOST_REMEMBERED", 3)
    at = [1_000.0]
    store = schemas.SchemaStore(str(tmp_path), now=lambda: at[0])

    def look_up(*ids: int) -> schemas.Found:
        return store.look_up(spark, running.access, ids)

    first = look_up(800_001, 800_002)
    assert (first.schemas, first.missing, first.asked) == ({}, {800_001: Missing(), 800_002: Missing()}, 2)
    at[0] += 59
    again = look_up(800_002, 800_001, 800_003)
    assert (set(again.missing), again.asked) == ({800_001, 800_002, 800_003}, 1)
    at[0] += 2
    assert look_up(800_001, 800_003).asked == 1
    assert look_up(800_004, 800_005).asked == 2
    assert look_up(800_001, 800_004, 800_005).asked == 0
    assert look_up(800_003).asked == 1


PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Other { string serviceId = 1; }
message Outer {
  enum Kind { NONE = 0; CPU = 7; }
  message Metric {
    string service_id = 1;
    Kind metricName = 2;
    google.protobuf.FloatValue value = 3;
    google.protobuf.Timestamp timestamp = 4;
    repeated int64 more = 5;
  }
}
"""


def varint(number: int) -> bytes:
    """Return an index encoded as Protobuf encodes signed numbers."""
    return bytes([number << 1])


@pytest.mark.soak
def test_messages_of_protobuf_are_found_by_their_indexes_and_judged_by_the_contract(
    spark: SparkSession, make_settings: MakeSettings, running: Registry
) -> None:
    settings = settings_of(make_settings, running, "protobuf")
    source = under(settings, STREAM).sources[0]
    encode = registered_encoder(source, "in protobuf")
    other = register(running.access, "other.proto", Registered("PROTOBUF", PROTO))
    metric = message_class(compiled(PROTO), [1, 0])

    def of_other(**values: Any) -> bytes:
        stamp = {"seconds": AT_MS // 1000, "nanos": 123_456_789}
        body = metric(
            **({"timestamp": stamp, "value": {"value": 0.5}, "service_id": "o", "metricName": 7} | values)
        )
        return framed(other, varint(2) + varint(1) + varint(0) + body.SerializeToString())

    record = {
        "serviceId": "api",
        "metricName": "cpu",
        "value": 1.5,
        "timestamp": AT_MS,
        "environment": "test",
    }
    good = encode(json.dumps(record).encode())
    assert good is not None
    values = (
        good,
        of_other(),
        encode(json.dumps(record | {"environment": None, "value": 0}).encode()),
        of_other(metricName=3, more=[1]),
        of_other(service_id="", value=None),
        encode(json.dumps(record | {"serviceId": ""}).encode()),
        encode(json.dumps(record | {"value": float("nan")}).encode()),
        encode(json.dumps(record | {"timestamp": -1}).encode()),
        good[:-3],
        framed(other, varint(2) + varint(1) + varint(9)),
        framed(other, b"\x00" + b"\x0a\x01a"),
        framed(0xFFFFFF, b"\x00"),
        json.dumps(record).encode(),
        None,
    )
    send_and_judge(spark, settings, values)

    at = AT_MS * 1000
    assert clean(settings) == [
        (0, "api", "cpu", 1.5, "test", at),
        (1, "o", "CPU", 0.5, None, at + 123_456),
        (2, "api", "cpu", 0.0, None, at),
        (3, "o", "3", 0.5, None, at + 123_456),
    ]
    assert refused(settings) == [
        (4, [("empty_string", "service_id"), ("missing_field", "value")]),
        (5, [("empty_string", "service_id")]),
        (6, [("not_finite", "value")]),
        (7, [("bad_timestamp", "event_time")]),
        (8, [("undecodable", None)]),
        (9, [("undecodable", None)]),
        (10, [("schema_lacks_field", "metric_name"), ("schema_lacks_field", "value")]),
        (11, [("unknown_schema", None)]),
        (12, [("not_framed", None)]),
        (13, [("value_null", None)]),
    ]


def test_json_with_a_schema_is_judged_as_json_behind_its_first_bytes(
    spark: SparkSession, make_settings: MakeSettings, running: Registry
) -> None:
    settings = settings_of(make_settings, running, "json-schema")
    encode = registered_encoder(under(settings, STREAM).sources[0], "with a schema")
    record = {"serviceId": "api", "metricName": "cpu", "value": 1.5, "timestamp": AT_MS}
    values = (
        encode(json.dumps(record).encode()),
        encode(json.dumps(record | {"value": "1"}).encode()),
        encode(b"{"),
        json.dumps(record).encode(),
        None,
    )
    send_and_judge(spark, settings, values)
    assert clean(settings) == [(0, "api", "cpu", 1.5, None, AT_MS * 1000)]
    assert refused(settings) == [
        (1, [("wrong_type", "value")]),
        (2, [("not_json", None)]),
        (3, [("not_framed", None)]),
        (4, [("value_null", None)]),
    ]


def test_a_contract_is_registered_and_compared_with_what_the_registry_has(running: Registry) -> None:
    environment = {
        "LAKEHOUSE_SCHEMA_REGISTRY_URL": running.access.url,
        "LAKEHOUSE_STREAMS": '{"metrics": {"format": "avro"}}',
        "LAKEHOUSE_TOPICS": json.dumps({TOPIC: "published"}),
    }

    def contract(command: str, **more: str) -> Ended:
        return run_command(environment | more, "contract", command, "metrics")

    assert contract("check").returncode == 2, "there is nothing to compare with"
    first = contract("publish")
    assert (first.returncode, first.stdout) == (0, contract("publish").stdout)
    assert first.stdout.startswith("published-value: schema ")
    done = contract("check")
    assert (done.returncode, done.stdout) == (
        0,
        "the newest schema of published-value: compatible with the contract of published\n",
    )
    away = contract("check", LAKEHOUSE_SCHEMA_REGISTRY_URL=f"http://127.0.0.1:{unused_port()}")
    assert (away.returncode, "does not answer" in away.stderr) == (2, True)


@pytest.mark.soak
def test_silver_is_rebuilt_without_a_registry(
    spark: SparkSession, make_settings: MakeSettings, running: Registry
) -> None:
    settings = settings_of(make_settings, running, "avro")
    source = under(settings, STREAM).sources[0]
    encode = registered_encoder(source, "rebuilt")
    record = {"serviceId": "api", "metricName": "cpu", "value": 1.5, "timestamp": AT_MS}
    pipeline.send(settings, [Raw(encode(json.dumps(record | {"value": value}).encode())) for value in (1, 2)])
    pipeline.run_layers(spark, settings, "bronze", "silver")
    lake = Lake(spark, settings.lake)
    spark.sql(f"DELETE FROM delta.`{pipeline.path_of(settings, SILVER)}` WHERE value = 2")
    running.stop()
    try:
        forget()
        done = rebuild_silver(lake, under(settings, STREAM), Landed(), NOW)
    finally:
        running.start()
    assert (done.judged, done.inserted, done.changed, done.newly_refused) == (2, 1, 0, 0)
    assert [row[3] for row in clean(settings)] == [1.0, 2.0]


@pytest.mark.soak
def test_a_registry_that_is_away_is_waited_for_and_other_streams_go_on(
    spark: SparkSession,
    make_settings: MakeSettings,
    running: Registry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(troubles, "FIRST_PAUSE_S", 0.1)
    settings = settings_of(make_settings, running, "avro")
    streams = [under(settings, STREAM), under(settings, SALES)]
    encode = registered_encoder(streams[0].sources[0], "away")
    record = {"serviceId": "api", "metricName": "cpu", "value": 1.5, "timestamp": AT_MS}
    pipeline.send(settings, [Raw(encode(json.dumps(record).encode())), Raw(b"{}")])
    pipeline.send(settings, [Raw(b'{"product":"p","value":1}', key=b"p")], SALES.sources[0])
    told: list[str] = []
    options = RunOptions(AVAILABLE_NOW, on_notice=told.append)
    forget()
    running.stop()
    try:
        with pytest.raises(RegistryError, match="does not answer"):
            run(Lake(spark, settings.lake), streams, ("bronze", "silver"), settings, options)
    finally:
        running.start()
    assert told[0].startswith(
        "silver.metrics_events failed; retrying in 0.1 s: the schema registry at http://127.0.0.1:"
    )
    assert len(pipeline.rows_of(settings, "silver.sales_events")) == 1
    assert (clean(settings), refused(settings)) == ([], [])

    run(Lake(spark, settings.lake), streams, ("bronze", "silver"), settings, options)
    assert clean(settings) == [(0, "api", "cpu", 1.5, None, AT_MS * 1000)]
    assert refused(settings) == [(1, [("not_framed", None)])]


@pytest.mark.soak
@pytest.mark.parametrize("format_", ["avro", "protobuf", "json-schema"])
def test_samples_give_the_same_rows_in_every_format(
    spark: SparkSession, lake_settings: Settings, running: Registry, format_: RecordFormat
) -> None:
    landed_at = datetime.now(UTC)
    for stream in STREAMS:
        load = Load(stream, 150, shape={"tombstones": 0.1} if stream is SALES else {})
        sent = list(load.samples(lake_settings))
        for number, source in enumerate(stream.sources):
            encode = registered_encoder(
                replace(source, format=format_, registry=running.access), f"{source.topic} {format_}"
            )
            samples = [one for one in sent if one.source == number]

            def judged(source: Source, values: Iterable[bytes | None], keys: Sequence[Any]) -> list[Any]:
                rows = [
                    (key, value, None, "t", 0, offset, NOW, 0, landed_at, None)
                    for offset, (key, value) in enumerate(zip(keys, values, strict=True))
                ]
                frame = local_frame(spark, rows, bronze.SCHEMA)
                found = judge(decoded(frame, source, None), source, None)
                return pipeline.in_micros(found).drop("raw").orderBy("offset").collect()

            keys = [one.key for one in samples]
            as_json = judged(source, [one.value for one in samples], keys)
            other = replace(source, format=format_, registry=running.access)
            assert judged(other, [encode(one.value) for one in samples], keys) == as_json
            assert all(row["reasons"] == [] for row in as_json)
