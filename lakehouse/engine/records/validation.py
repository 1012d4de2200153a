"""Validate raw Kafka records: parse each record once, and keep every reason for refusing it.

`judge` turns each bronze row into one row with the contract's columns, the event time and an array of
reasons. A row without reasons is clean, and any other row is a dead letter. Each input row becomes exactly
one clean row or dead letter. docs/dead-letters.md lists the rules. Deletions
(`lakehouse.engine.records.deletions`) and formats other than JSON (`lakehouse.engine.formats.decode`) have
their own rules.

For a record without its own time, Kafka's timestamp is the event time. If Kafka's timestamp is not a valid
time either, or is -1 (Kafka's value for no timestamp), the record breaks the rule bad_timestamp.

If a key occurs twice, the last value counts. Text beyond the JSON parser's limits breaks the rule not_json:
nesting deeper than about 1,000 levels, names over 50,000 characters, and strings over 20 million. In contract
fields, so do numbers over 1,000 digits, half surrogate pairs and objects with duplicate keys. An object on a
contract field's path, with everything in it, counts as a contract field.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import cache, reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, VariantType

from lakehouse.engine.records import decoding, deletions, event_times, fields, identity
from lakehouse.engine.records.fields import REASONS, reason, type_column
from lakehouse.engine.records.rules import checked_rules
from lakehouse.engine.records.shown import shown, shown_bytes, with_value
from lakehouse.storage.spark.columns import Columns
from lakehouse.storage.spark.execution import by_reference
from lakehouse.storage.spark.kept import Kept
from lakehouse.storage.tables import shifted
from lakehouse.streams.column_types import SPARK_TYPES
from lakehouse.streams.contract import COORDINATES, OWN_TIME, Contract, Field, FieldType
from lakehouse.streams.definition import Source

ADMITTED = StructType().add("after", "timestamp").add("at", "timestamp")
"""The admission of a record by a replay, at the time `at`, after all records that landed up to `after`.

Both times are UTC. `at` is later than in all earlier admissions.
"""
TIMES_OF_RECORDS = ("kafka_timestamp", "ingested_at", "admitted")
"""Silver columns with the times when a record was sent, when it landed, and when a replay admitted it."""
SKIPPED = "skipped"
"""The rule for records that a user has skipped because they cannot be validated."""

# The raw columns are renamed, because a contract may have a column named `value` or `key`.
_RAW = {"key": "_key", "value": "_value", "headers": "_headers", "timestamp": "_timestamp"}

_LETTERS_NAMES = {"timestamp": "kafka_timestamp"}

# Jackson can accept single quotes and bare NaN, but they are not JSON.
_STRICT_JSON = {
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    "columnNameOfCorruptRecord": "_corrupt_record",
}


def clean_schema(contract: Contract) -> StructType:
    """Return the schema of a contract's silver table: its columns, times and Kafka coordinates.

    `own_time` is the record's own event time, null if the record has only Kafka's timestamp.
    `kafka_timestamp` is Kafka's timestamp, null if it is not a time. `ingested_at` is the landing time.
    `admitted` describes a replay's admission (ADMITTED), null if the record was accepted when it landed.
    """
    columns = [StructField(field.column, SPARK_TYPES[field.type], nullable=True) for field in contract.fields]
    return (
        StructType(columns)
        .add("event_time", "timestamp")
        .add(OWN_TIME, "timestamp")
        .add("topic", "string")
        .add("partition", "integer")
        .add("offset", "long")
        .add("kafka_timestamp", "timestamp")
        .add("ingested_at", "timestamp")
        .add("admitted", ADMITTED)
    )


def silver_schema(source: Source) -> StructType:
    """Return the schema of a source's silver table, with the columns from its contract and from headers."""
    schema = clean_schema(source.contract)
    more = [StructField(name, type_, nullable=True) for name, type_ in identity.header_types(source).items()]
    return StructType([*schema, *more])


def judge(rows: DataFrame, source: Source, watermark: datetime | Column | None) -> DataFrame:
    """Return one row per raw record: the clean columns, `reasons`, and `raw` if there are any reasons.

    `rows` are bronze rows. `watermark` is the earliest event time that is still accepted, UTC. It can be a
    column of `rows`, and is null before the first record. `raw` (key, value, headers, kafka_timestamp) is
    null for clean rows. A record's landing time is used as the current time, so validating the record again
    gives the same result. For a source with `unique_by`, every row contains `raw` and the columns with which
    `lakehouse.engine.records.identity` compares records. Records in formats other than JSON must be decoded
    first (`lakehouse.engine.formats.decode`).
    """
    if not isinstance(watermark, Column):
        watermark = by_reference(F.lit(watermark).cast("timestamp"), F.col("partition"))
    marked = rows.withColumnsRenamed(_RAW).withColumn("_watermark", watermark)
    return _verdict(source).of(marked)


