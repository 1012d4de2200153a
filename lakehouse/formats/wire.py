"""The first bytes of a value with a registered schema: a zero, and the schema's id in four bytes.

Protobuf has the message's place in its schema after them.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse.messages import json_text
from lakehouse.records.fields import reason
from lakehouse.records.shown import shown_bytes, with_value

MAGIC = b"\x00"
LENGTH = 5
MOST_IDS = 1_000
"""So many schemas are looked up for one micro-batch. More are no schemas, but what happens to lie there."""


def first_bytes() -> Column:
    """Return the bytes of a value by which its schema is known."""
    return F.substring("value", 1, LENGTH)


def rest() -> Column:
    """Return the bytes after those."""
    return F.expr(f"substring(value, {LENGTH + 1})")


def is_framed() -> Column:
    """Tell whether a value begins with a zero and the four bytes of an id."""
    return (F.octet_length("value") >= LENGTH) & (F.substring("value", 1, 1) == F.lit(MAGIC))


def header(schema_id: int) -> bytes:
    """Return the first bytes of a value with the schema of this id."""
    return MAGIC + schema_id.to_bytes(LENGTH - len(MAGIC), "big")


def id_of(header_: bytes) -> int:
    """Return the id of the schema that the first bytes name."""
    return int.from_bytes(header_[len(MAGIC) : LENGTH], "big")


def ids_in(rows: DataFrame) -> list[int]:
    """Return the ids of schemas that records name, sorted; of very many the first."""
    headers = rows.agg(F.collect_set(F.when(is_framed(), first_bytes()))).first()
    return sorted(map(id_of, headers[0] if headers else ()))[:MOST_IDS]


def not_framed() -> Column:
    """Return the reasons against a value that begins otherwise, an array; null for any that does not."""
    message = with_value(
        "the value does not begin with a zero and the four bytes of a schema's id",
        shown_bytes(F.col("value")),
    )
    return F.when(~is_framed(), F.array(reason("not_framed", None, message)))


def refusal(rule: str, message: str) -> Column:
    """Return an array of one reason."""
    return F.array(reason(rule, None, F.lit(message)))


def no_schema(schema_id: int) -> Column:
    """Return the reasons against a value whose schema the registry does not have."""
    return refusal("unknown_schema", f"the registry has no schema {schema_id}")


def unasked() -> Column:
    """Return the reasons against a value with one schema too many."""
    return refusal(
        "unknown_schema", f"one of more than {MOST_IDS:,} schemas in a micro-batch, which were not looked up"
    )


def any_json(text: Column) -> Column:
    """Return a JSON field that came as text: JSON text, or plain text where it is none.

    Avro and Protobuf have no other type for any value.
    """
    value = F.try_parse_json(text)
    kept = json_text.from_variant(value, F.schema_of_variant(value))
    return F.when(value.isNull(), text).otherwise(kept)
