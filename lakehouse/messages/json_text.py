"""A JSON value of any type in a string column, and back again without loss.

A JSON string is kept as it is, so that it reads well in SQL: "ok" as ok. Anything else is kept as its JSON
text: {"duration":12}, 12, true. A JSON string that itself reads like JSON text, "12", keeps its quotes, so
that it stays a string. JSON null and an absent value are null.
"""

from __future__ import annotations

import json
from typing import NoReturn

from pyspark.sql import Column
from pyspark.sql import functions as F


def from_variant(value: Column, kind: Column) -> Column:
    """Return a variant as text; `kind` is its schema_of_variant."""
    text = F.try_variant_get(value, "$", "string")
    return F.when(kind.isNull() | (kind == "VOID"), F.lit(None)).otherwise(
        F.when((kind == "STRING") & ~_is_json(text), text).otherwise(F.to_json(value))
    )


def to_variant(text: Column) -> Column:
    """Return the value that the text stands for; to_json writes it as it came."""
    return F.when(_is_json(text), F.try_parse_json(text)).otherwise(text.cast("variant"))


def to_json_text(text: str) -> str:
    """Return the JSON of the value that a kept text stands for, as `to_variant` does, in Python."""
    return text if is_json_text(text) else json.dumps(text, ensure_ascii=False)


def is_json_text(text: str) -> bool:
    """Tell whether a text is JSON, whatever size its numbers have."""
    try:
        json.loads(text, parse_constant=_refuse, parse_float=str, parse_int=str)
    except (ValueError, RecursionError):
        return False
    return True


def is_plain(text: Column) -> Column:
    """Tell whether a text from Spark's JSON parser can only be a JSON string that is not JSON text.

    Such a text begins with a letter and is none of JSON's three words; objects, numbers and quoted texts do
    not. Half a surrogate pair would have become a question mark.
    """
    letter = text.between("A", "Zz") | text.between("a", "zz") | (text >= "\u00a1")
    word = text.startswith("true") | text.startswith("false") | text.startswith("null")
    return letter & ~word & ~text.contains("?")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _is_json(text: Column) -> Column:
    return F.coalesce(F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))) == 1, F.lit(False))