def skipped(rows: DataFrame, source: Source) -> DataFrame:
    """Refuse each record with the rule `skipped`, without reading its content.

    The columns are the same as in the result of `judge`.
    """
    nothing = F.lit(None)
    kept = {name: F.col(name) for name in (*COORDINATES, "ingested_at")} | {
        "kafka_timestamp": F.col("timestamp")
    }
    columns = {
        field.name: kept.get(field.name, nothing.cast(field.dataType)) for field in silver_schema(source)
    }
    columns["reasons"] = F.array(reason(SKIPPED, None, F.lit("skipped with --skip, without being read")))
    columns["raw"] = F.struct(*(F.col(name).alias(_LETTERS_NAMES.get(name, name)) for name in _RAW))
    if source.id_column is not None:
        ids = {identity.OF_ID: nothing.cast("string"), identity.OF_SEQUENCE: nothing.cast("long")}
        columns |= ids
    return rows.select(*(column.alias(name) for name, column in columns.items()))


@cache
def _verdict(source: Source) -> Kept:
    """Return the function that validates raw records.

    It adds columns step by step, and selects the result.
    """
    contract = source.contract
    in_time = (
        _future_reason(source.future_tolerance_s),
        late_reason(F.col("_watermark")),
        *(
            F.when(rule.violated, reason(rule.name, rule.column, rule.message))
            for rule in checked_rules(source)
        ),
        *identity.reasons_of(source),
    )
    of_field = decoding.reason_of if source.is_typed else fields.reason_of
    of_time = event_times.reason_of(source)
    if source.is_typed:
        of_time = F.coalesce(decoding.reason_against("event_time"), of_time)
    flawless = reduce(Column.__and__, (one.isNull() for one in in_time), F.col("_proven"))
    unread = F.when(F.col("_value").isNull(), _without_value(source, in_time))
    if source.format != "json":
        unread = unread.when(F.col(decoding.REFUSED).isNotNull(), F.col(decoding.REFUSED))
    if source.mark is not None:
        unread = unread.when(deletions.is_marked(source), F.array(*deletions.reasons_of(source)))
        flawless = flawless & ~deletions.is_marked(source)
    text = shown(F.col("_rest").cast("string"))
    not_utf8 = with_value("the value is not UTF-8", shown_bytes(F.col("_rest").cast("binary")))
    reasons = F.array_compact(
        unread.when(~F.col("_utf8"), F.array(reason("not_utf8", None, not_utf8)))
        .when(
            ~F.col("_json"),
            F.array(reason("not_json", None, with_value("the value is not valid JSON", text))),
        )
        .when(
            F.col("_record").isNull(),
            F.array(reason("not_an_object", None, with_value("the JSON value is not an object", text))),
        )
        .otherwise(F.array(*(of_field(field) for field in contract.fields), of_time, *in_time))
    )
    none = F.array().cast(REASONS)
    reasons = (
        F.when(flawless, none).when(F.col("_proven"), F.array_compact(F.array(*in_time))).otherwise(reasons)
    )
    raw = F.struct(*(F.col(aside).alias(_LETTERS_NAMES.get(name, name)) for name, aside in _RAW.items()))
    columns = [*silver_schema(source).names, "reasons"]
    known = {"kafka_timestamp": F.col("_timestamp"), "admitted": F.lit(None).cast(ADMITTED)}
    compared = identity.columns_of(source)
    steps = (*_proven(source), *_parsed(deletions.as_read(source)), *_fields(source), {"reasons": reasons})
    has_raw = F.size("reasons") > 0 if source.unique_by is None else F.lit(True)
    values = {name: known.get(name, F.col(name)) for name in columns}
    added = [Columns(step) for step in steps]
    result = Columns(values | {"raw": F.when(has_raw, raw)} | compared)
    return Kept(lambda rows: result.of(reduce(lambda frame, step: step.added_to(frame), added, rows)))


def filter_clean(judged: DataFrame) -> DataFrame:
    """Keep the rows without reasons, with the silver table's columns."""
    return judged.where(identity.is_sound()).drop("reasons", "raw", *identity.COLUMNS)


