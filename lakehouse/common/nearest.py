"""Suggestions for a misspelt or unknown name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from lakehouse.common.printable import cut, printable

_LONGEST = 128
"""The maximum number of characters to compare, because the cost of a comparison is quadratic."""
_SIMILAR = 0.65
"""The minimum similarity, from 0 to 1: sales and slaes score 0.8, sales and calls 0.6."""
_SHORTEST_PART = 3
_SHOWN = 64
_FEW = 12


def nearest(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Return up to `most` known names that resemble a name, best match first. The result is often empty.

    Case is ignored, and dashes count as underscores. Similarity is difflib's ratio. Names that contain the
    given name, or are contained in it, come after similar names.
    """
    spelt: dict[str, list[str]] = {}
    for one in sorted(set(known)):
        spelt.setdefault(_folded(one), []).append(one)
    wanted = _folded(name)
    close = get_close_matches(wanted, spelt, n=most, cutoff=_SIMILAR) if most > 0 else []
    parts = [one for one in spelt if one not in close and _is_part(wanted, one)]
    return [one for folded in (*close, *parts) for one in spelt[folded]][:most]


def no_such(what: str, name: str, known: Iterable[str], most: int = 3) -> str:
    """Return the message for an unknown name, such as `no stream 'slaes': did you mean sales?`.

    If no known name is similar, the message lists the known names, provided there are few: `no layer 'x':
    bronze, gold or silver`.
    """
    names = sorted(set(known))
    said = f"no {what} {shown(name)}"
    found = nearest(name, names, most)
    if found:
        return f"{said}: {did_you_mean(found)}"
    if not names:
        return f"{said}: there are none"
    return f"{said}: {_either(names)}" if len(names) <= _FEW else said


def did_you_mean(found: list[str]) -> str:
    """Return a question that suggests the names found by `nearest`. There must be at least one name."""
    return f"did you mean {_either(found)}?"


def shown(value: str) -> str:
    """Return a value from outside lakehouse in quotes, escaped and truncated."""
    return f"'{cut(value, _SHOWN)}'"


def _either(names: list[str]) -> str:
    *others, last = (printable(one) for one in names)
    return f"{', '.join(others)} or {last}" if others else last


def _folded(name: str) -> str:
    return name[:_LONGEST].casefold().replace("-", "_")


def _is_part(wanted: str, one: str) -> bool:
    return min(len(wanted), len(one)) >= _SHORTEST_PART and (wanted in one or one in wanted)
