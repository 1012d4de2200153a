"""Which row states of gold are exported: every change, as tables declare it, or final states only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from lakehouse.common.errors import SettingsError
from lakehouse.streams.definition import MergedTable, Stream

FINAL = "final"
_Table = TypeVar("_Table", bound=MergedTable)


def emitting(stream: Stream, emit: Mapping[str, str]) -> Stream:
    """Return the stream; the tables that `emit` names export final rows only.

    A row is sent once it is final, and again if a late record corrects it. Deletions are sent as before.
    Raises SettingsError for a table whose rows never become final.
    """
    gold = (
        replace(_emitting(table, emit), sides=tuple(_emitting(side, emit) for side in table.sides))
        for table in stream.gold
    )
    return replace(stream, gold=tuple(gold)) if emit else stream


def check_emit(emit: Mapping[str, str], streams: Sequence[Stream]) -> None:
    """Raise SettingsError for a table that no stream has."""
    known = {table.name for stream in streams for table in stream.tables}
    if unknown := sorted(emit.keys() - known):
        raise SettingsError(
            f"emit: there is no gold table {', '.join(unknown)}; known: {', '.join(sorted(known))}"
        )


def _emitting(table: _Table, emit: Mapping[str, str]) -> _Table:
    if emit.get(table.name) != FINAL:
        return table
    if table.final is None:
        raise SettingsError(
            f"emit: rows of gold.{table.name} never become final, so none would be sent; leave the table out"
        )
    return replace(table, export=replace(table.export, export_when=table.final))
