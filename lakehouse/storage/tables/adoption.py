"""Adoption of a lake's copy: it replaces the original lake, and the versions of both then diverge. No I/O.

`lakehouse run all --adopt` records the time (ms since the epoch) as a transaction in each gold table and in
the dead-letter table. The transaction's application names the last version that the table shares with the
original:

    lakehouse adopted@60    1764172800000

The adoption distinguishes version 61 of the copy from version 61 of the original, whose rows might already
have been exported. A RESTORE to an earlier version keeps it, unlike a table property. Where Kafka's consumer
groups and the lake record the rows sent, they identify a table by its id, followed by the adoption:
`c31e... adopted 1764172800000@60`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lakehouse.storage.tables.specs import Move, Position

_APPLICATION = "lakehouse adopted@"
_ADOPTED = " adopted "
_VALUE = re.compile(r"(\d+)@(\d+)")


@dataclass(frozen=True)
class Adoption:
    """The time of a copy's adoption (ms since the epoch), and the last version shared with the original."""

    at_ms: int
    version: int

    def __str__(self) -> str:
        return f"{self.at_ms}@{self.version}"

    @property
    def move(self) -> Move:
        """The transaction that records the adoption."""
        return Move(f"{_APPLICATION}{self.version}", None, self.at_ms)


def adoption_in(transactions: Mapping[str, int]) -> Adoption | None:
    """Return the last adoption among a table's transactions, or None if there is none."""
    found = (
        Adoption(at_ms, int(name.removeprefix(_APPLICATION)))
        for name, at_ms in transactions.items()
        if name.startswith(_APPLICATION)
    )
    return max(found, key=lambda adoption: adoption.at_ms, default=None)


def sender(table_id: str, adoption: Adoption | None) -> str:
    """Return the name that identifies a table where sent rows are recorded."""
    return table_id if adoption is None else f"{table_id}{_ADOPTED}{adoption}"


def adopted_ms(named: str) -> int:
    """Return when the table with this name (`sender`) was adopted, in ms since the epoch, or 0 if never."""
    found = _parsed(named.partition(_ADOPTED)[2])
    return 0 if found is None else found.at_ms


def both_have(one: str, other: str) -> Position:
    """Return the position up to which two tables with the same id are certain to have the same versions."""
    versions = [
        found.version
        for named in (one, other)
        if (found := _parsed(named.partition(_ADOPTED)[2])) is not None
    ]
    return Position(min(versions, default=-1) + 1)


def _parsed(text: str) -> Adoption | None:
    found = _VALUE.fullmatch(text)
    return None if found is None else Adoption(int(found[1]), int(found[2]))
