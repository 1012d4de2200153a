"""Recognize deletions, and read their sequence and the id to delete.

A source with `sequence_by` has two kinds of deletions:

- a Kafka record without a value, whose key contains the id in the form set by `deletion_key`;
- a record with a value and the mark set by `deleted_if`. If the id's path contains `after`, as in Debezium's
  envelope, the id is read from `before`; otherwise, its path is the same as in other records.

docs/ids.md shows the forms of keys. Text is UTF-8. An id in JSON or Avro is a non-empty string or a whole
number, such as 17 or 17.0; a `long` or `int` is a signed integer of 8 or 4 bytes, big-endian. A JSON key may
begin with the five-byte prefix for a registered schema, because JSON text never begins with a zero byte.

The sequence of a deletion comes from the header or field that `sequence_by` names, unless the field is within
`after`. Without a sequence, Kafka's timestamps decide which records are deleted
(`lakehouse.engine.records.comparing`). The other fields of a deletion, and its time, are not validated.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.engine.records import decoding, fields
from lakehouse.engine.records.fields import as_written, reason, type_column
from lakehouse.engine.records.headers import header_text
from lakehouse.engine.records.shown import shown, shown_bytes, with_value
from lakehouse.streams.contract import Contract, Field, FieldType
from lakehouse.streams.definition import ID, SEQUENCE, Source, header_of
from lakehouse.streams.messages import json_path

DELETION = "deletion"
"""The rule in the dead letter of a valid deletion."""
KEY_ID, KEY_REFUSED = "_key_id", "_key_refused"
"""Columns added before validation for Avro keys: the id as text, and the reason for refusing it (or null)."""

_MARK, _OF_BEFORE = "_deletion_mark", "_deletion_id"
_BYTES = {"long": 8, "int": 4}
_FRAMED = 5  # bytes: a zero byte, and the id of the registered schema
_NUMBER = re.compile(r"-?[0-9]")


def as_read(source: Source) -> Contract:
    """Return the contract, plus the fields that only deletions use: the mark, and the id in `before`."""
    return replace(source.contract, fields=(*source.contract.fields, *_more(source)))


def columns(source: Source) -> dict[str, Column]:
    """Return the columns for fields that only deletions use; none for a source without a deletion mark.

    Values come from the record's variants and, if the format has types, from the decoded struct.
    """
    found = {}
    for field in _more(source):
        variant = fields.variant_at(field.path)
        value = fields.looked_up(variant, F.col("_rest").cast("string"), field)
        found[field.column] = F.coalesce(decoding.typed(field.column), value) if source.is_typed else value
    return found


def is_provable(source: Source) -> bool:
    """Return whether Spark's typed parser can prove that a record lacks the deletion mark.

    The parser can change the notation of a number, and it does not read fields inside objects.
    """
    mark = source.mark
    if mark is None:
        return True
    others = [field.type for field in source.contract.fields if field.path == mark.path]
    is_seen = not {FieldType.DOUBLE, FieldType.DECIMAL, FieldType.JSON}.intersection(others)
    return len(mark.path) == 1 and is_seen and not _NUMBER.match(mark.value)


def with_mark(schema: StructType, source: Source) -> StructType:
    """Return the schema for the typed parser, with the field for the deletion mark added."""
    mark = source.mark
    return schema if mark is None or mark.name in schema.names else schema.add(mark.path[0], "string")


def is_unmarked(source: Source) -> Column:
    """Return whether a record that the typed parser has read lacks the deletion mark."""
    mark = source.mark
    if mark is None:
        return F.lit(True)
    return F.coalesce(F.col("_typed").getField(mark.path[0]).cast("string") != mark.value, F.lit(True))


def is_deletion(source: Source) -> Column:
    """Return whether a parsed record is a deletion, even if its id cannot be read."""
    by_key = F.col("_value").isNull() if source.is_deleted_by_key else F.lit(False)
    return by_key | is_marked(source)


def is_marked(source: Source) -> Column:
    """Return whether a parsed record has the deletion mark."""
    mark = source.mark
    if mark is None:
        return F.lit(False)
    written = (mark.value, json.dumps(mark.value, ensure_ascii=False))
    return F.coalesce(F.col(_MARK).isin(*written), F.lit(False))


def id_of(source: Source) -> Column:
    """Return the id to delete, as text, or null if it cannot be read."""
    of_key = _key_id(source)
    if source.mark is None:
        return of_key
    marked = F.col(_id_field(source).column if _is_in_before(source) else source.id_column or ID)
    return F.when(F.col("_value").isNull(), of_key).otherwise(_usable(marked.cast("string")))


def sequence_of(source: Source) -> Column:
    """Return the deletion's sequence, or null if it has none."""
    if header_of(source.sequence_by):
        return F.col(SEQUENCE)
    field = _sequence_field(source)
    return F.lit(None).cast("long") if field is None else F.col(field.column)


def reasons_of(source: Source) -> tuple[Column, ...]:
    """Return the only reason in a deletion's dead letter: which id it deletes, or why it is invalid."""
    deletes = F.concat(F.lit("the record deletes "), shown(id_of(source)))
    wrong = F.when(F.col("_value").isNull(), _against_key(source))
    if source.mark is not None:
        wrong = wrong.otherwise(_against_marked(source))
    return (F.coalesce(wrong, _against_sequence(source), reason(DELETION, source.id_column, deletes)),)


@cache
def _more(source: Source) -> tuple[Field, ...]:
    if source.mark is None:
        return ()
    mark = Field(source.mark.name, _MARK, FieldType.JSON, required=False)
    return (mark, _id_field(source)) if _is_in_before(source) else (mark,)


