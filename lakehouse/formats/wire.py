"""The first bytes of a value with a registered schema: a zero, and the schema's id in four bytes.

Protobuf has the message's place in its schema after them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse.messages import json_text
from lakehouse.records.fields import reason
from lakehouse.records.shown import shown_bytes, with_value

MAGIC = b"\x00"
LENGTH = 5
MOST_IDS = 1_000
"""So many ids of one micro-batch are looked at. More are no schemas, but what happens to lie there."""
GREATEST_ID = (1 << 31) - 1
"""Ids are whole numbers of 32 bits with a sign, from 1 on."""


class Ids(NamedTuple):
    """The ids of schemas that records name: those to look up, and whether others can be of no schema."""

    possible: list[int]
    has_impossible: bool


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


def ids_in(rows: DataFrame, known: Collection[int]) -> Ids:
    """Return the ids of schemas that records name: known ones first, then by the number of their records.

    Of more than MOST_IDS the last are left out.
    """
    possible = F.when(_is_possible(), first_bytes()).otherwise(F.lit(MAGIC))
    named = rows.select(F.when(is_framed(), possible).alias("it")).where("it IS NOT NULL")
    first = [MAGIC, *(header(one) for one in known if 0 < one <= GREATEST_ID)]
    order = (F.col("it").isin(*map(F.lit, first)).desc(), F.desc("count"), F.col("it"))
    found = [bytes(row["it"]) for row in named.groupBy("it").count().orderBy(*order).head(MOST_IDS + 1)]
    return Ids([id_of(one) for one in found if one != MAGIC][:MOST_IDS], MAGIC in found)


def _is_possible() -> Column:
    """Tell whether a registry can have the id of a value that is framed."""
    return (F.substring("value", 2, 1) < F.lit(b"\x80")) & (first_bytes() != F.lit(header(0)))


def _id() -> Column:
    """Return the id in a value that is framed, as text."""
    return F.conv(F.hex(F.substring("value", 2, LENGTH - 1)), 16, 10)


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


def without_schema(refused: Column, missing: Mapping[int, str]) -> Column:
    """Return the reasons of refused values, where a value's id is one of these with the sentence for it.

    Ids that no registry can have are named as such; `refused` has the reasons so far, null for none.
    """
    message = F.concat(
        F.lit("no registry has a schema "), _id(), F.lit(f": ids go from 1 to {GREATEST_ID:,}")
    )
    impossible = F.array(reason("unknown_schema", None, message))
    found = F.when(refused.isNull(), refused).when(is_framed() & ~_is_possible(), impossible)
    if missing:
        pairs = (F.lit(part) for one, said in missing.items() for part in (header(one), said))
        said = F.try_element_at(F.create_map(*pairs), first_bytes())
        found = found.when(said.isNotNull(), F.array(reason("unknown_schema", None, said)))
    return found.otherwise(refused)


def unasked() -> Column:
    """Return the reasons against a value whose schema was not looked up."""
    why = ": too many others of the micro-batch have no schema; replay the record to have it looked up"
    message = F.concat(F.lit("schema "), _id(), F.lit(f" was not looked up{why}"))
    return F.array(reason("unknown_schema", None, message))


def any_json(text: Column) -> Column:
    """Return a JSON field that came as text: JSON text, or plain text where it is none.

    Avro and Protobuf have no other type for any value.
    """
    value = F.try_parse_json(text)
    kept = json_text.from_variant(value, F.schema_of_variant(value))
    return F.when(value.isNull(), text).otherwise(kept)
