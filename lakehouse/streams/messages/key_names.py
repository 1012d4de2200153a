"""Escape names in keys, so that two rows never have the same key.

A name without separators is used unchanged. In other names, separators are escaped as in URLs: `:` as `%3A`,
and so on. A percent sign becomes `%25` if it would otherwise be read as one of these escapes.
"""

from __future__ import annotations

import re

from pyspark.sql import Column
from pyspark.sql import functions as F

_ESCAPES = {":": "%3A", "-": "%2D", "{": "%7B", "}": "%7D"}
_READ_AS_ESCAPE = "%(?=25|3A|2D|7B|7D)"
_PERCENT = re.compile(_READ_AS_ESCAPE)


def escaped(name: Column, separators: str = ":") -> Column:
    """Return the name with its separators escaped, or null for null."""
    text = F.regexp_replace(name, _READ_AS_ESCAPE, "%25")
    for separator in separators:
        text = F.replace(text, F.lit(separator), F.lit(_ESCAPES[separator]))
    return text


def escaped_text(name: str, separators: str = ":") -> str:
    """Escape separators in a Python string, as `escaped` does in a column."""
    text = _PERCENT.sub("%25", name)
    for separator in separators:
        text = text.replace(separator, _ESCAPES[separator])
    return text


def joined(*names: Column, separator: str = ":") -> Column:
    """Join names into a key that is unique for each combination of names, or null if any name is null."""
    parts: list[Column] = []
    for name in names:
        parts += [F.lit(separator), escaped(name, separator)]
    return F.concat(*parts[1:])
