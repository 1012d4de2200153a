"""Fields of records that their contract does not name: kept in bronze, byte for byte, and counted here."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.stream import Contract


def unknown_fields(rows: DataFrame, contract: Contract) -> DataFrame:
    """Return the fields of bronze rows' JSON objects that the contract does not name, one row per field.

    `records` is how many have it; the first of them, by partition and offset, is at `first_partition`,
    `first_offset`. Records that are not UTF-8, not JSON or not an object have no fields.
    """
    text = F.col("value").cast("string")
    names = F.json_object_keys(F.when(F.is_valid_utf8(text), text))
    known = F.array(*(F.lit(field.name) for field in contract.fields), F.lit(contract.event_time))
    place = F.min(F.struct("partition", "offset"))
    return (
        rows.select("partition", "offset", F.explode(F.array_except(names, known)).alias("field"))
        .groupBy("field")
        .agg(F.count(F.lit(1)).alias("records"), place.alias("first"))
        .select(
            "field",
            "records",
            F.col("first.partition").alias("first_partition"),
            F.col("first.offset").alias("first_offset"),
        )
    )
