"""Decode the Avro keys of deletions to ids, using the writers' schemas.

A key is read in the same way as a value (`lakehouse.engine.formats.avro`), with the same limits. If the key's
schema is not a record (but, for example, "string" or "long"), the key is read as a record with one field,
because Avro encodes a single value and a record with only that value identically.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse.engine.formats import avro
from lakehouse.engine.formats.schemas import Schemas
from lakehouse.engine.records import decoding, deletions
from lakehouse.engine.records.fields import reason
from lakehouse.engine.records.shown import shown_bytes
from lakehouse.storage.kafka.schema_registry import Registered
from lakehouse.streams.contract import Contract, Field, FieldType
from lakehouse.streams.definition import Source
from lakehouse.streams.messages import json_path

_ASIDE, _WHOLE = "_value_aside", "key"
Decode = Callable[[DataFrame, Source, Schemas], DataFrame]


def decoded(
    rows: DataFrame, source: Source, looked_up: Callable[[DataFrame, Source, Decode], DataFrame]
) -> DataFrame:
    """Return bronze rows with the columns that `lakehouse.engine.records.deletions` needs for Avro keys.

    `looked_up` decodes each value in a frame with the schema whose id it contains. Only the keys of records
    without a value are read.
    """
    key = F.when(F.col("value").isNull(), F.col("key"))
    aside = rows.withColumns({_ASIDE: F.col("value"), "value": key})
    found = looked_up(aside, _source_of_keys(source), _decoded)
    read = found.withColumns({deletions.KEY_ID: _id(), deletions.KEY_REFUSED: _refused(source)})
    return read.withColumn("value", F.col(_ASIDE)).select(
        *rows.columns, deletions.KEY_ID, deletions.KEY_REFUSED
    )


def _source_of_keys(source: Source) -> Source:
    """Return a source that treats keys as records.

    It has two optional fields for the id: one for text and one for a number.
    """
    name = json_path.text_of(source.key_form.path or (_WHOLE,))
    text = Field(name, "text", FieldType.STRING, required=False)
    number = Field(name, "number", FieldType.LONG, required=False)
    return Source(
        source.topic, source.table, Contract((text, number)), format="avro", registry=source.registry
    )


def _decoded(rows: DataFrame, source: Source, schemas: Schemas) -> DataFrame:
    is_whole = source.contract.fields[0].path == (_WHOLE,)
    known = {one: _wrapped(it) if is_whole else it for one, it in schemas.items()}
    return avro.decoded(rows, source, known)


def _wrapped(schema: Registered) -> Registered:
    """Wrap a schema in a record with a single field. A schema that is not JSON is returned unchanged."""
    try:
        within = json.loads(schema.text)
    except ValueError:
        return schema
    fields = [{"name": _WHOLE, "type": within}]
    text = json.dumps({"type": "record", "name": "lakehouse_key", "fields": fields})
    return replace(schema, text=text)


def _id() -> Column:
    """Return a key's id, or null if the key is refused or the id is neither text nor an integer."""
    text, number = decoding.typed("text"), decoding.typed("number").cast("string")
    usable = F.coalesce(F.when(F.is_valid_utf8(text) & (text != ""), text), number)
    return F.when(F.col(decoding.REFUSED).isNull(), usable)


def _refused(source: Source) -> Column:
    """Return the reason for refusing a key, including the key itself, or null if the key is accepted."""
    first = F.get(decoding.REFUSED, 0)
    said = F.concat(
        F.lit("a deletion's key, "),
        shown_bytes(F.col("key")),
        F.lit(", cannot be read as Avro: "),
        first["message"],
    )
    refused = reason("bad_key", source.id_column, said).withField("rule", first["rule"])
    return F.when(first.isNotNull(), refused)
