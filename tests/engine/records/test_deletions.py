"""The table of forms in docs/ids.md, case by case: an incoming record and the resulting deletion."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import DataFrame, SparkSession

from lakehouse.engine.formats import avro, keys
from lakehouse.engine.layers import bronze
from lakehouse.engine.records import deletions
from lakehouse.engine.records.validation import judge
from lakehouse.storage.kafka.schema_registry import Registered
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.streams.contract import Contract, Field, FieldType
from lakehouse.streams.definition import Source

LANDED = datetime(2026, 1, 1, 12, tzinfo=UTC)
AT = 1_767_225_600_000
ID = Field("id", "id", FieldType.STRING, accepts_numbers=True)
AMOUNT = Field("amount", "amount", FieldType.LONG)
FLAT = Source(
    "t",
    "t",
    Contract((ID, AMOUNT, Field("version", "version", FieldType.LONG))),
    unique_by="id",
    sequence_by="version",
)
REWRITTEN = Source(
    "t",
    "t",
    Contract((ID, AMOUNT, Field("__source_lsn", "lsn", FieldType.LONG)), event_time="at"),
    unique_by="id",
    sequence_by="__source_lsn",
    deletion_key="json:id",
    deleted_if="__deleted=true",
)
ENVELOPE = Source(
    "t",
    "t",
    Contract(
        (
            Field("after.id", "id", FieldType.LONG),
            Field("after.amount", "amount", FieldType.LONG),
            Field("source.lsn", "lsn", FieldType.LONG),
        ),
        event_time="source.ts_ms",
    ),
    unique_by="after.id",
    sequence_by="source.lsn",
    deletion_key="json:id",
    deleted_if="op=d",
)
BY_HEADER = replace(FLAT, sequence_by="header:lsn")

Raw = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]
Judged = tuple[str | None, int | None, bool, list[tuple[str, str]]]


def read(spark: SparkSession, source: Source, records: Sequence[Raw]) -> list[Judged]:
    """Return each record's id, its sequence, whether it is a deletion, and its reasons."""
    return judged_as(source, in_bronze(spark, records))


def in_bronze(spark: SparkSession, records: Sequence[Raw]) -> DataFrame:
    rows = [
        (key, value, headers, "t", 0, offset, LANDED, 0, LANDED, None)
        for offset, (key, value, headers) in enumerate(records)
    ]
    return local_frame(spark, rows, bronze.SCHEMA)


def judged_as(source: Source, rows: DataFrame) -> list[Judged]:
    found: list[Judged] = []
    for row in judge(rows, source, None).orderBy("offset").collect():
        reasons = [(one["rule"], one["message"]) for one in row["reasons"]]
        is_deletion = deletions.DELETION in [rule for rule, _ in reasons]
        found.append((row["_id"], row["_sequence"], is_deletion, reasons))
    return found


def deletes(id_: str, sequence: int | None = None) -> Judged:
    return id_, sequence, True, [("deletion", f"the record deletes {id_}")]


def refused(rule: str, message: str, id_: str | None = None, sequence: int | None = None) -> Judged:
    return id_, sequence, False, [(rule, message)]


