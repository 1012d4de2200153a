"""Read Protobuf records in Python, many at a time, with checks that Spark's own reader lacks.

Python workers on the executors run this module, so it needs neither Spark nor the lake. Each record is parsed
once. The contract's fields become typed columns, and a mask marks the records that these columns prove valid,
within the bounds set in `lakehouse.engine.records`. Any other record is converted to JSON, which is then
validated.

A bad record does not affect the others: a record that cannot be read is refused with a reason. To limit
memory use, a record that would take more than 256 MiB once parsed is also refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from lakehouse.engine.formats.protobuf_columns import Taken, Times, Wanted, taken, taker, time_taker
from lakehouse.engine.formats.protobuf_examined import EVENT_TIME, Examined
from lakehouse.engine.formats.protobuf_indexes import indexes_of
from lakehouse.engine.formats.protobuf_json import DEEPEST, JsonOf
from lakehouse.engine.formats.protobuf_kinds import UnfitError, text_of
from lakehouse.engine.formats.protobuf_types import Types, tree_of
from lakehouse.engine.formats.protobuf_weight import Scale, most_per_byte

_HEADER = 5
_FIRST_MESSAGE = b"\x00"
_MOST_READERS = 256
_MOST_BYTES = 256 << 20
_ARROW = {
    "string": pa.string(),
    "long": pa.int64(),
    "double": pa.float64(),
    "decimal": pa.decimal128(38, 9),
    "boolean": pa.bool_(),
    "json": pa.string(),
}
_WHY = {
    "MaxDepth": f"the value is nested deeper than Protobuf's limit of {DEEPEST} messages",
    "bad UTF-8": "a map key in the value is not UTF-8",
}
"""Fragments of the parser's error messages, each with the corresponding reason."""
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_REASON = pa.struct([("rule", pa.string()), ("column", pa.string()), ("message", pa.string())])


