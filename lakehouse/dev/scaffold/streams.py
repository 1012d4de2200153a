"""Generate a stream for a new package, with its suites and tests. There is one function for each kind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

from lakehouse.common.errors import SettingsError
from lakehouse.dev.scaffold import Kind
from lakehouse.dev.scaffold.choosing import PAIR, ChosenTime, choose_pair, choose_payload, choose_time
from lakehouse.dev.scaffold.code import About, Columns, comment, literal, named, span, text
from lakehouse.dev.scaffold.parts import (
    Key,
    Parts,
    Wanted,
    further,
    later_than,
    parts_of,
    records_of,
    sample_files,
    spoilt_of,
    text_notes,
    time_notes,
)
from lakehouse.dev.scaffold.recognising import read_as_number
from lakehouse.dev.scaffold.refused import Spoilt, mended, refused_of
from lakehouse.dev.scaffold.samples import fields_of, value_at
from lakehouse.dev.scaffold.texts import (
    Call,
    Record,
    call_tests_text,
    stream_text,
    suite_text,
    tests_text,
)
from lakehouse.streams.contract import FieldType
from lakehouse.streams.kinds.records import json_name_of

_THRESHOLD = 1000
_FIRST, _SECOND = 2, Decimal("3.5")
_SUM = _FIRST + _SECOND
_BEYOND_ANY_THRESHOLD = 10**9
_PAYLOAD = "only this topic has it"


@dataclass(frozen=True)
class Made:
    """Python code for a new package: description, stream module, suites (keyed by gold table) and tests.

    `left_out` contains the indexes of the samples that are not in the package's file of clean samples, keyed
    by topic. `notes` has a line for each guess, and `warnings` one for each recognised field that should be
    in the key but is not. `changes` lists, in Markdown, edits of the stream after which its tests still pass.
    """

    about: About
    stream: str
    suites: Mapping[str, str]
    tests: str
    left_out: Mapping[str, Collection[int]]
    notes: Sequence[str]
    changes: Sequence[str]
    warnings: Sequence[str] = ()


def windowed_sums(wanted: Wanted) -> Made:
    """Generate a stream that computes exact sums per window."""
    parts = parts_of(wanted, Key())
    is_signed = any(value <= 0 for value in parts.value.field.fitting)
    total = f"total_{parts.value_column}"
    arguments = [
        *parts.by,
        *parts.value_as(FieldType.DECIMAL),
        parts.length_line,
        *(["signed=True,  # guess: some samples are zero or negative"] if is_signed else []),
    ]
    return _made(
        parts,
        "windowed_sums",
        "The sum and count of {} for each {key} and window.",
        arguments,
        _suite_of_windows(parts, [total, "count"]),
        row={total: _SUM, "count": 2},
        sent={json_name_of(total): _SUM, "count": 2},
        changes=[
            _longer(parts),
            *([] if is_signed else ["Amounts of zero and below count, too: add `signed=True,`."]),
        ],
        notes=[_length_note(parts)],
    )


def windowed_statistics(wanted: Wanted) -> Made:
    """Generate a stream that computes statistics per window."""
    parts = parts_of(wanted, Key(has_defaults=True))
    arguments = [
        *parts.value_as(FieldType.DOUBLE),
        "windows=Windows(",
        *(f"    {line}" for line in parts.by),
        *parts.absent,
        f"    {parts.length_line}",
        "),",
    ]
    return _made(
        parts,
        "windowed_statistics",
        "Statistics of {} for each {key} and window.",
        arguments,
        _suite_of_windows(parts, ["count", "sum"]),
        row={"count": 2, "sum": _SUM, "min": _FIRST, "max": _SECOND},
        sent={"count": 2, "sum": _SUM},
        changes=[_longer(parts)],
        notes=[_length_note(parts)],
    )


def sql(wanted: Wanted) -> Made:
    """Generate a stream that keeps aggregates per window, as SQL functions of a column."""
    parts = parts_of(wanted, Key())
    column, is_double = parts.value_column, parts.value.field.type is FieldType.DOUBLE
    row: dict[str, tuple[str, Any]] = {"count": ("count(*)", 2)}
    if not is_double:
        row["total"] = f"sum({column})", _SUM
    row |= {"least": (f"min({column})", _FIRST), "greatest": (f"max({column})", _SECOND)}
    if is_double:
        row["mean"] = f"avg({column})", _SUM / 2
    found = {name: value for name, (_, value) in row.items()}
    aggregates = literal({name: function for name, (function, _) in row.items()})
    tables = [
        "tables=Aggregates(",
        *(f"    {line}" for line in (*parts.by_path, parts.length_line)),
        *([f"    {comment(f'guess: {parts.value.field.path}: {why}')}"] if (why := parts.value.why) else []),
        *(f"    {line}" for line in f"aggregates={aggregates},".splitlines()),
        "),",
    ]
    return _made(
        parts,
        "sql",
        "Aggregates of {} for each {key} and window.",
        tables,
        _suite_of_windows(parts, list(found)),
        records=parts.records_with_roles(FieldType.DOUBLE if is_double else FieldType.DECIMAL),
        row=found,
        sent=found,
        changes=[_longer(parts)],
        notes=[_length_note(parts)],
    )


def running_totals(wanted: Wanted) -> Made:
    """Generate a stream that keeps running totals and notifies when they reach a threshold."""
    parts = parts_of(wanted, Key(is_single=True))
    sums, told = f"{wanted.name}_totals", f"{wanted.name}_notifications"
    arguments = [
        *parts.by,
        *parts.value_as(FieldType.DECIMAL),
        f"threshold=Decimal({_THRESHOLD}),  # guess: the samples do not show the threshold",
    ]
    suites = {
        sums: suite_text(sums, parts.key_columns, ["count"]),
        told: suite_text(told, (*parts.key_columns, "partition", "offset"), ["value"]),
    }
    return _made(
        parts,
        "running_totals",
        "The total of {} for each {key}, and a notification each time it reaches a threshold.",
        arguments,
        suites,
        row={"total": _BEYOND_ANY_THRESHOLD, "count": 2},
        sent={"value": _BEYOND_ANY_THRESHOLD},
        values=(0, _BEYOND_ANY_THRESHOLD),
        changes=[
            f"Another threshold, up to a billion: `Decimal(50)` instead of `Decimal({_THRESHOLD})`.",
            'A notification for each record at or above the threshold: add `notify="every_update",`.',
        ],
    )


def _suite_of_windows(parts: Parts, required: Sequence[str]) -> dict[str, str]:
    table, key = f"{parts.stream}_{parts.length.text}", (*parts.key_columns, "window_start")
    return {table: suite_text(table, key, required, window_s=parts.length.length_s)}


def _longer(parts: Parts) -> str:
    """Return the change to longer windows."""
    old, new = (f"`length={text(length)}`" for length in (parts.length.text, parts.length.longer))
    return f"Longer windows: {new} instead of {old}. The gold table then has another name."


def _length_note(parts: Parts) -> str:
    return f"length: {parts.length.text}: {parts.length.why}"


def _made(
    parts: Parts,
    kind: str,
    sentence: str,
    arguments: Sequence[str],
    suites: Mapping[str, str],
    *,
    row: Record,
    sent: Record,
    changes: Sequence[str],
    values: tuple[Any, Any] = (_FIRST, _SECOND),
    records: Sequence[str] | None = None,
    notes: Sequence[str] = (),
) -> Made:
    """Generate a stream that reads one topic. Its tests expect `row` from these two values.

    `records` are the lines of code for the records, if they contain more than the further fields.
    """
    about = parts.about(sentence)
    tests = tests_text(
        parts.stream,
        parts.two_records(*values),
        parts.now,
        ({**parts.key_row, **row}, sent),
        refused_of(parts.samples, parts.spoilt),
    )
    return Made(
        about=about,
        stream=stream_text(parts.stream, kind, [*(records or parts.records), *arguments], about),
        suites=suites,
        tests=tests,
        left_out={parts.topic: {*parts.spoilt, *parts.repeated}},
        notes=[*parts.notes, *notes],
        changes=[*_common_changes(parts), *changes],
        warnings=parts.left,
    )


def _common_changes(parts: Parts) -> list[str]:
    """Return the changes that suit every kind with one topic."""
    changes, ids = [], () if parts.identity is None else parts.identity.fields
    if ids:
        changes.append("A repeated record counts once: uncomment `unique_by`.")
    if len(ids) > 1:
        changes.append("A corrected record replaces the earlier one: uncomment `sequence_by` as well.")
    if parts.identity is not None and parts.identity.deletions:
        changes.append("A deleted row no longer counts: uncomment `deletion_key` and `deleted_if` as well.")
    if parts.time is not None and parts.time.time.zone is not None:
        changes.append('The times are local: `event_time_zone="Europe/Berlin"` instead of `"UTC"`.')
    free = [field for field in parts.others if field.is_required and field not in ids]
    if free:
        where = span(free[0].path)
        changes.append(f"Records without {where} are accepted, too: add `required=False` to its `Field`.")
    return changes


def joined_calls(wanted: Wanted) -> Made:
    """Generate a stream that joins records from several topics. Raises SettingsError for a single topic."""
    if len(wanted.samples) < PAIR:
        raise SettingsError(
            "joined-calls reads several topics: expected --sample TOPIC=FILE for each of them"
        )
    fields = {topic: fields_of(samples.kept, deep=False) for topic, samples in wanted.samples.items()}
    times = {topic: choose_time(found, wanted.time) for topic, found in fields.items()}
    one, other = choose_pair(wanted.by, fields, times)
    sides, payloads, shared = [], dict[str, str](), Columns()
    spoilt: dict[str, Spoilt] = {}
    notes = [f"pair: {one.path} and {other.path}: strings in every sample"]
    ends = [named(field, shared.take(field), FieldType.STRING) for field in (one, other)]
    for topic, found in fields.items():
        time = times[topic]
        taken = {one.path, other.path} | ({time.field.path} if time else set())
        others = [field for field in found if field.path not in taken]
        payload = choose_payload(topic, others, fields)
        payloads[topic] = shared.take(payload, "{}_events")
        also = [read_as_number(field) for field in others if field is not payload]
        columns = Columns(map(shared.take, (one, other, payload)))
        spoilt[topic] = spoilt_of(time, also, columns)
        notes += [f"{topic}: {line}" for line in (*time_notes(time), f"payload: {payload.path}: {_PAYLOAD}")]
        notes += [f"{topic}: {line}" for line in text_notes(also)]
        said = records_of(topic, time, further(also, columns))
        sides += [
            "    Side(",
            f"        records={said[0]}",
            *(f"        {line}" for line in said[1:]),
            f"        # guess: {_PAYLOAD}",
            f"        payload={named(payload, payloads[topic], FieldType.JSON)},",
            "    ),",
        ]
    arguments = [
        "(",
        *sides,
        "),",
        f"pair=({', '.join(ends)}),  # guess: strings in every sample",
        'gap="1m",  # guess: events up to a minute apart are one call',
        'grace="3m",  # guess: a call waits three minutes for late events',
    ]
    topics = ", ".join("{}" for _ in wanted.samples)
    about = About(
        f"Records from {topics} that are close together in time, joined into one row.", tuple(wanted.samples)
    )
    first = next(iter(wanted.samples))
    record = mended(wanted.samples[first].kept[0].value, fields[first])
    row: dict[str, Any] = {shared.take(end): str(value_at(record, end.names)) for end in (one, other)}
    row[f"{payloads[first]}_events"] = 1
    return Made(
        about=about,
        stream=stream_text(wanted.name, "joined_calls", arguments, about),
        suites={
            wanted.name: suite_text(wanted.name, (shared.take(one), shared.take(other), "ts"), ["status"])
        },
        tests=call_tests_text(
            wanted.name,
            sample_files(wanted.samples),
            Call(first, record, row, *_clock(record, times[first])),
            {topic: refused_of(samples, spoilt[topic]) for topic, samples in wanted.samples.items()},
        ),
        left_out=spoilt,
        notes=notes,
        changes=(
            'Events that are further apart are one call: `gap="5m"` instead of `gap="1m"`.',
            'A call waits longer for late events: `grace="10m"` instead of `grace="3m"`.',
        ),
    )


def _clock(record: Record, time: ChosenTime | None) -> tuple[str | None, str]:
    """Return the times one second and one day after the record's, or None and a time in the far future."""
    value = None if time is None else value_at(record, time.field.names)
    if time is None or value is None:
        return None, "2100-01-01T00:00:00Z"
    return (time.time.of(value) + timedelta(seconds=1)).isoformat(), later_than(time, [value])


KINDS: Mapping[Kind, Callable[[Wanted], Made]] = {
    Kind.WINDOWED_STATISTICS: windowed_statistics,
    Kind.WINDOWED_SUMS: windowed_sums,
    Kind.RUNNING_TOTALS: running_totals,
    Kind.JOINED_CALLS: joined_calls,
    Kind.SQL: sql,
}
"""The function that generates a stream of each kind."""
