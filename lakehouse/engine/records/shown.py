r"""Format records' values for messages: truncate them to 80 characters, and escape them for terminals.

Characters that a terminal might interpret or hide are escaped (`lakehouse.common.printable`): controls,
bidirectional and zero-width marks, separators other than a space, and unassigned code points. An escaped
character looks like `\u{202e}`. In JSON, common characters have JSON's own escapes, such as `\n`. Only
messages are escaped, never the values themselves.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

MOST_SHOWN = 80
"""The maximum number of a value's characters in a message."""
_MOST_BYTES = MOST_SHOWN // 2  # two digits per byte
_RUNS = r"[[^\p{C}\p{Z}] ]+|(?s:.)"  # a run of printable characters, or one other character
_PRINTABLE = r"^[[^\p{C}\p{Z}] ]"


def shown(text: Column) -> Column:
    """Return text formatted for a message, or null if the text is null."""
    runs = F.regexp_extract_all(F.substring(text, 1, MOST_SHOWN), F.lit(_RUNS), F.lit(0))
    return F.concat(F.array_join(F.transform(runs, _escaped), ""), _cut(F.char_length(text) > MOST_SHOWN))


def shown_json(variant: Column) -> Column:
    """Return a JSON value formatted for a message, with strings in quotes, or null if there is no value."""
    return shown(F.to_json(variant))


def shown_bytes(value: Column) -> Column:
    """Return bytes formatted for a message, as hexadecimal digits, or null if the bytes are null."""
    digits = F.lower(F.hex(F.substring(value, 1, _MOST_BYTES)))
    return F.concat(digits, _cut(F.octet_length(value) > _MOST_BYTES))


def with_value(message: str | Column, value: Column, before: str = ": ") -> Column:
    """Return a message followed by a value, or the message alone if the value is null."""
    said = F.lit(message) if isinstance(message, str) else message
    return F.concat(said, F.coalesce(F.concat(F.lit(before), value), F.lit("")))


def _cut(is_cut: Column) -> Column:
    return F.when(is_cut, F.lit("…")).otherwise("")


def _escaped(run: Column) -> Column:
    code = F.concat(F.lit(r"\u{"), F.lower(F.hex(F.ascii(run))), F.lit("}"))
    return F.when(run.rlike(_PRINTABLE), run).otherwise(code)
