"""Adoption: a copy of a lake takes the original's place, and its versions are others from there on. Pure.

`lakehouse adopt` notes in a gold table's property when that was (ms since the epoch), and the last version
that the original has as well:

    lakehouse.adopted    1764172800000@60

So version 61 of the original, which may have been sent, is not mistaken for version 61 of the copy. Kafka's
groups and the notes in the lake name the table that rows were sent of by its id, followed by its adoption:
`c31e… adopted 1764172800000@60`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lakehouse.tables.specs import Position

PROPERTY = "lakehouse.adopted"
_ADOPTED = " adopted "
_VALUE = re.compile(r"(\d+)@(\d+)")


@dataclass(frozen=True)
class Adoption:
    """When a copy was adopted (ms since the epoch), and the last version that the original has as well."""

    at_ms: int
    version: int

    def __str__(self) -> str:
        return f"{self.at_ms}@{self.version}"


def adoption_in(properties: Mapping[str, str]) -> Adoption | None:
    """Return the last adoption that a table's properties tell of; null for none."""
    return _parsed(properties.get(PROPERTY, ""))


def sender(table_id: str, adoption: Adoption | None) -> str:
    """Return what notes of rows that were sent call a table."""
    return table_id if adoption is None else f"{table_id}{_ADOPTED}{adoption}"


def adopted_ms(named: str) -> int:
    """Return when the table that notes call so was adopted, 0 for never."""
    found = _parsed(named.partition(_ADOPTED)[2])
    return 0 if found is None else found.at_ms


def both_have(one: str, other: str) -> Position:
    """Return up to where two tables of one id surely have the same versions."""
    versions = [
        found.version
        for named in (one, other)
        if (found := _parsed(named.partition(_ADOPTED)[2])) is not None
    ]
    return Position(min(versions, default=-1) + 1)


def _parsed(text: str) -> Adoption | None:
    found = _VALUE.fullmatch(text)
    return None if found is None else Adoption(int(found[1]), int(found[2]))