NO_TEXT = "a non-empty string or a whole number"
KEYS: dict[str, list[tuple[bytes | None, Judged]]] = {
    "text": [
        (b"a-1", deletes("a-1")),
        (b'"quoted"', deletes('"quoted"')),
        (None, refused("key_null", "a deletion has no key")),
        (b"", refused("key_empty", "a deletion's key is empty")),
        (b"caf\xe9", refused("key_not_utf8", "a deletion's key is not UTF-8: 636166e9")),
    ],
    "json": [
        (b'"quoted"', deletes("quoted")),
        (b" 17 ", deletes("17")),
        (b"17.0", deletes("17")),
        (b"12345678901234567890123", deletes("12345678901234567890123")),
        (b'\x00\x00\x00\x00\x07"framed"', deletes("framed")),
        (b"17 x", refused("bad_key", f"a deletion's key is not JSON with {NO_TEXT}: 17 x")),
        (b"1.5", refused("bad_key", f"a deletion's key is not JSON with {NO_TEXT}: 1.5")),
        (b"true", refused("bad_key", f"a deletion's key is not JSON with {NO_TEXT}: true")),
        (b'""', refused("bad_key", f'a deletion\'s key is not JSON with {NO_TEXT}: ""')),
        (b"a-1", refused("bad_key", f"a deletion's key is not JSON with {NO_TEXT}: a-1")),
        (b'"\xff"', refused("key_not_utf8", "a deletion's key is not UTF-8: 22ff22")),
    ],
    "json:id": [
        (b'{"id":1004}', deletes("1004")),
        (b'{"id":1004.00}', deletes("1004")),
        (b'{"id":"a-1","shop":2}', deletes("a-1")),
        (b'{"a":1}', refused("bad_key", f'a deletion\'s key is not JSON with {NO_TEXT} at id: {{"a":1}}')),
        (b'"a-1"', refused("bad_key", f'a deletion\'s key is not JSON with {NO_TEXT} at id: "a-1"')),
    ],
    "json:payload.id": [
        (b'{"schema":{"type":"struct","optional":false},"payload":{"id":1004}}', deletes("1004")),
    ],
    "json:payload": [
        (b'{"schema":{"type":"int64","optional":false},"payload":17}', deletes("17")),
    ],
    "long": [
        (bytes.fromhex("0000000000000011"), deletes("17")),
        (bytes.fromhex("fffffffffffffffe"), deletes("-2")),
        (bytes.fromhex("8000000000000000"), deletes("-9223372036854775808")),
        (b"17", refused("bad_key", "a deletion's key is not the 8 bytes of a long: 3137")),
    ],
    "int": [
        (bytes.fromhex("00000011"), deletes("17")),
        (bytes.fromhex("fffffffe"), deletes("-2")),
        (
            bytes.fromhex("0000000000000011"),
            refused("bad_key", "a deletion's key is not the 4 bytes of an int: 0000000000000011"),
        ),
    ],
}


COMMON = {"text", "json:id", "long"}


@pytest.mark.parametrize(
    "form", [pytest.param(one, marks=() if one in COMMON else pytest.mark.soak) for one in KEYS]
)
def test_a_key_is_read_in_its_form(spark: SparkSession, form: str) -> None:
    source = replace(FLAT, deletion_key=form)

    found = read(spark, source, [(key, None, []) for key, _ in KEYS[form]])

    assert found == [expected for _, expected in KEYS[form]]


def encoded(number: int, schema: Any, value: Any) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), value)
    return b"\x00" + number.to_bytes(4, "big") + written.getvalue()


STRUCT = {
    "type": "record",
    "name": "Key",
    "namespace": "shop.orders",
    "fields": [{"name": "id", "type": "int"}, {"name": "region", "type": ["null", "string"]}],
}
SCHEMAS = {7: Registered("AVRO", '"string"'), 8: Registered("AVRO", '{"type":"long"}')}
SCHEMAS |= {9: Registered("AVRO", json.dumps(STRUCT)), 10: Registered("PROTOBUF", "")}
IN_AVRO: dict[str, list[tuple[bytes, Judged]]] = {
    "avro": [
        (encoded(7, "string", "a-1"), deletes("a-1")),
        (encoded(8, "long", -2), deletes("-2")),
        (
            encoded(8, "long", 1) + b"x",
            refused(
                "trailing_bytes",
                "a deletion's key, 00000000080278, cannot be read as Avro: extra bytes follow the record "
                "(schema 8)",
            ),
        ),
        (
            b"17",
            refused(
                "not_framed",
                "a deletion's key, 3137, cannot be read as Avro: the value does not begin with a zero byte "
                "and a four-byte schema id: 3137",
            ),
        ),
        (
            b"\x00\x00\x00\x00\x0a1",
            refused(
                "undecodable",
                "a deletion's key, 000000000a31, cannot be read as Avro: schema 10 is a PROTOBUF schema, not "
                "AVRO",
            ),
        ),
        (
            encoded(9, STRUCT, {"id": 1, "region": None}),
            refused("bad_key", f"a deletion's key is not Avro with {NO_TEXT}: 00000000090200"),
        ),
    ],
    "avro:id": [
        (encoded(9, STRUCT, {"id": 1004, "region": "eu"}), deletes("1004")),
        (
            encoded(7, "string", "a-1"),
            refused(
                "undecodable",
                "a deletion's key, 000000000706612d31, cannot be read as Avro: schema 7 is not a record "
                "schema",
            ),
        ),
    ],
}


