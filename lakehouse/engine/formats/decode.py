"""Decode records in formats other than JSON, with schemas from a registry.

A value begins with a zero byte and the id of its writer's schema (`wire`). Bronze stores the original bytes.
Before records are validated by silver, a replay or a rebuild, `decoded` adds the columns listed in
`lakehouse.engine.records.decoding`. Validity then depends only on the contract.

| rule | broken by |
| --- | --- |
| not_framed | a value that does not begin with a zero byte and an id |
| unknown_schema | an id that is impossible, unknown to the registry, or not looked up |
| undecodable | a value that does not match its schema, or a schema that cannot be read |
| trailing_bytes | bytes after the record |
| schema_lacks_field | a required field that the writer's schema does not have |

If the registry does not answer, no record is accepted or refused. The step fails and is retried after a
pause.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.common.extras import needed
from lakehouse.engine.formats import avro, keys, wire
from lakehouse.engine.formats.schemas import Schemas, no_schema, store_of
from lakehouse.engine.records import decoding, deletions
from lakehouse.streams.definition import Source


def decoded(rows: DataFrame, source: Source, lake: str | None) -> DataFrame:
    """Return bronze rows with the decoded columns for validation; for JSON, return them unchanged.

    Schemas are stored in the lake with the root directory `lake`; if it is None, they are not stored. For
    Avro and Protobuf, and for deletions with Avro keys, an extra pass over the rows collects the schema ids.
    Raises RegistryError if a schema is unknown and the registry does not answer.
    """
    if source.key_form.kind == "avro":
        rows = keys.decoded(rows, source, lambda them, of, decode: _looked_up(them, of, lake, decode))
    if source.format == "json":
        return rows
    if source.format == "json-schema":
        body = F.when(wire.is_framed(), wire.rest())
        refused = F.when(F.col("value").isNotNull(), wire.not_framed())
        return rows.withColumns({decoding.BODY: body, decoding.REFUSED: refused})
    return _looked_up(rows, replace(source, contract=deletions.as_read(source)), lake, _decoded)


def _looked_up(
    rows: DataFrame,
    source: Source,
    lake: str | None,
    decode: keys.Decode,
) -> DataFrame:
    """Decode each row with the schema whose id its value contains."""
    spark, store = rows.sparkSession, store_of(lake, source.registry.url if lake is None else "")
    ids = wire.ids_in(rows, store.known(spark))
    found = store.look_up(spark, source.registry, ids.possible)
    judged = decode(rows, source, found.schemas)
    if not found.missing and not ids.has_impossible:
        return judged
    missing = {one: no_schema(one, it) for one, it in found.missing.items()}
    return judged.withColumn(decoding.REFUSED, wire.without_schema(F.col(decoding.REFUSED), missing))


def _decoded(rows: DataFrame, source: Source, schemas: Schemas) -> DataFrame:
    if source.format == "avro":
        return avro.decoded(rows, source, schemas)
    with needed("formats", "Protobuf"):
        from lakehouse.engine.formats import protobuf
    return protobuf.decoded(rows, source, schemas)
