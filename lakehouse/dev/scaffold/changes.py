"""Recognise the change events of a table, as Debezium writes them, and propose how to read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lakehouse.dev.scaffold.reading import LeftOut, Sample, Samples
from lakehouse.dev.scaffold.recognising import Identity
from lakehouse.dev.scaffold.samples import Seen, listed
from lakehouse.streams.declared.envelopes import DELETED, ROW, SEQUENCE, TIME


def rows_of(samples: Samples) -> Samples:
    """Return the samples without change events that delete a row, since these have no `after`."""
    if not are_changes(samples):
        return samples
    kept = [one for one in samples.kept if one.value[ROW]]
    deleting = [LeftOut(one.line, "deletes a row", None) for one in samples.kept if not one.value[ROW]]
    return replace(samples, kept=kept, left_out=[*samples.left_out, *deleting]) if kept else samples


def are_changes(samples: Samples) -> bool:
    """Return whether all samples are change events."""
    return all(map(_is_change, samples.kept))


def fields_of_rows(fields: Sequence[Seen]) -> list[Seen]:
    """Return the fields of the changed row, and those with the time and the sequence of the change."""
    return [field for field in fields if field.names[0] == ROW or field.path in (TIME, SEQUENCE)]


def with_deletions(identity: Identity | None) -> Identity | None:
    """Return the identity with proposals for deletions, if it is a field of the changed row."""
    if identity is None or identity.id.names[0] != ROW:
        return identity
    name = listed([".".join(identity.id.names[1:])])
    key = f'a record without a value deletes the row in its key, such as {{"{name}": 17}}: set deletion_key'
    mark = f"a change event with {DELETED} deletes the row in `before`: set deleted_if"
    proposals = ("deletion_key", f"json:{name}", key), ("deleted_if", DELETED, mark)
    return replace(identity, deletions=proposals)


def _is_change(sample: Sample) -> bool:
    value = sample.value
    return (
        isinstance(value.get("op"), str)
        and isinstance(value.get("source"), dict)
        and isinstance(value.get(ROW, ""), dict | None)
    )