def filter_dead(judged: DataFrame) -> DataFrame:
    """Keep the rows with reasons: coordinates, raw record, times, reasons, and ids if the source has any."""
    ids = {identity.OF_ID: "unique_id", identity.OF_SEQUENCE: "sequence"}
    known = (F.col(name).alias(ids[name]) for name in ids if name in judged.columns)
    times = ("ingested_at", "event_time", OWN_TIME, "admitted")
    return judged.where(F.size("reasons") > 0).select(*COORDINATES, "raw.*", *times, "reasons", *known)


def _proven(source: Source) -> Iterator[dict[str, Column]]:
    """Yield `_typed` (the record in the contract's types), `_proven` and `_rest` (the value if not proven).

    If the typed parser cannot prove a contract's records, there is no `_typed` and no record is proven. For
    formats with types, the decoder has already added `_typed` and `_proven`.

    One cheap parse proves most records valid. If a text's first closing brace is its last byte, the parser
    has read the whole text. The same is true if the last field is a payload that extends to the end of the
    text (`fields.last_payload`). A parsed number results from a JSON number, and a parsed string from a JSON
    string, unless the string looks like another JSON value. `_parsed` and `_fields` parse all other records
    again, thoroughly. Only this second parse finds reasons.
    """
    contract, body = source.contract, F.col("_value" if source.format == "json" else decoding.BODY)
    if source.is_typed:
        yield {"_rest": body}
        return
    if not fields.are_provable(contract) or not deletions.is_provable(source):
        yield {"_proven": F.lit(False), "_rest": body}
        return
    text = body.cast("string")
    payloads = [field for field in contract.fields if field.type is FieldType.JSON]
    schema = StructType(
        [StructField(field.path[-1], fields.PARSED_TYPES[field.type]) for field in contract.fields]
    )
    schema = schema.add(contract.event_time_path[-1], "long").add("_corrupt_record", "string")
    schema = deletions.with_mark(schema, source)
    stamp = F.col("_typed").getField(contract.event_time_path[-1])
    readable = F.is_valid_utf8(text) & (text.startswith("{") if payloads else _is_flat(text))
    sound = (fields.is_proven(_typed(field), field) for field in contract.fields)
    decimals = [field for field in contract.fields if field.type is FieldType.DECIMAL]
    proven = reduce(
        Column.__and__,
        sound,
        F.col("_typed._corrupt_record").isNull()
        & event_times.is_proven(stamp, source)
        & deletions.is_unmarked(source),
    )
    yield {"_typed": F.from_json(F.when(readable, text), schema, _STRICT_JSON)} | {
        fields.exact_column(field.column): fields.written_decimal(F.when(readable, text), field)
        for field in decimals
    }
    if payloads:
        yield {
            fields.payload_column(field.column): fields.last_payload(text, _typed(field), field)
            for field in payloads
        }
        ends = (F.col(fields.payload_column(field.column)).isNotNull() for field in payloads)
        proven = proven & reduce(Column.__or__, ends, _is_flat(text))
    yield {"_proven": F.coalesce(proven, F.lit(False))}
    yield {"_rest": F.when(~F.col("_proven"), body)}


def _parsed(contract: Contract) -> Iterator[dict[str, Column]]:
    """Yield `_utf8`, `_json` (whether the text is one JSON value) and `_record` (an object's variants).

    Spark's parsers stop at the end of the first JSON value, ignore the rest, and skip fields that they cannot
    read. The text is therefore parsed inside an object that ends with the record's own offset, which the
    parser reaches only after a complete value. `_corrupt_record` reveals a skipped field. This misses text
    that continues with fields of the outer object, such as `{...},"more":1`. Unless the text's first closing
    brace is its last byte, it is therefore also parsed as an array, in which it must be the only element.
    """
    text = F.col("_rest").cast("string")
    wrapped = F.concat(
        F.lit('{"record":'), text, F.lit(',"offset":'), F.col("offset").cast("string"), F.lit("}")
    )
    record = StructType(
        [StructField(name, VariantType(), nullable=True) for name in contract.outermost_names]
    )
    schema = StructType().add("record", record).add("offset", "long").add("_corrupt_record", "string")
    utf8 = F.is_valid_utf8(text)
    complete = F.col("_envelope.offset") == F.col("offset")
    unread = F.col("_envelope._corrupt_record").isNotNull()
    alone = F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))) == 1
    one = F.when(unread, F.col("_envelope.record").isNull() & alone).when(~_is_flat(text), alone)
    yield {"_utf8": utf8, "_envelope": F.from_json(F.when(utf8, wrapped), schema, _STRICT_JSON)}
    yield {"_json": F.coalesce(complete & one.otherwise(F.lit(True)), F.lit(False))}
    yield {"_record": F.when(F.col("_json"), F.col("_envelope.record"))}


