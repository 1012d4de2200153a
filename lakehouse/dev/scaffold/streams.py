"""Generate a stream for a new package, with its suites and tests. There is one function for each kind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

from lakehouse.common.errors import SettingsError
from lakehouse.dev.scaffold import Kind
from lakehouse.dev.scaffold.choosing import (
    PAIR,
    Chosen,
    ChosenTime,
    choose_key,
    choose_pair,
    choose_payload,
    choose_time,
    choose_value,
)
from lakehouse.dev.scaffold.code import About, Columns, comment, declared, named, text
from lakehouse.dev.scaffold.reading import Samples
from lakehouse.dev.scaffold.refused import EVENT_TIME, Spoilt, mended, refused_of, spoilt_by, with_value
from lakehouse.dev.scaffold.samples import Seen, fields_of, value_at
from lakehouse.dev.scaffold.texts import Call, Record, call_tests_text, stream_text, suite_text, tests_text
from lakehouse.streams.contract import FieldType
from lakehouse.streams.kinds.records import column_of, json_name_of

_LENGTH, _LENGTH_S = "5m", 300
_THRESHOLD = 1000
_SECOND = Decimal("3.5")
_SUM = 2 + _SECOND
_PAYLOAD = "only this topic has it"
_NO_TIME = "guess: no field looks like a time, so Kafka's timestamp is the event time"


@dataclass(frozen=True)
class Wanted:
    """The request for a new stream: its name, its samples (keyed by topic), and the fields named by the user.

    `by`, `value` and `time` name the key fields, the value field and the event-time field. A field is guessed
    if its name is empty or None.
    """

    name: str
    samples: Mapping[str, Samples]
    by: tuple[str, ...] = ()
    value: str | None = None
    time: str | None = None


@dataclass(frozen=True)
class Made:
    """Python code for a new package: description, stream module, suites (keyed by gold table) and tests.

    `spoilt` contains the samples that the stream refuses, keyed by topic.
    """

    about: About
    stream: str
    suites: Mapping[str, str]
    tests: str
    spoilt: Mapping[str, Spoilt]


@dataclass(frozen=True)
class _Parts:
    """A topic's fields, grouped by role, with their columns and a sample record."""

    stream: str
    topic: str
    time: ChosenTime | None
    keys: Sequence[Chosen]
    value: Chosen
    others: Sequence[Seen]
    columns: Columns
    record: Record
    samples: Samples

    def two_records(self, second: Any) -> tuple[Record, Record]:
        """Return the sample record twice: with the value 2, and with the value `second`."""
        one, other = (with_value(self.record, self.value.field.names, value) for value in (2, second))
        return one, other

    def about(self, sentence: str) -> About:
        """Return the stream's description, made from a sentence about the value field and the key fields."""
        keys = " and ".join("{}" for _ in self.keys)
        names = (self.value.field.path, *(key.field.path for key in self.keys))
        return About(sentence.replace("{key}", keys), names)

    @property
    def value_column(self) -> str:
        """The name of the value field's column."""
        return self.columns.take(self.value.field)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The names of the key fields' columns."""
        return tuple(self.columns.take(key.field) for key in self.keys)

    @property
    def key_row(self) -> dict[str, str]:
        """The key columns of the sample record, with the values that silver contains."""
        fields = (key.field for key in self.keys)
        return {self.columns.take(field): str(value_at(self.record, field.names)) for field in fields}

    @property
    def by(self) -> list[str]:
        """The lines of code for the argument `by`."""
        names = ", ".join(
            named(key.field, self.columns.take(key.field), FieldType.STRING) for key in self.keys
        )
        why = dict.fromkeys(line for key in self.keys for line in _why(key))
        return [*why, f"by={names if len(self.keys) == 1 else f'({names})'},"]

    def value_as(self, type_: FieldType) -> list[str]:
        """Return the lines of code for the argument `value`."""
        return [*_why(self.value), f"value={named(self.value.field, self.value_column, type_)},"]


