"""Lossless encoding of any JSON value in a string column.

A JSON string is stored without quotes, to be readable in SQL: "ok" as ok. Any other value is stored as JSON
text: {"duration":12}, 12, true. A JSON string that itself reads like JSON text, such as "12", keeps its
quotes, so that it remains a string. JSON null and an absent value become null.
"""

from __future__ import annotations

import json
from typing import NoReturn

from pyspark.sql import Column
from pyspark.sql import functions as F


def from_variant(value: Column, kind: Column) -> Column:
    """Return a variant as text. `kind` is the variant's type, from schema_of_variant."""
    text = F.try_variant_get(value, "$", "string")
    return F.when(kind.isNull() | (kind == "VOID"), F.lit(None)).otherwise(
        F.when((kind == "STRING") & ~_is_json(text), text).otherwise(F.to_json(value))
    )


def to_variant(text: Column) -> Column:
    """Return the value of stored text as a variant, which to_json writes unchanged."""
    return F.when(_is_json(text), F.try_parse_json(text)).otherwise(text.cast("variant"))


def to_json_text(text: str) -> str:
    """Return the value of stored text as JSON. This is the Python counterpart of `to_variant`."""
    return text if is_json_text(text) else json.dumps(text, ensure_ascii=False)


def is_json_text(text: str) -> bool:
    """Return whether a string is valid JSON. Numbers can be arbitrarily large."""
    try:
        json.loads(text, parse_constant=_refuse, parse_float=str, parse_int=str)
    except (ValueError, RecursionError):
        return False
    return True


def is_plain(text: Column) -> Column:
    """Return whether text from Spark's parser is certain to be a JSON string that does not read like JSON.

    Such text begins with a letter, but not with true, false or null. Objects, arrays, numbers and quoted
    strings begin with other characters. Text with a question mark is excluded, because the question mark can
    stand for half a surrogate pair.
    """
    letter = text.between("A", "Zz") | text.between("a", "zz") | (text >= "\u00a1")
    word = text.startswith("true") | text.startswith("false") | text.startswith("null")
    return letter & ~word & ~text.contains("?")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _is_json(text: Column) -> Column:
    return F.coalesce(F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))) == 1, F.lit(False))
