"""Apply the keys in a table `[streams.NAME]` to a stream's sources, exports and suites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from lakehouse.common.errors import SettingsError
from lakehouse.common.nearest import no_such
from lakehouse.common.quantities import parse_duration_s
from lakehouse.streams.contract import FieldType
from lakehouse.streams.declared.keys import Changes, GoldKeys, OfKind, SourceKeys
from lakehouse.streams.declared.rules import SqlRules, wrong_rules
from lakehouse.streams.definition import MergedTable, Source, Stream
from lakehouse.streams.kinds.records import identified

_Table = TypeVar("_Table", bound=MergedTable)
_OF_CONTRACT = ("event_time", "event_time_unit", "event_time_zone")
_AS_THEY_ARE = ("topic", "deletion_key", "deleted_if", "format", "start", "earliest_event_time")
_FINAL = "final"


def changed(stream: Stream, keys: Changes | OfKind) -> Stream:
    """Return the stream with these keys applied.

    If keys are wrong, raises a SettingsError that names each of them, such as
    `streams.metrics.gold.metrics_1h`.
    """
    where = f"streams.{stream.name}"
    sources, wrong = {source.table: source for source in stream.sources}, list(_unknown(stream, keys, where))
    for table, at, given in _by_source(stream, keys, where):
        try:
            sources[table] = source = _source(sources[table], at, given)
        except ValueError as error:
            wrong.append(f"{at}: {error}")
            continue
        columns = {*(field.column for field in source.contract.fields), "event_time"}
        wrong += wrong_rules(at, given.rules, columns)
    if wrong:
        raise SettingsError("; ".join(wrong))
    gold = (
        replace(_exported(table, keys.gold), sides=tuple(_exported(side, keys.gold) for side in table.sides))
        for table in stream.gold
    )
    suites = keys.suites or stream.suites
    try:
        return replace(stream, sources=tuple(sources.values()), gold=tuple(gold), suites=suites)
    except ValueError as error:
        raise SettingsError(f"{where}: {error}") from None


def _by_source(stream: Stream, keys: Changes | OfKind, where: str) -> Iterator[tuple[str, str, SourceKeys]]:
    """Yield the table name of each source, the location of its keys in `lakehouse.toml`, and the keys."""
    if isinstance(keys, OfKind):
        own = keys.sources_in_order()
        for place, (source, given) in enumerate(zip(stream.sources, own, strict=True)):
            yield source.table, where if len(own) == 1 else f"{where}.sides[{place}]", given
    elif len(stream.sources) == 1:
        yield stream.sources[0].table, where, keys
    known = {source.table for source in stream.sources}
    for table, given in keys.by_table.items():
        if table in known:
            yield table, f"{where}.sources.{table}", given


def _unknown(stream: Stream, keys: Changes | OfKind, where: str) -> Iterator[str]:
    """Yield an error message for each unknown table, ambiguous key, and `emit` without effect."""
    sources = [source.table for source in stream.sources]
    if isinstance(keys, Changes) and len(sources) > 1:
        for name in SourceKeys.model_fields:
            if name in keys.model_fields_set:
                yield (
                    f"{where}.{name}: the stream has several sources; set the key for one of them, in "
                    f"[{where}.sources.TABLE]: {', '.join(sources)}"
                )
    for table in keys.by_table:
        if table not in sources:
            yield f"{where}.sources.{table}: {no_such('table', table, sources)}"
    tables = {table.name: table for table in stream.tables}
    for name, given in keys.gold.items():
        if name not in tables:
            yield f"{where}.gold.{name}: {no_such('gold table', name, tables)}"
        elif given.emit == _FINAL and tables[name].final is None:
            yield f"{where}.gold.{name}.emit: its rows never become final, so none would be sent"


def _source(source: Source, at: str, given: SourceKeys) -> Source:
    """Return the source with these keys applied. Raises ValueError for invalid values."""
    fields = tuple(field.of(FieldType.STRING) for field in given.fields)
    contract = replace(
        source.contract, fields=(*source.contract.fields, *fields), **given.given(*_OF_CONTRACT)
    )
    rules = SqlRules(at, source.rules, tuple(given.rules)) if given.rules else source.rules
    made = replace(source, contract=contract, rules=rules)
    ids = given.unique_by or source.unique_by, given.sequence_by or source.sequence_by
    if ids != (source.unique_by, source.sequence_by):
        made = identified(made, *ids)
    limits: dict[str, Any] = {
        f"{name}_s": parse_duration_s(text)
        for name, text in given.given("allowed_lateness", "future_tolerance").items()
    }
    return replace(made, **given.given(*_AS_THEY_ARE), **limits)


def _exported(table: _Table, gold: Mapping[str, GoldKeys]) -> _Table:
    """Return the table with its export keys applied.

    With `emit = "final"`, a row is sent once it is final, and again whenever it is corrected.
    """
    given = gold.get(table.name)
    if given is None:
        return table
    changes: dict[str, Any] = {}
    if "to" in given.model_fields_set:
        changes["topic"] = given.to
    if given.sinks is not None:
        changes["sinks"] = tuple(given.sinks)
    if given.emit == _FINAL and table.final is not None:
        changes["export_when"] = table.final
    return replace(table, export=replace(table.export, **changes))