def windowed_sums(wanted: Wanted) -> Made:
    """Generate a stream that computes exact sums per window."""
    parts = _parts(wanted)
    is_signed = any(value <= 0 for value in parts.value.field.fitting)
    total = f"total_{parts.value_column}"
    arguments = [
        *parts.by,
        *parts.value_as(FieldType.DECIMAL),
        f"length={text(_LENGTH)},  # guess: five minutes of event time",
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
    )


def windowed_statistics(wanted: Wanted) -> Made:
    """Generate a stream that computes statistics per window."""
    parts = _parts(wanted)
    arguments = [
        *parts.value_as(FieldType.DOUBLE),
        "windows=Windows(",
        *(f"    {line}" for line in parts.by),
        *_absent(parts),
        f"    length={text(_LENGTH)},  # guess: five minutes of event time",
        "),",
    ]
    return _made(
        parts,
        "windowed_statistics",
        "Statistics of {} for each {key} and window.",
        arguments,
        _suite_of_windows(parts, ["count", "sum"]),
        row={"count": 2, "sum": _SUM, "min": 2, "max": _SECOND},
        sent={"count": 2, "sum": _SUM},
    )


def running_totals(wanted: Wanted) -> Made:
    """Generate a stream that keeps running totals and notifies when they reach a threshold."""
    parts = _parts(wanted)
    sums, told = f"{wanted.name}_totals", f"{wanted.name}_notifications"
    if len(parts.keys) > 1:
        raise SettingsError("the key of running-totals is a single field: use --by only once")
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
        row={"total": _THRESHOLD + 2, "count": 2},
        sent={"value": _THRESHOLD + 2},
        second=_THRESHOLD,
    )


def _suite_of_windows(parts: _Parts, required: Sequence[str]) -> dict[str, str]:
    table, key = f"{parts.stream}_{_LENGTH}", (*parts.key_columns, "window_start")
    return {table: suite_text(table, key, required, window_s=_LENGTH_S)}


def _made(
    parts: _Parts,
    kind: str,
    sentence: str,
    arguments: Sequence[str],
    suites: Mapping[str, str],
    *,
    row: Record,
    sent: Record,
    second: Any = _SECOND,
) -> Made:
    """Generate a stream that reads one topic. Its tests expect `row` from the values 2 and `second`."""
    about = parts.about(sentence)
    spoilt = _spoilt(parts.time, [parts.value.field, *parts.others], parts.columns)
    tests = tests_text(
        parts.stream,
        parts.two_records(second),
        next(iter(suites)),
        ({**parts.key_row, **row}, sent),
        refused_of(parts.samples, spoilt),
    )
    stream = stream_text(parts.stream, kind, [*_records(parts), *arguments], about)
    return Made(about, stream, suites, tests, {parts.topic: spoilt})


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
    ends = [named(field, shared.take(field), FieldType.STRING) for field in (one, other)]
    for topic, found in fields.items():
        time = times[topic]
        taken = {one.path, other.path} | ({time.field.path} if time else set())
        others = [field for field in found if field.path not in taken]
        payload = choose_payload(topic, others, fields)
        payloads[topic] = shared.take(payload, "{}_events")
        also = [field for field in others if field is not payload]
        columns = Columns(map(shared.take, (one, other, payload)))
        spoilt[topic] = _spoilt(time, also, columns)
        said = _records_of(topic, time, also, columns)
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
        about,
        stream_text(wanted.name, "joined_calls", arguments, about),
        {wanted.name: suite_text(wanted.name, (shared.take(one), shared.take(other), "ts"), ["status"])},
        call_tests_text(
            wanted.name,
            sample_files(wanted.samples),
            Call(first, record, row, *_clock(record, times[first])),
            {topic: refused_of(samples, spoilt[topic]) for topic, samples in wanted.samples.items()},
        ),
        spoilt,
    )


KINDS: Mapping[Kind, Callable[[Wanted], Made]] = {
    Kind.WINDOWED_STATISTICS: windowed_statistics,
    Kind.WINDOWED_SUMS: windowed_sums,
    Kind.RUNNING_TOTALS: running_totals,
    Kind.JOINED_CALLS: joined_calls,
}


def topic_of(name: str) -> str:
    """Return the default topic for a stream with this name."""
    return f"{name.replace('_', '-')}-events"