@dataclass
class Reading:
    """A reader for the wanted fields. `schemas` contains file descriptor sets, keyed by schema id.

    In each set, the schema's own file is last.
    """

    wanted: tuple[Wanted, ...]
    times: Times
    schemas: Mapping[int, bytes]
    most_magnitude: float
    _types: dict[int, Types] = field(default_factory=dict)
    _readers: dict[tuple[int, tuple[int, ...]], _Reader] = field(default_factory=dict)

    def read(self, values: pa.Array) -> pa.Array:
        """Return a struct of `type` for each value, or null for a value with none of these schema ids."""
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        parts, order = list[pa.StructArray](), list[pa.Array]()
        for first, places in self._groups(values):
            parts.append(
                self._part(first, [value[len(first) :] for value in values.take(places).to_pylist()])
            )
            order.append(places)
        if len(parts) == 1 and len(parts[0]) == len(values):
            return parts[0]
        if not parts:
            return pa.nulls(len(values), self.type)
        places = pa.concat_arrays(order)
        return pa.concat_arrays(parts).take(pc.index_in(pa.array(range(len(values)), places.type), places))

    def _groups(self, values: pa.Array) -> Iterator[tuple[bytes, pa.Array]]:
        """Yield each header with a known schema id, and the positions of all values that start with it."""
        beginnings = pc.binary_slice(values, 0, _HEADER + 1)
        longer: dict[bytes, list[int]] = {}
        for first in pc.unique(beginnings).to_pylist():
            if first is None or first[:1] != b"\x00" or _schema_id(first) not in self.schemas:
                continue
            places = pc.indices_nonzero(pc.equal(beginnings, first))
            if first[_HEADER:] == _FIRST_MESSAGE:
                yield first, places
                continue
            for place in places.to_pylist():
                value = values[place].as_py()
                found = indexes_of(value[_HEADER:])
                longer.setdefault(value[: _HEADER + (0 if found is None else found[1])], []).append(place)
        for first, numbers in longer.items():
            yield first, pa.array(numbers, pa.uint64())

    @property
    def type(self) -> pa.StructType:
        """The type of the structs."""
        typed = [(one.column, _ARROW[one.type]) for one in self.wanted]
        return pa.struct(
            [
                ("typed", pa.struct([*typed, (EVENT_TIME, _TIMESTAMP)])),
                ("proven", pa.bool_()),
                ("body", pa.string()),
                ("lacks", pa.list_(pa.string())),
                ("against", pa.list_(_REASON)),
                ("refused", pa.string()),
            ]
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the caches."""
        return vars(self) | {"_readers": {}, "_types": {}}

    def _part(self, first: bytes, bodies: list[bytes]) -> pa.StructArray:
        schema_id = _schema_id(first)
        try:
            reader = self._reader(schema_id, first[_HEADER:])
        except Exception as error:  # noqa: BLE001 - a hostile schema may raise anything
            why = f"schema {schema_id} cannot be used: {type(error).__name__}"
            return _refused(self.type, len(bodies), why)
        if reader is None:
            return _refused(
                self.type, len(bodies), f"schema {schema_id} does not contain the value's message type"
            )
        return reader.read(bodies)

    def _reader(self, schema_id: int, index: bytes) -> _Reader | None:
        """Return the reader for the message type in a header, or None if there is no such type."""
        found = indexes_of(index)
        if found is None:
            return None
        key = (schema_id, found[0])
        if key not in self._readers:
            if schema_id not in self._types:
                self._types[schema_id] = Types(self.schemas[schema_id])
            declared = self._types[schema_id].message(found[0])
            if declared is None:
                return None
            if len(self._readers) >= _MOST_READERS:
                self._readers.clear()
            self._readers[key] = _Reader(self, self._types[schema_id], declared, schema_id)
        return self._readers[key]


class _Reader:
    """A reader for messages of one type."""

    def __init__(self, reading: Reading, types: Types, declared: Descriptor, schema_id: int) -> None:
        self._reading, self._schema_id = reading, schema_id
        time = Wanted(EVENT_TIME, reading.times.path, EVENT_TIME, required=False, scale=None)
        parsed = types.narrowed(declared, tree_of(one.path for one in (*reading.wanted, time)))
        self._parse = GetMessageClass(parsed).FromString
        self._scale, self._most = Scale(parsed), _MOST_BYTES / most_per_byte(parsed)
        json = JsonOf(types.declared, types.parsed)
        self._columns = [taken(declared, one.path, taker(one, json)) for one in reading.wanted]
        self._time_wanted, self._time = time, taken(declared, time.path, time_taker(reading.times))
        every = zip((*reading.wanted, time), (*self._columns, self._time), strict=True)
        self._examined = Examined(declared, every, json)
        self._lacks = [
            one.column
            for one, column in zip(reading.wanted, self._columns, strict=True)
            if one.required and not column.is_there
        ]

    def read(self, bodies: Sequence[bytes]) -> pa.StructArray:
        """Return the structs for records, given without their headers."""
        parts = [self._read_safely(some) for some in self._portions(bodies)]
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def _portions(self, bodies: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
        """Yield the records in portions that fit in memory, usually a single one."""
        if sum(map(len, bodies)) <= self._most:
            yield bodies
            return
        some, size = list[bytes](), 0
        for body in bodies:
            if some and size + len(body) > self._most:
                yield some
                some, size = [], 0
            some.append(body)
            size += len(body)
        yield some

    def _read_safely(self, bodies: Sequence[bytes]) -> pa.StructArray:
        if len(bodies) == 1 and len(bodies[0]) > self._most and self._scale.exceeds(bodies[0], _MOST_BYTES):
            return _refused(
                self._reading.type, 1, f"the value takes more than {_MOST_BYTES:,} bytes of memory"
            )
        try:
            return self._read([self._parse(body) for body in bodies])
        except Exception as error:  # noqa: BLE001 - a bad record must not affect the others
            if len(bodies) == 1:
                return _refused(self._reading.type, 1, self._why(error))
        half = len(bodies) // 2
        return pa.concat_arrays([self._read_safely(bodies[:half]), self._read_safely(bodies[half:])])

    def _why(self, error: Exception) -> str:
        if not isinstance(error, DecodeError):
            return f"the value cannot be read with schema {self._schema_id}: {type(error).__name__}"
        for sign, why in _WHY.items():
            if sign in str(error):
                return why
        return f"the value does not match schema {self._schema_id}, or is truncated"

    def _read(self, messages: list[Message]) -> pa.StructArray:
        arrays, masks = list[pa.Array](), list[pa.Array]()
        unfit: dict[int, dict[Wanted, UnfitError]] = {}
        for one, column in zip(self._reading.wanted, self._columns, strict=True):
            array, found = _array(one, column, messages)
            arrays.append(array)
            masks.append(self._is_proven(one, column, array, found))
            _note(unfit, one, found)
        time, late = self._times(messages)
        _note(unfit, self._time_wanted, late)
        proven = reduce(pc.and_, [*masks, time.is_valid()])
        count, type_ = len(messages), self._reading.type
        bodies, against = pa.nulls(count, pa.string()), pa.nulls(count, type_.field("against").type)
        if not pc.all(proven).as_py():
            each = [
                (None, None) if is_so else self._to_examine(message, unfit.get(place, {}))
                for place, (message, is_so) in enumerate(zip(messages, proven.to_pylist(), strict=True))
            ]
            bodies = pa.array([body for body, _ in each], bodies.type)
            against = pa.array([reasons for _, reasons in each], against.type)
        names = [one.column for one in self._reading.wanted]
        typed = pa.StructArray.from_arrays([*arrays, time], [*names, EVENT_TIME])
        lacks = pa.repeat(pa.scalar(self._lacks or None, type_.field("lacks").type), count)
        rest = [proven, bodies, lacks, against, pa.nulls(count, pa.string())]
        return pa.StructArray.from_arrays([typed, *rest], fields=list(type_))

    def _to_examine(
        self, message: Message, unfit: Mapping[Wanted, UnfitError]
    ) -> tuple[str, list[dict[str, str]] | None]:
        """Return a record as JSON, and any reasons for refusing the record that the JSON does not show."""
        body, more = self._examined.body(message)
        reasons = [
            {"rule": why.rule, "column": one.column, "message": f"{one.name} {why.what}"}
            for one, why in {**more, **unfit}.items()
            if why.rule is not None
        ]
        return body, reasons or None

    def _is_proven(
        self, one: Wanted, column: Taken, array: pa.Array, unfit: Mapping[int, UnfitError]
    ) -> pa.Array:
        """Return a mask of the records for which this field's value is proven valid."""
        count = len(array)
        if column.get is None:
            return _all(count, is_so=not (one.required or column.is_there or len(one.path) > 1))
        if one.type == "double":
            sound = pc.less_equal(pc.abs(array), self._reading.most_magnitude)
        elif one.type == "json" and one.required:
            sound = pc.not_equal(pc.utf8_trim_whitespace(array), "null")
        elif one.type == "string" and one.required:
            sound = pc.greater(pc.binary_length(array), 0)
        else:
            sound = array.is_valid() if one.required else _all(count, is_so=True)
        sound = sound.fill_null(not one.required)
        return pc.and_(sound, pa.array([place not in unfit for place in range(count)])) if unfit else sound

    def _times(self, messages: list[Message]) -> tuple[pa.Array, Mapping[int, UnfitError]]:
        """Return the accepted event times and, keyed by position, the errors for all other times."""
        if self._time.get is None:
            return pa.nulls(len(messages), _TIMESTAMP), {}
        values, unfit = self._time.get(messages)
        return pa.array(values, pa.int64()).cast(_TIMESTAMP), unfit


def _array(one: Wanted, column: Taken, messages: Sequence[Message]) -> tuple[pa.Array, dict[int, UnfitError]]:
    """Return a field's values and, keyed by position, its errors. Absent and invalid values are null."""
    type_ = _ARROW[one.type]
    if column.get is None:
        return pa.nulls(len(messages), type_), {}
    values, unfit = column.get(messages)
    if not pa.types.is_string(type_):
        return pa.array(values, type_), unfit
    try:
        return pa.array(values, pa.binary()).cast(type_), unfit
    except pa.ArrowInvalid:  # not UTF-8
        texts = list[str | None]()
    for place, value in enumerate(values):
        try:
            texts.append(text_of(value) if isinstance(value, bytes) else value)
        except UnfitError as why:
            texts.append(None)
            unfit[place] = why
    return pa.array(texts, type_), unfit


def _note(unfit: dict[int, dict[Wanted, UnfitError]], one: Wanted, found: Mapping[int, UnfitError]) -> None:
    for place, why in found.items():
        unfit.setdefault(place, {})[one] = why


def _schema_id(first: bytes) -> int:
    return int.from_bytes(first[1:_HEADER], "big")


def _all(count: int, *, is_so: bool) -> pa.Array:
    return pa.repeat(pa.scalar(is_so, pa.bool_()), count)


def _refused(type_: pa.StructType, count: int, why: str) -> pa.StructArray:
    """Return `count` structs for records that are refused for the reason `why`."""
    nothing = {one.name: pa.nulls(count, one.type) for one in type_}
    nothing["proven"], nothing["refused"] = _all(count, is_so=False), pa.array([why] * count)
    return pa.StructArray.from_arrays(list(nothing.values()), fields=list(type_))