@pytest.mark.parametrize("form", IN_AVRO)
def test_a_key_in_avro_is_read_by_the_schema_of_its_writer(spark: SparkSession, form: str) -> None:
    source = replace(FLAT, deletion_key=form)
    rows = in_bronze(spark, [(key, None, []) for key, _ in IN_AVRO[form]])

    decoded = keys.decoded(rows, source, lambda them, of, decode: decode(them, of, SCHEMAS))

    assert judged_as(source, decoded) == [expected for _, expected in IN_AVRO[form]]


def envelope(op: Any, before: Any, after: Any, lsn: Any = 9) -> bytes:
    told = {"before": before, "after": after, "source": {"lsn": lsn, "ts_ms": AT}, "op": op, "ts_ms": AT}
    return json.dumps(told).encode()


ROW = {"id": 1004, "amount": 5}
ACCEPTED: Judged = ("1004", 9, False, [])
NO_BEFORE = "the deletion has no before.id that is a string or whole number"


def test_a_deletion_in_debeziums_envelope_has_the_id_in_before_and_the_sequence_of_the_event(
    spark: SparkSession,
) -> None:
    cases: list[tuple[Raw, Judged]] = [
        ((None, envelope("c", None, ROW), []), ACCEPTED),
        ((None, envelope("d", ROW, None), []), deletes("1004", 9)),
        ((b'{"id":1004}', None, []), deletes("1004")),
        ((None, envelope("d", {"id": 7, "amount": None}, None, lsn=None), []), deletes("7")),
        ((None, envelope("c", None, {"id": 1004.0, "amount": 5.0}, lsn=9.0), []), ACCEPTED),
        ((None, envelope("d", {"id": 1004.0}, None, lsn=9.0), []), deletes("1004", 9)),
        ((None, envelope("d", None, None), []), refused("missing_id", NO_BEFORE, sequence=9)),
        (
            (None, envelope("d", {"id": 1.5}, None), []),
            refused("missing_id", f"{NO_BEFORE}: 1.5", sequence=9),
        ),
        (
            (None, envelope("d", ROW, None, lsn="9"), []),
            refused("bad_sequence", 'the deletion\'s source.lsn is not a 64-bit integer: "9"', "1004"),
        ),
    ]

    assert read(spark, ENVELOPE, [raw for raw, _ in cases]) == [expected for _, expected in cases]


def test_without_a_mark_an_envelope_that_deletes_breaks_the_contract(spark: SparkSession) -> None:
    source = replace(ENVELOPE, deleted_if=None)

    ((_, _, is_deletion, reasons),) = read(spark, source, [(None, envelope("d", ROW, None), [])])

    assert not is_deletion
    assert [rule for rule, _ in reasons] == ["missing_field", "missing_field"]


def flattened(deleted: Any, **more: Any) -> bytes:
    return json.dumps(
        {"id": "1004", "amount": 5, "at": AT, "__source_lsn": 9, "__deleted": deleted} | more
    ).encode()


@pytest.mark.soak
def test_a_flattened_deletion_has_the_id_where_every_record_has_it(spark: SparkSession) -> None:
    cases: list[tuple[bytes, Judged]] = [
        (flattened("false"), ACCEPTED),
        (flattened(False), ACCEPTED),
        (flattened(None), ACCEPTED),
        (flattened("true"), deletes("1004", 9)),
        (flattened(True), deletes("1004", 9)),
        (flattened("true", amount=None), deletes("1004", 9)),
        (flattened("true", id=1004, at="never"), deletes("1004", 9)),
        (flattened(None, id=1004.0, __source_lsn=9.0), ACCEPTED),
        (flattened("true", id=1004.0, __source_lsn=9.0), deletes("1004", 9)),
        (
            flattened("true", id=""),
            refused("missing_id", 'the deletion has no id that is a string or whole number: ""', sequence=9),
        ),
        *(
            (
                flattened("true", id=id_),
                refused(
                    "missing_id",
                    f"the deletion has no id that is a string or whole number: {shown}",
                    sequence=9,
                ),
            )
            for id_, shown in ((1.5, "1.5"), (True, "true"), ([], "[]"))
        ),
        (flattened({"true": "true"}), ACCEPTED),
    ]

    found = read(spark, REWRITTEN, [(None, value, []) for value, _ in cases])

    assert found == [expected for _, expected in cases]


@pytest.mark.soak
def test_a_sequence_within_after_is_not_the_deletions(spark: SparkSession) -> None:
    version = Field("after.version", "version", FieldType.LONG)
    contract = replace(ENVELOPE.contract, fields=(*ENVELOPE.contract.fields, version))
    source = replace(ENVELOPE, contract=contract, sequence_by="after.version")
    value = envelope("d", {**ROW, "version": 3}, None)

    assert read(spark, source, [(None, value, [])]) == [deletes("1004")]