def sample_files(topics: Collection[str]) -> dict[str, str]:
    """Return the name of the sample file for each topic."""
    if len(topics) == 1:
        return dict.fromkeys(topics, "samples.jsonl")
    names: dict[str, str] = {}
    for number, topic in enumerate(topics, start=1):
        name = f"{column_of(topic)}.jsonl"
        names[topic] = f"{number}_{name}" if name in (*names.values(), ".jsonl") else name
    return names


def _clock(record: Record, time: ChosenTime | None) -> tuple[str | None, str]:
    """Return the times one second and one day after the record's, or None and a time in the far future."""
    value = None if time is None else value_at(record, time.field.names)
    if time is None or value is None:
        return None, "2100-01-01T00:00:00Z"
    at = time.time.of(value)
    return (at + timedelta(seconds=1)).isoformat(), (at + timedelta(days=1)).isoformat()


def _parts(wanted: Wanted) -> _Parts:
    if len(wanted.samples) != 1:
        raise SettingsError(f"this kind reads one topic; got samples for {', '.join(wanted.samples)}")
    ((topic, samples),) = wanted.samples.items()
    fields = fields_of(samples.kept)
    time = choose_time(fields, wanted.time)
    taken = [time.field] if time else []
    value = choose_value(fields, taken, wanted.value)
    keys = [choose_key(fields, [*taken, value.field], by) for by in (wanted.by or (None,))]
    taken += [value.field, *(key.field for key in keys)]
    others = [field for field in fields if field not in taken]
    parts = [value.field, *(key.field for key in keys)]
    columns = Columns()
    columns.take(value.field, "total_{}", "value")
    for field in (*parts[1:], *others):
        columns.take(field)
    records = [one.value for one in samples.kept]
    whole = (one for one in records if all(value_at(one, field.names) is not None for field in parts))
    record = mended(next(whole, records[0]), [*taken, *others])
    return _Parts(wanted.name, topic, time, keys, value, others, columns, record, samples)


def _spoilt(time: ChosenTime | None, fields: Sequence[Seen], columns: Columns) -> Spoilt:
    """Return the samples that the stream refuses because of its event time or one of the fields."""
    every = [(time.field, EVENT_TIME)] if time else []
    return spoilt_by([*every, *((field, columns.take(field)) for field in fields)])


def _why(chosen: Chosen) -> list[str]:
    """Return a comment line that explains the choice, or no line if there is nothing to explain."""
    return [comment(f"guess: {chosen.why}")] if chosen.why else []


def _absent(parts: _Parts) -> list[str]:
    """Return the lines of code for the argument `absent`: defaults for key fields that some samples lack."""
    lacking = [f'{text(key.field.path)}: "none"' for key in parts.keys if not key.field.is_required]
    return [f"    absent={{{', '.join(lacking)}}},  # guess: not in all samples"] if lacking else []


def _records(parts: _Parts) -> list[str]:
    lines = _records_of(parts.topic, parts.time, parts.others, parts.columns)
    return [
        lines[0],
        f"{lines[1]}{'  # guess: default topic' if parts.topic == topic_of(parts.stream) else ''}",
        *lines[2:],
    ]


def _records_of(topic: str, time: ChosenTime | None, others: Sequence[Seen], columns: Columns) -> list[str]:
    """Return the lines of code for the argument `records`."""
    lines = ["Records(", f"    {text(topic)},"]
    if time is None:
        lines.append(f"    # {_NO_TIME}")
    else:
        lines.append(f"    event_time={text(time.field.path)},  {comment(f'guess: {time.why}')}")
        if time.time.unit not in (None, "ms"):
            lines.append(f"    event_time_unit={text(str(time.time.unit))},")
        if time.time.zone is not None:
            lines.append(f"    event_time_zone={text(time.time.zone)},  # guess: the samples name no zone")
    if others:
        lines += [
            "    also=(",
            *(
                f"        {declared(one, columns.take(one))},  {comment(f'guess: {one.said}')}"
                for one in others
            ),
            "    ),",
        ]
    return [*lines, "),"]
