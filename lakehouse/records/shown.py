r"""Values of records in messages: cut to 80 characters, and escaped so that any screen shows them as such.

Escaped is what a terminal may obey or not show (`lakehouse.printable`): controls, marks that turn the
direction of text or take no room, separators but the ordinary space, code points without a character. They
become `\u{202e}`; JSON has escapes of its own for the usual ones, such as `\n`. Column -> Column, for reasons
alone: no sound record pays for it.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

MOST_SHOWN = 80
"""Characters of a value before it is cut."""
_MOST_BYTES = MOST_SHOWN // 2  # two digits each
_RUNS = r"[[^\p{C}\p{Z}] ]+|(?s:.)"  # printable characters together, and any other by itself
_PRINTABLE = r"^[[^\p{C}\p{Z}] ]"


def shown(text: Column) -> Column:
    """Return text as messages show it; null for null."""
    runs = F.regexp_extract_all(F.substring(text, 1, MOST_SHOWN), F.lit(_RUNS), F.lit(0))
    return F.concat(F.array_join(F.transform(runs, _escaped), ""), _cut(F.char_length(text) > MOST_SHOWN))


def shown_json(variant: Column) -> Column:
    """Return a JSON value as messages show it, a string in quotes; null for no value."""
    return shown(F.to_json(variant))


def shown_bytes(value: Column) -> Column:
    """Return bytes as messages show them, in hexadecimal digits; null for null."""
    digits = F.lower(F.hex(F.substring(value, 1, _MOST_BYTES)))
    return F.concat(digits, _cut(F.octet_length(value) > _MOST_BYTES))


def with_value(message: str | Column, value: Column, before: str = ": ") -> Column:
    """Return a message that ends with a shown value; without one, the message alone."""
    said = F.lit(message) if isinstance(message, str) else message
    return F.concat(said, F.coalesce(F.concat(F.lit(before), value), F.lit("")))


def _cut(is_cut: Column) -> Column:
    return F.when(is_cut, F.lit("…")).otherwise("")


def _escaped(run: Column) -> Column:
    code = F.concat(F.lit(r"\u{"), F.lower(F.hex(F.ascii(run))), F.lit("}"))
    return F.when(run.rlike(_PRINTABLE), run).otherwise(code)