def _fields(source: Source) -> Iterator[dict[str, Column]]:
    """Yield the contract's columns, both times, and each field's JSON type (`type_column`)."""
    contract = source.contract
    is_provable = fields.are_provable(contract) and not source.is_typed
    columns: dict[str, Column] = {}
    for field in contract.fields:
        variant = fields.variant_at(field.path)
        columns[type_column(field.column)] = F.schema_of_variant(variant)
        value = fields.looked_up(variant, F.col("_rest").cast("string"), field)
        if source.is_typed:
            value = F.coalesce(decoding.typed(field.column), value)
        elif is_provable:
            value = F.when(F.col("_proven"), fields.proven(_typed(field), field)).otherwise(value)
        if field.name == contract.tombstone:
            value = F.when(F.col("_value").isNull(), F.col("_key").cast("string")).otherwise(value)
        columns[field.column] = value
    columns |= identity.from_headers(source) | deletions.columns(source)
    columns[event_times.KIND] = F.schema_of_variant(fields.variant_at(contract.event_time_path))
    yield columns
    yield {event_times.WRITTEN: event_times.written(contract)}
    event_time = event_times.of_record(source)
    if source.is_typed:
        event_time = F.coalesce(decoding.typed("event_time"), event_time)
    elif is_provable:
        number = F.col("_typed").getField(contract.event_time_path[-1])
        proven_time = event_times.of_number(number, contract.event_time_unit)
        event_time = F.when(F.col("_proven"), proven_time).otherwise(event_time)
    yield {"event_time": event_time}
    yield {OWN_TIME: F.when(F.col("_proven") | ~event_times.is_absent(), F.col("event_time"))}


def _typed(field: Field) -> Column:
    """Return the value of a field, as read by the typed parser."""
    return F.col("_typed").getField(field.path[-1])


def _is_flat(text: Column) -> Column:
    """Return whether the text begins with a brace, and its first closing brace is its last byte."""
    to_first_brace = F.octet_length(F.substring_index(text, "}", 1))
    return text.startswith("{") & (to_first_brace == F.octet_length(text) - 1)


def _without_value(source: Source, in_time: tuple[Column, ...]) -> Column:
    """Return the reasons for refusing a record without a value."""
    contract = source.contract
    if source.is_deleted_by_key:
        return F.array(*deletions.reasons_of(source))
    if contract.tombstone is None:
        return F.array(reason("value_null", None, F.lit("the Kafka record has no value")))
    column = next(field.column for field in contract.fields if field.name == contract.tombstone)
    key, text = F.col("_key"), F.col("_key").cast("string")
    wrong_key = (
        F.when(key.isNull(), reason("key_null", column, F.lit("a tombstone has no key")))
        .when(
            ~F.is_valid_utf8(text),
            reason("key_not_utf8", column, with_value("a tombstone's key is not UTF-8", shown_bytes(key))),
        )
        .when(text == "", reason("key_empty", column, F.lit("a tombstone's key is empty")))
    )
    return F.array(wrong_key, event_times.reason_of(source), *in_time)


def _future_reason(tolerance_s: int) -> Column:
    latest = F.col("ingested_at") + F.expr(f"INTERVAL {tolerance_s} SECONDS")
    message = F.concat(
        F.lit("event time "),
        F.col("event_time").cast("string"),
        F.lit(f" is more than {tolerance_s} s after the record landed, at "),
        F.col("ingested_at").cast("string"),
    )
    return F.when(F.col("event_time") > latest, reason("future", "event_time", message))


def late_reason(watermark: Column) -> Column:
    """Return the reason for refusing a row if its event_time is before the watermark, or null otherwise.

    With a null watermark, no row is late.
    """
    message = F.concat(
        F.lit("event time "),
        F.col("event_time").cast("string"),
        F.lit(" is before the watermark "),
        F.date_format(watermark, "yyyy-MM-dd HH:mm:ss.SSSSSS"),
    )
    return F.when(F.col("event_time") < watermark, reason("late", "event_time", message))


def watermark_of(front: datetime | None, allowed_lateness_s: int) -> datetime | None:
    """Return a silver table's watermark, or None if it has no `front` (its greatest own event time)."""
    return None if front is None else shifted(front, -timedelta(seconds=allowed_lateness_s))
