"""Kafka record headers as columns."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def header_text(name: str) -> Column:
    """Return the text in a record's last header with this name, or null if there is no such header.

    The text might not be valid UTF-8.
    """
    named = F.filter("_headers", lambda header: header["key"] == name)
    return F.try_element_at(named, F.lit(-1)).getField("value").cast("string")
