"""Compare gold with a store's rows in both directions, key by key."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, TypeVar

from pyspark.sql import functions as F

from lakehouse.sinks import Audited, Findings, message_of

_EXAMPLES = 20
_V = TypeVar("_V")


class Stored(NamedTuple):
    """A row in the store: the version that wrote it, and its message (None if the row was deleted)."""

    version: int
    message: str | None


class _Gold(NamedTuple):
    """A gold row's message, and whether the row is exported in its current state."""

    message: str
    is_exported: bool


_Found = tuple[bytes, _Gold | None, Stored | None]


def compare(audited: Audited, version: int, stored: Iterable[tuple[str, Stored]], label: str) -> Findings:
    """Compare gold at a version with the store's rows, which must be sorted by their keys in UTF-8.

    A row that the store has in a newer version is in flight, and is not compared. The store can have a gold
    row that is not exported in its current state, such as a reopened call, in any state.
    """
    compared, differences, examples = 0, 0, []
    for key, gold, there in _paired(_gold_at(audited, version), stored):
        if there is not None and there.version > version:
            continue
        compared += gold is not None and gold.is_exported
        what = _difference(gold, there, label)
        if what is not None:
            differences += 1
            examples.append(({"row": key}, what))
            del examples[_EXAMPLES:]
    return Findings(compared, differences, examples, [f"version {version} of gold"])


def _gold_at(audited: Audited, version: int) -> Iterator[tuple[str, _Gold]]:
    table = audited.exported.table
    leaves = F.coalesce(table.export.export_when(), F.lit(False))
    columns = table.export.redis.row_key().alias("key"), message_of(table), leaves
    rows = audited.rows_at(version).select(*columns).orderBy("key")
    return ((key, _Gold(message, is_exported)) for key, message, is_exported in rows.toLocalIterator())


def _paired(
    gold: Iterable[tuple[str, _Gold]], stored: Iterable[tuple[str, Stored]]
) -> Iterator[tuple[str, _Gold | None, Stored | None]]:
    """Yield every key with gold's and the store's row, or None where there is no row."""
    in_gold: Iterator[_Found] = ((key.encode(), row, None) for key, row in gold)
    in_store: Iterator[_Found] = ((key.encode(), None, row) for key, row in stored)
    for key, group in groupby(heapq.merge(in_gold, in_store, key=itemgetter(0)), key=itemgetter(0)):
        found = list(group)
        yield key.decode(), _first(row for _, row, _ in found), _first(row for _, _, row in found)


def _first(rows: Iterable[_V | None]) -> _V | None:
    return next((row for row in rows if row is not None), None)


def _difference(gold: _Gold | None, there: Stored | None, label: str) -> str | None:
    has = None if there is None else there.message
    if gold is None:
        return None if has is None else f"in {label}, but not in gold"
    if has == gold.message or not gold.is_exported:
        return None
    return f"in gold, but not in {label}" if has is None else f"{label} has {has}"
