"""What silver keeps of records with ids, in plain Python: one record after the other, as they landed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Place = tuple[int, int]


@dataclass(frozen=True)
class Sent:
    """A sound record: its partition and offset, its id, and what it says; null: it deletes the id."""

    place: Place
    id: str
    sequence: int
    says: Mapping[str, Any] | None


@dataclass
class _Known:
    sequence: int | None = None
    stands: Sent | None = None


def corrected(records: Iterable[Sent]) -> tuple[list[Sent], dict[Place, str]]:
    """Return the records that stand after all, in any order, and why each of the others does not."""
    known: dict[str, _Known] = {}
    fate: dict[Place, str] = {}
    for record in records:
        seen = known.setdefault(record.id, _Known())
        if record.says is None:
            fate[record.place] = "nothing_to_delete" if seen.sequence is None else "deletion"
            if seen.stands is not None:
                fate[seen.stands.place] = "superseded"
                seen.stands = None
        elif seen.sequence is None or record.sequence > seen.sequence:
            if seen.stands is not None:
                fate[seen.stands.place] = "superseded"
            seen.stands, seen.sequence = record, record.sequence
        elif record.sequence < seen.sequence or seen.stands is None:
            fate[record.place] = "superseded"
        else:
            fate[record.place] = "duplicate" if record.says == seen.stands.says else "conflicting_id"
    return [one.stands for one in known.values() if one.stands is not None], fate


def first_of_each(records: Iterable[Sent]) -> tuple[list[Sent], dict[Place, str]]:
    """Return the same where the id and the event time (`at_ms`) make a record, and the first one stands."""
    kept: dict[tuple[str, int], Sent] = {}
    fate: dict[Place, str] = {}
    for record in records:
        says = record.says or {}
        first = kept.setdefault((record.id, says["at_ms"]), record)
        if first is not record:
            fate[record.place] = "duplicate" if says == first.says else "conflicting_id"
    return list(kept.values()), fate