def _is_in_before(source: Source) -> bool:
    """Return whether the id of a record is inside `after`, so that the id to delete is inside `before`."""
    return not header_of(source.unique_by) and _is_in_after(json_path.names_of(source.unique_by or ID))


def _is_in_after(path: tuple[str, ...]) -> bool:
    return "after" in path[:-1]


def _id_field(source: Source) -> Field:
    """Return the field that contains the id to delete, in a record with the deletion mark."""
    field = next(one for one in source.contract.fields if one.column == source.id_column)
    if not _is_in_after(field.path):
        return field
    place = field.path.index("after")
    path = (*field.path[:place], "before", *field.path[place + 1 :])
    return replace(field, name=json_path.text_of(path), column=_OF_BEFORE, required=False)


def _sequence_field(source: Source) -> Field | None:
    """Return the field with the sequence of a record with the deletion mark, if it is outside `after`.

    Otherwise, return None.
    """
    if source.mark is None or header_of(source.sequence_by):
        return None
    field = next(one for one in source.contract.fields if one.column == source.sequence_column)
    return None if _is_in_after(field.path) else field


def _usable(text: Column) -> Column:
    return F.when(F.is_valid_utf8(text) & (text != ""), text)


def _key_id(source: Source) -> Column:
    form, key = source.key_form, F.col("_key")
    if form.kind == "text":
        return _usable(key.cast("string"))
    if form.kind == "json":
        return _usable(_json_id(_without_frame(key), form.path))
    if form.kind == "avro":
        return F.col(KEY_ID)
    number = F.conv(F.hex(key), 16, -10)
    if form.kind == "int":
        bits = number.try_cast("long")
        number = F.when(bits >= 1 << 31, bits - (1 << 32)).otherwise(bits).cast("string")
    return F.when(F.octet_length(key) == _BYTES[form.kind], number)


def _without_frame(key: Column) -> Column:
    """Return a JSON key without the prefix that JSON Schema serializers add."""
    is_framed = (F.octet_length(key) >= _FRAMED) & (F.substring(key, 1, 1) == F.lit(b"\x00"))
    return F.when(is_framed, F.substring(key, _FRAMED + 1, 1 << 30)).otherwise(key).cast("string")


def _json_id(text: Column, path: tuple[str, ...]) -> Column:
    """Return the string or whole number at a path in JSON text, or null for any other value."""
    is_one = F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))) == 1
    value = json_path.within(F.try_parse_json(F.when(F.is_valid_utf8(text) & is_one, text)), path)
    kind = F.schema_of_variant(value)
    is_id = (kind == "STRING") | fields.is_whole(kind)
    return F.when(is_id, F.try_variant_get(value, "$", "string"))


def _against_key(source: Source) -> Column:
    """Return the reason for refusing the key of a record without a value, or null if the key is valid."""
    form, key, column = source.key_form, F.col("_key"), source.id_column
    empty = reason("key_empty", column, F.lit("a deletion's key is empty"))
    found = F.when(key.isNull(), reason("key_null", column, F.lit("a deletion has no key"))).when(
        F.octet_length(key) == 0, empty
    )
    if form.kind in {"text", "json"}:
        text = _without_frame(key) if form.kind == "json" else key.cast("string")
        not_utf8 = with_value("a deletion's key is not UTF-8", shown_bytes(key))
        found = found.when(~F.is_valid_utf8(text), reason("key_not_utf8", column, not_utf8))
        value = shown(text)
    else:
        value = shown_bytes(key)
    if form.kind == "avro":
        found = found.when(F.col(KEY_REFUSED).isNotNull(), F.col(KEY_REFUSED))
    bad = with_value(f"a deletion's key is {_expected(source)}", value)
    return found.when(_key_id(source).isNull(), reason("bad_key", column, bad))


def _expected(source: Source) -> str:
    """Describe what is wrong with a key that does not have the configured form."""
    form = source.key_form
    if form.kind in _BYTES:
        return f"not the {_BYTES[form.kind]} bytes of {'an int' if form.kind == 'int' else 'a long'}"
    what = "a non-empty string or a whole number"
    of = "JSON" if form.kind == "json" else "Avro"
    at = f" at {json_path.text_of(form.path)}" if form.path else ""
    return f"not {of} with {what}{at}"


def _against_marked(source: Source) -> Column:
    """Return the reason for refusing a deletion that has the mark, or null if its id can be read."""
    column = source.id_column
    if name := header_of(source.unique_by):
        message = with_value(
            f"the deletion has no {name} header containing UTF-8 text", shown(header_text(name))
        )
    else:
        field = _id_field(source)
        said = f"the deletion has no {field.name} that is a string or whole number"
        message = with_value(said, as_written(field.path))
    return F.when(id_of(source).isNull(), reason("missing_id", column, message))


def _against_sequence(source: Source) -> Column:
    """Return the reason for refusing a deletion's sequence, or null if it is absent or valid."""
    column = source.sequence_column
    if name := header_of(source.sequence_by):
        is_there, value, said = header_text(name).isNotNull(), shown(header_text(name)), f"header {name}"
    else:
        field = _sequence_field(source)
        if field is None:
            return F.lit(None)
        kind = F.col(type_column(field.column))
        is_there, value, said = kind.isNotNull() & (kind != "VOID"), as_written(field.path), field.name
    message = with_value(f"the deletion's {said} is not a 64-bit integer", value)
    return F.when(is_there & sequence_of(source).isNull(), reason("bad_sequence", column, message))
