r"""Paths into JSON objects: `meta.dt` is the field dt of the object meta.

A dot descends into an object. A dot that is part of a name has a backslash before it, as a backslash has:
`a\.b` is one name, a.b. Elements of arrays have no path.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

_NAME = r"(?:[^.\\]|\\[.\\])+"


def names_of(path: str) -> tuple[str, ...]:
    """Return the names of a path, from the outermost object's field on.

    Raises ValueError for what is no path, and for names below the first that Spark's own paths cannot say:
    those with a dot or a bracket that also have a question mark or both kinds of quotes.
    """
    if not re.fullmatch(rf"{_NAME}(?:\.{_NAME})*", path):
        raise ValueError(
            f"{path!r} is not a path to a field: write names with dots between them, and a backslash before "
            "each dot and backslash of a name"
        )
    first, *others = (re.sub(r"\\(.)", r"\1", name) for name in re.findall(_NAME, path))
    for name in others:
        _step(name)
    return first, *others


def text_of(names: Sequence[str]) -> str:
    """Return the path of names."""
    return ".".join(re.sub(r"([.\\])", r"\\\1", name) for name in names)


def within(variant: Column, names: Sequence[str]) -> Column:
    """Return the value at the names, each in the one before; null if one is absent or lies in no object."""
    return F.try_variant_get(variant, "$" + "".join(map(_step, names)), "variant") if names else variant


def _step(name: str) -> str:
    """Return a step of a path as Spark writes it."""
    if not re.search(r"[.\[]", name):
        return f".{name}"
    for quote in "'\"":
        if quote not in name and "?" not in name:
            return f"[{quote}{name}{quote}]"
    raise ValueError(f"Spark has no path to a field of an object that is called {name!r}")
