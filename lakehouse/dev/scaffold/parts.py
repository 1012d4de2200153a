"""Find the parts of a stream that reads one topic: event time, value, key, other fields, and proposals."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from lakehouse.common.errors import SettingsError
from lakehouse.dev.scaffold import changes
from lakehouse.dev.scaffold.choosing import (
    Chosen,
    ChosenTime,
    choose_key,
    choose_time,
    choose_value,
    has_key,
    named_key,
    tells_records_apart,
    unread_times,
)
from lakehouse.dev.scaffold.code import About, Columns, comment, declared, named, text, typed
from lakehouse.dev.scaffold.lengths import Length, length_of
from lakehouse.dev.scaffold.reading import Samples
from lakehouse.dev.scaffold.recognising import (
    Identity,
    Part,
    identity_of,
    is_label,
    parts_of_key,
    read_as_number,
)
from lakehouse.dev.scaffold.refused import EVENT_TIME, Spoilt, mended, spoilt_by, with_value
from lakehouse.dev.scaffold.samples import NUMBERS, Seen, fields_of, value_at
from lakehouse.dev.scaffold.texts import Record
from lakehouse.streams.contract import FieldType
from lakehouse.streams.declared.envelopes import TIME
from lakehouse.streams.kinds.records import column_of

NO_TIME = "no field looks like a time, so Kafka's timestamp is the event time"
NO_ZONE = "the times have no offset: they are read as UTC; if they are local, name their zone"
NO_KEY = (
    "no field looks like a key: specify one with --by; for a table without a key, write a stream of the kind "
    "sql whose key is a constant (docs/streams-sql.md)"
)
_DAY = timedelta(days=1)


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
class Key:
    """What a kind accepts as its key: one field or several, and whether records may lack some of them."""

    is_single: bool = False
    has_defaults: bool = False


@dataclass(frozen=True)
class Parts:
    """A topic's fields, grouped by role, with their columns and a sample record.

    `unread` says why a field with the name of a time is not the event time, if there is none.
    `left` has a line for each field that separates values which must not be added up, but is not in the key.
    """

    stream: str
    topic: str
    time: ChosenTime | None
    keys: Sequence[Chosen]
    value: Chosen
    others: Sequence[Seen]
    identity: Identity | None
    unread: str | None
    left: Sequence[str]
    columns: Columns
    record: Record
    samples: Samples
    has_defaults: bool

    def two_records(self, first: Any, second: Any) -> tuple[Record, Record]:
        """Return the sample record with each of two values. If records have ids, the ids differ."""
        one, other = (with_value(self.record, self.value.field.names, value) for value in (first, second))
        if self.identity is not None:
            names = self.identity.id.names
            other = with_value(other, names, self.identity.another(value_at(other, names)))
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
        return self._by(named(key.field, self.columns.take(key.field), FieldType.STRING) for key in self.keys)

    @property
    def by_path(self) -> list[str]:
        """The lines of code for the argument `by` of a kind whose fields are declared in `records`."""
        return self._by(text(key.field.path) for key in self.keys)

    def _by(self, fields: Iterable[str]) -> list[str]:
        names = ", ".join(fields)
        if len(self.keys) == 1:
            why = _why(self.keys[0])
        else:
            why = [comment(f"guess: {key.field.path}: {key.why}") for key in self.keys if key.why]
        why += [comment(f"guess: {line}") for line in self.left]
        return [*why, f"by={names if len(self.keys) == 1 else f'({names})'},"]

    def value_as(self, type_: FieldType) -> list[str]:
        """Return the lines of code for the argument `value`."""
        return [*_why(self.value), f"value={named(self.value.field, self.value_column, type_)},"]

    @property
    def absent(self) -> list[str]:
        """The lines of code for the argument `absent`: defaults for key fields that some samples lack."""
        lacking = [f'{text(key.field.path)}: "none"' for key in self.keys if not key.field.is_required]
        return [f"    absent={{{', '.join(lacking)}}},  # guess: not in all samples"] if lacking else []

    @cached_property
    def length(self) -> Length:
        """The guessed length of windows."""
        return length_of(self.time, [key.field for key in self.keys])

    @property
    def length_line(self) -> str:
        """The line of code for the argument `length`."""
        return f"length={text(self.length.text)},  {comment(f'guess: {self.length.why}')}"

    @property
    def records(self) -> list[str]:
        """The lines of code for the argument `records`."""
        return self._records(further(self.others, self.columns))

    def records_with_roles(self, value: FieldType) -> list[str]:
        """Return the lines of code for `records` with all fields: key, value (of this type), others."""
        roles = [(key.field, FieldType.STRING) for key in self.keys] + [(self.value.field, value)]
        first = [_with_guess(typed(one, self.columns.take(one), type_), one) for one, type_ in roles]
        return self._records([*first, *further(self.others, self.columns)])

    def _records(self, fields: Sequence[str]) -> list[str]:
        lines = records_of(self.topic, self.time, fields)
        is_default = self.topic == topic_of(self.stream)
        return [
            lines[0],
            f"{lines[1]}{'  # guess: default topic' if is_default else ''}",
            *(f"    {line}" for line in self._proposed),
            *lines[2:],
        ]

    @property
    def _proposed(self) -> list[str]:
        """The comments that propose an id and a sequence."""
        lines = []
        for argument, value, why in () if self.identity is None else self.identity.proposals:
            lines += [comment(f"guess: {value}: {why}"), comment(f"{argument}={text(value)},")]
        return lines

    @property
    def spoilt(self) -> Spoilt:
        """The samples that the stream refuses."""
        required = [self.value.field, *(() if self.has_defaults else (key.field for key in self.keys))]
        return spoilt_of(self.time, [self.value.field, *self.others], self.columns, required)

    @property
    def repeated(self) -> frozenset[int]:
        """The samples whose id occurs in an earlier sample."""
        every = range(len(self.samples.kept))
        return frozenset(every) - self.identity.firsts() if self.identity is not None else frozenset()

    @property
    def now(self) -> str | None:
        """A day after the latest event time in the samples, as ISO 8601, or None if there is none."""
        return None if self.time is None else later_than(self.time, self.time.field.fitting)

    @property
    def notes(self) -> list[str]:
        """A line for each guess and proposal, with what was seen."""
        lines = [*time_notes(self.time), *([] if self.unread is None else [f"event time: {self.unread}"])]
        for role, chosen in (("value", self.value), *(("key", key) for key in self.keys)):
            lines.append(f"{role}: {chosen.field.path}{f': {chosen.why}' if chosen.why else ''}")
        lines += text_notes(self.others)
        if self.identity is not None:
            lines += [f"proposal: {value}: {why}" for _, value, why in self.identity.proposals]
        if self.spoilt:
            first = self.samples.kept[min(self.spoilt)].line.place
            lines.append(
                f"dead letters: {len(self.spoilt):,} of {len(self.samples.kept):,} samples, such as {first}"
            )
        return lines


def parts_of(wanted: Wanted, key: Key) -> Parts:
    """Return the parts of a stream that reads one topic and whose kind accepts such a key."""
    if len(wanted.samples) != 1:
        raise SettingsError(f"this kind reads one topic; got samples for {', '.join(wanted.samples)}")
    if key.is_single and len(wanted.by) > 1:
        raise SettingsError("the key of running-totals is a single field: use --by only once")
    ((topic, samples),) = wanted.samples.items()
    fields, named_time = fields_of(samples.kept), wanted.time
    if is_changes := changes.are_changes(samples):
        fields, named_time = changes.fields_of_rows(fields), named_time or TIME
    time = choose_time(fields, named_time)
    taken = [time.field] if time else []
    value = choose_value(fields, taken, wanted.value)
    taken.append(value.field)
    fields = [value.field if field.path == value.field.path else field for field in fields]
    named_keys = [named_key(fields, by) for by in wanted.by]
    identity = identity_of(fields, [*taken, *(one.field for one in named_keys)])
    identity = changes.with_deletions(identity) if is_changes else identity
    apart = parts_of_key([field for field in fields if field not in taken], value.field)
    keys = named_keys or _keys(fields, taken, apart, identity, key)
    taken += [one.field for one in keys]
    ids = () if identity is None else identity.fields
    others = [field if field in ids else read_as_number(field) for field in fields if field not in taken]
    columns = Columns()
    columns.take(value.field, "total_{}", "value")
    for field in (*(one.field for one in keys), *others):
        columns.take(field)
    record = _whole_record(samples, [value.field, *(one.field for one in keys)], [*taken, *others])
    return Parts(
        stream=wanted.name,
        topic=topic,
        time=time,
        keys=keys,
        value=value,
        others=others,
        identity=identity,
        unread=unread_times(fields) if time is None else None,
        left=_left(apart, keys, key, is_named=bool(named_keys)),
        columns=columns,
        record=record,
        samples=samples,
        has_defaults=key.has_defaults,
    )


def _keys(
    fields: Sequence[Seen], taken: Sequence[Seen], parts: Sequence[Part], identity: Identity | None, key: Key
) -> list[Chosen]:
    """Return the guessed key: a field whose values records share, and the parts that can be in the key."""
    able = [] if key.is_single else [part for part in parts if key.has_defaults or _is_common(part.field)]
    own = [part.field for part in able]
    numbers = [field for field in fields if read_as_number(field).type in NUMBERS]
    quantities = [field for field in numbers if not is_label(field)]
    last = [*own, *quantities, *(() if identity is None else identity.fields)]
    likely = [field for field in fields if field not in last and tells_records_apart(field)]
    is_enough = bool(own) and not has_key(likely, taken)
    chosen = [] if is_enough else [choose_key(fields, taken, last)]
    if any(one.field.path == quantity.path for one in chosen for quantity in quantities):
        raise SettingsError(NO_KEY)
    return chosen + [
        Chosen(one.field.as_text, f"{one.seen}: {one.values} are not added up, so it is part of the key")
        for one in able
        if all(one.field != other.field for other in chosen)
    ]


def _left(parts: Iterable[Part], keys: Sequence[Chosen], key: Key, *, is_named: bool) -> list[str]:
    """Return a line for each part that is not in the key."""
    lines = []
    for part in parts:
        if any(part.field == one.field for one in keys):
            continue
        path = part.field.path
        if key.is_single:
            but = "the key of running-totals is a single field"
            way = "the key of windowed-sums can have several"
        elif is_named:
            but, way = "it is not in the key", f"to keep them apart, add --by {path}"
        else:
            but = f"{len(part.field.lacking):,} of {len(part.field.samples):,} samples lack it"
            way = f"with --by {path}, they are kept apart, and records without it become dead letters"
        lines.append(f"{path} has {part.seen}, but {but}: {part.values} are added up; {way}")
    return lines


def _is_common(field: Seen) -> bool:
    """Return whether at least nine in ten samples have the field."""
    return 10 * len(field.lacking) <= len(field.samples)


def _whole_record(samples: Samples, needed: Sequence[Seen], fields: Iterable[Seen]) -> Record:
    """Return the first sample with all needed values, in which a number replaces each spoiler."""
    records = [one.value for one in samples.kept]
    whole = (one for one in records if all(value_at(one, field.names) not in (None, "") for field in needed))
    return mended(next(whole, records[0]), fields)


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


def later_than(time: ChosenTime, values: Iterable[Any]) -> str:
    """Return the time a day after the latest of these event times, in ISO 8601."""
    latest: datetime = max(time.time.of(value) for value in values)
    return (latest + _DAY).isoformat()


def time_notes(time: ChosenTime | None) -> list[str]:
    """Return the lines about the event time."""
    if time is None:
        return [f"event time: {NO_TIME}"]
    zone = [] if time.time.zone is None else [f"event time: {NO_ZONE} with event_time_zone"]
    return [f"event time: {time.field.path}: {time.why}", *zone]


def text_notes(fields: Iterable[Seen]) -> list[str]:
    """Return a line for each field whose numbers are written as text."""
    return [f"field: {field.path}: {field.said}" for field in fields if field.texts]


def further(fields: Iterable[Seen], columns: Columns) -> list[str]:
    """Return a line of code for each further field, with a comment."""
    return [_with_guess(declared(field, columns.take(field)), field) for field in fields]


def _with_guess(code: str, field: Seen) -> str:
    return f"{code},  {comment(f'guess: {field.said}')}"


def spoilt_of(
    time: ChosenTime | None, fields: Sequence[Seen], columns: Columns, required: Sequence[Seen] = ()
) -> Spoilt:
    """Return the samples that the stream refuses because of its event time or one of the fields."""
    every = [(time.field, EVENT_TIME)] if time else []
    return spoilt_by(
        [*every, *((field, columns.take(field)) for field in fields)],
        [(field, columns.take(field)) for field in required],
    )


def records_of(topic: str, time: ChosenTime | None, fields: Sequence[str]) -> list[str]:
    """Return the lines of code for the argument `records`, with these lines for its fields."""
    lines = ["Records(", f"    {text(topic)},"]
    if time is None:
        lines.append(f"    # guess: {NO_TIME}")
    else:
        lines.append(f"    event_time={text(time.field.path)},  {comment(f'guess: {time.why}')}")
        if time.time.unit not in (None, "ms"):
            lines.append(f"    event_time_unit={text(str(time.time.unit))},")
        if time.time.zone is not None:
            lines.append(f"    event_time_zone={text(time.time.zone)},  # guess: {NO_ZONE}")
    if fields:
        lines += ["    also=(", *(f"        {field}" for field in fields), "    ),"]
    return [*lines, "),"]


def _why(chosen: Chosen) -> list[str]:
    """Return a comment line that explains the choice, or no line if there is nothing to explain."""
    return [comment(f"guess: {chosen.why}")] if chosen.why else []