def test_a_header_has_the_sequence_of_a_record_without_a_value(spark: SparkSession) -> None:
    cases: list[tuple[list[tuple[str, bytes | None]], Judged]] = [
        ([("lsn", b"12")], deletes("a-1", 12)),
        ([("other", b"12")], deletes("a-1")),
        ([("lsn", None)], deletes("a-1")),
        (
            [("lsn", b"12.5")],
            refused("bad_sequence", "the deletion's header lsn is not a 64-bit integer: 12.5", "a-1"),
        ),
    ]

    found = read(spark, BY_HEADER, [(b"a-1", None, headers) for headers, _ in cases])

    assert found == [expected for _, expected in cases]


@pytest.mark.soak
def test_an_envelope_in_avro_is_read_as_far_as_it_deletes(spark: SparkSession) -> None:
    row = {
        "type": "record",
        "name": "Value",
        "fields": [{"name": "id", "type": "long"}, {"name": "amount", "type": ["null", "long"]}],
    }
    fields = [
        {"name": "before", "type": ["null", row]},
        {"name": "after", "type": ["null", "Value"]},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "fields": [{"name": "lsn", "type": ["null", "long"]}, {"name": "ts_ms", "type": "long"}],
            },
        },
        {"name": "op", "type": "string"},
    ]
    schema = {"type": "record", "name": "Envelope", "fields": fields}
    of_event = {"lsn": 9, "ts_ms": AT}
    values = [
        {"before": None, "after": ROW, "source": of_event, "op": "c"},
        {"before": ROW, "after": None, "source": of_event, "op": "d"},
        {"before": {"id": 7, "amount": None}, "after": None, "source": {"lsn": None, "ts_ms": AT}, "op": "d"},
    ]
    source = replace(ENVELOPE, format="avro")
    rows = in_bronze(spark, [(None, encoded(7, schema, value), []) for value in values])
    reading = replace(source, contract=deletions.as_read(source))

    decoded = avro.decoded(rows, reading, {7: Registered("AVRO", json.dumps(schema))})

    assert judged_as(source, decoded) == [ACCEPTED, deletes("1004", 9), deletes("7")]


def test_what_cannot_be_a_form_or_delete_anything_is_refused_at_the_start() -> None:
    only_unique = replace(FLAT, sequence_by=None)
    totals = replace(FLAT, contract=replace(FLAT.contract, tombstone="id"))
    cases: list[tuple[Source, dict[str, Any], str]] = [
        (FLAT, {"deletion_key": "jsn"}, "deletion_key 'jsn' is not a key form; expected text, json, "),
        (FLAT, {"deletion_key": "long:id"}, "deletion_key 'long:id' is not a key form; expected "),
        (FLAT, {"deletion_key": "json:"}, "deletion_key 'json:' is not a key form; expected "),
        (FLAT, {"deletion_key": "json:a..b"}, "'a..b' is not a path to a field: "),
        (FLAT, {"deleted_if": "op"}, "deleted_if 'op' is not FIELD=VALUE, such as op=d"),
        (
            only_unique,
            {"deleted_if": "op=d"},
            "source t: deletion_key and deleted_if delete by id, so set unique_by ",
        ),
        (
            totals,
            {"deletion_key": "long"},
            "source t: a record without a value resets id and deletes no id: ",
        ),
    ]
    for source, given, message in cases:
        with pytest.raises(ValueError) as raised:  # noqa: PT011 - the message is checked below
            replace(source, **given)
        assert str(raised.value).startswith(message)


def test_every_example_of_a_key_in_the_docs_is_a_case_here() -> None:
    page = (Path(__file__).parents[3] / "docs" / "ids.md").read_text()
    table = re.findall(r"^\| `([a-z.:]+)`[^|]*\| `([^`]+)`.*\| (\S+) \|$", page, re.MULTILINE)
    cases = {(form, key): found[0] for form, some in (KEYS | IN_AVRO).items() for key, found in some}

    examples = [one for one in table if one[0] in KEYS | IN_AVRO and "…" not in one[1]]
    assert [form for form, _, _ in examples] == ["text", "json", "json:id", "long", "int", "avro"]
    for form, shown, id_ in examples:
        key = bytes.fromhex(shown) if form in {"long", "int", "avro"} else shown.encode()
        assert cases[form, key] == id_
