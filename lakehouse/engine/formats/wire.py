"""The header of a value with a registered schema: a zero byte, and the schema's id in four bytes.

In Protobuf, the header is followed by the message's indexes in its schema.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse.engine.records.fields import reason
from lakehouse.engine.records.shown import shown_bytes, with_value
from lakehouse.streams.messages import json_text

MAGIC = b"\x00"
LENGTH = 5
MOST_IDS = 1_000
"""The maximum number of ids that a micro-batch looks up. Any others are assumed to be arbitrary bytes."""
GREATEST_ID = (1 << 31) - 1
"""Ids are positive signed 32-bit integers."""


class Ids(NamedTuple):
    """The schema ids in records: the ids to look up, and whether there are ids that no registry assigns."""

    possible: list[int]
    has_impossible: bool


def first_bytes() -> Column:
    """Return a value's header."""
    return F.substring("value", 1, LENGTH)


def rest() -> Column:
    """Return the bytes after the header."""
    return F.expr(f"substring(value, {LENGTH + 1})")


def is_framed() -> Column:
    """Return whether a value begins with a zero byte and the four bytes of an id."""
    return (F.octet_length("value") >= LENGTH) & (F.substring("value", 1, 1) == F.lit(MAGIC))


def header(schema_id: int) -> bytes:
    """Return the header for a schema's id."""
    return MAGIC + schema_id.to_bytes(LENGTH - len(MAGIC), "big")


def id_of(header_: bytes) -> int:
    """Return the schema's id from a header."""
    return int.from_bytes(header_[len(MAGIC) : LENGTH], "big")


def ids_in(rows: DataFrame, known: Collection[int]) -> Ids:
    """Return up to MOST_IDS schema ids from records, known ids first.

    Among the known ids, and among the others, the most frequent ids come first.
    """
    possible = F.when(_is_possible(), first_bytes()).otherwise(F.lit(MAGIC))
    named = rows.select(F.when(is_framed(), possible).alias("it")).where("it IS NOT NULL")
    first = [MAGIC, *(header(one) for one in known if 0 < one <= GREATEST_ID)]
    order = (F.col("it").isin(*map(F.lit, first)).desc(), F.desc("count"), F.col("it"))
    found = [bytes(row["it"]) for row in named.groupBy("it").count().orderBy(*order).head(MOST_IDS + 1)]
    return Ids([id_of(one) for one in found if one != MAGIC][:MOST_IDS], MAGIC in found)


def _is_possible() -> Column:
    """Return whether a framed value's id is one that a registry can assign."""
    return (F.substring("value", 2, 1) < F.lit(b"\x80")) & (first_bytes() != F.lit(header(0)))


def _id() -> Column:
    """Return a framed value's id as text."""
    return F.conv(F.hex(F.substring("value", 2, LENGTH - 1)), 16, 10)


def not_framed() -> Column:
    """Return an array with the reason for refusing a value without a header, or null if it has one."""
    message = with_value(
        "the value does not begin with a zero byte and a four-byte schema id",
        shown_bytes(F.col("value")),
    )
    return F.when(~is_framed(), F.array(reason("not_framed", None, message)))


def refusal(rule: str, message: str) -> Column:
    """Return an array with a single reason."""
    return F.array(reason(rule, None, F.lit(message)))


def without_schema(refused: Column, missing: Mapping[int, str]) -> Column:
    """Return the reasons for refusing a value; for an id in `missing`, use the message given there instead.

    An impossible id gets its own message. `refused` contains the reasons found so far, or null if there are
    none.
    """
    message = F.concat(
        F.lit("no registry has a schema "), _id(), F.lit(f": ids range from 1 to {GREATEST_ID:,}")
    )
    impossible = F.array(reason("unknown_schema", None, message))
    found = F.when(refused.isNull(), refused).when(is_framed() & ~_is_possible(), impossible)
    if missing:
        pairs = (F.lit(part) for one, said in missing.items() for part in (header(one), said))
        said = F.try_element_at(F.create_map(*pairs), first_bytes())
        found = found.when(said.isNotNull(), F.array(reason("unknown_schema", None, said)))
    return found.otherwise(refused)


def unasked() -> Column:
    """Return the reasons for refusing a value whose schema was not looked up."""
    why = ": too many other ids in the micro-batch have no schema; replay the record to look it up"
    message = F.concat(F.lit("schema "), _id(), F.lit(f" was not looked up{why}"))
    return F.array(reason("unknown_schema", None, message))


def any_json(text: Column) -> Column:
    """Return a JSON field that arrives as text. Text that is JSON is normalized; other text is unchanged.

    Avro and Protobuf have no other type for arbitrary values.
    """
    value = F.try_parse_json(text)
    kept = json_text.from_variant(value, F.schema_of_variant(value))
    return F.when(value.isNull(), text).otherwise(kept)
