r"""Paths into JSON objects: `meta.dt` is the field dt in the object meta.

A dot descends into an object. A backslash escapes a dot or backslash in a name: `a\.b` is one name, a.b.
Array elements cannot be addressed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

_NAME = r"(?:[^.\\]|\\[.\\])+"


def names_of(path: str) -> tuple[str, ...]:
    """Return the names on a path, outermost first.

    Raises ValueError for a malformed path, and for nested names that Spark's paths cannot express: names with
    a dot or bracket that also contain a question mark or both kinds of quotes.
    """
    if not re.fullmatch(rf"{_NAME}(?:\.{_NAME})*", path):
        raise ValueError(
            f"{path!r} is not a path to a field: separate names with dots, and put a backslash before "
            "each dot and backslash in a name"
        )
    first, *others = (re.sub(r"\\(.)", r"\1", name) for name in re.findall(_NAME, path))
    for name in others:
        _step(name)
    return first, *others


def text_of(names: Sequence[str]) -> str:
    """Return the path for a sequence of names."""
    return ".".join(re.sub(r"([.\\])", r"\\\1", name) for name in names)


def within(variant: Column, names: Sequence[str]) -> Column:
    """Return the value at a path, or null if a name is absent or its parent is not an object."""
    return F.try_variant_get(variant, "$" + "".join(map(_step, names)), "variant") if names else variant


def _step(name: str) -> str:
    """Return one step of a path in Spark's syntax."""
    if not re.search(r"[.\[]", name):
        return f".{name}"
    for quote in "'\"":
        if quote not in name and "?" not in name:
            return f"[{quote}{name}{quote}]"
    raise ValueError(f"Spark has no path to a nested field called {name!r}")
