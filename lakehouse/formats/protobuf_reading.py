"""Protobuf records read in Python, a column of many at a time: Spark has no reader of its own for them here.

Executors run this module beside their tasks, so it needs neither Spark nor the lake. A record is parsed once.
The contract's fields become typed columns; a mask marks the records that these columns prove valid, within
the bounds of `lakehouse.records`. Any other record is converted to JSON, and examined as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from lakehouse.formats.protobuf_columns import Taken, Times, Wanted, taken, taker, time_taker
from lakehouse.formats.protobuf_plain import json_of

_HEADER = 5
_ARROW = {
    "string": pa.string(),
    "long": pa.int64(),
    "double": pa.float64(),
    "decimal": pa.decimal128(38, 9),
    "boolean": pa.bool_(),
    "json": pa.string(),
}
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_UNREADABLE = (DecodeError, ValueError, TypeError, ArithmeticError, RecursionError)


@dataclass
class Reading:
    """What is read, and the schemas by their ids: sets of file descriptors, a schema's own file the last."""

    wanted: tuple[Wanted, ...]
    times: Times
    schemas: Mapping[int, bytes]
    most_magnitude: float
    _readers: dict[bytes, _Reader | str] = field(default_factory=dict)

    def read(self, values: pa.Array) -> pa.Array:
        """Return a struct for each value: the columns of `type_`; null for one without a schema here."""
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        parts, order = list[pa.StructArray](), list[pa.Array]()
        for first, places in self._groups(values):
            reader = self._reader(first)
            bodies = [value[len(first) :] for value in values.take(places).to_pylist()]
            parts.append(
                _refused(self.type, len(bodies), reader) if isinstance(reader, str) else reader.read(bodies)
            )
            order.append(places)
        if len(parts) == 1 and len(parts[0]) == len(values):
            return parts[0]
        if not parts:
            return pa.nulls(len(values), self.type)
        places = pa.concat_arrays(order)
        return pa.concat_arrays(parts).take(pc.index_in(pa.array(range(len(values)), places.type), places))

    def _groups(self, values: pa.Array) -> Iterator[tuple[bytes, pa.Array]]:
        """Yield the first bytes of values with one of the schemas, and where those that begin so are."""
        beginnings = pc.binary_slice(values, 0, _HEADER + 1)
        longer: dict[bytes, list[int]] = {}
        for first in pc.unique(beginnings).to_pylist():
            if first is None or first[:1] != b"\x00" or _schema_id(first) not in self.schemas:
                continue
            places = pc.indices_nonzero(pc.equal(beginnings, first))
            if first[_HEADER:] == b"\x00":  # the first message of its file
                yield first, places
                continue
            for place in places.to_pylist():
                value = values[place].as_py()
                longer.setdefault(value[: _end_of_index(value)], []).append(place)
        for first, numbers in longer.items():
            yield first, pa.array(numbers, pa.uint64())

    @property
    def type(self) -> pa.StructType:
        """The type of what is read."""
        typed = [(one.column, _ARROW[one.type]) for one in self.wanted]
        return pa.struct(
            [
                ("typed", pa.struct([*typed, ("event_time", _TIMESTAMP)])),
                ("proven", pa.bool_()),
                ("body", pa.string()),
                ("lacks", pa.list_(pa.string())),
                ("refused", pa.string()),
            ]
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is made of the rest."""
        return vars(self) | {"_readers": {}}

    def _reader(self, first: bytes) -> _Reader | str:
        if first not in self._readers:
            schema_id = _schema_id(first)
            index = _index(first[_HEADER:])
            descriptor = None if index is None else _message(self.schemas[schema_id], index)
            self._readers[first] = (
                f"the value names no message of schema {schema_id}"
                if descriptor is None
                else _Reader(self, descriptor, schema_id)
            )
        return self._readers[first]


class _Reader:
    """Reads messages of one type."""

    def __init__(self, reading: Reading, descriptor: Descriptor, schema_id: int) -> None:
        self._reading, self._schema_id = reading, schema_id
        self._parse = GetMessageClass(descriptor).FromString
        self._columns = [taken(descriptor, one.path, taker(one)) for one in reading.wanted]
        self._time = taken(descriptor, reading.times.path, time_taker(reading.times))
        self._lacks = [
            one.column
            for one, column in zip(reading.wanted, self._columns, strict=True)
            if one.required and not column.is_there
        ]

    def read(self, bodies: Sequence[bytes]) -> pa.StructArray:
        try:
            return self._read([self._parse(body) for body in bodies])
        except _UNREADABLE:
            if len(bodies) == 1:
                told = f"the value is no record of schema {self._schema_id}, or is cut off"
                return _refused(self._reading.type, 1, told)
        half = len(bodies) // 2
        return pa.concat_arrays([self.read(bodies[:half]), self.read(bodies[half:])])

    def _read(self, messages: list[Message]) -> pa.StructArray:
        arrays, masks = list[pa.Array](), list[pa.Array]()
        for one, column in zip(self._reading.wanted, self._columns, strict=True):
            type_ = _ARROW[one.type]
            get = column.get
            array = pa.nulls(len(messages), type_) if get is None else pa.array(get(messages), type_)
            arrays.append(array)
            masks.append(self._is_proven(one, column, array))
        time = self._times(messages)
        proven = reduce(pc.and_, [*masks, time.is_valid()])
        bodies = pa.nulls(len(messages), pa.string())
        if not pc.all(proven).as_py():
            money = {one.path for one in self._reading.wanted if one.type == "decimal"}
            each = zip(messages, proven.to_pylist(), strict=True)
            bodies = pa.array([None if is_so else json_of(one, money) for one, is_so in each], pa.string())
        names = [one.column for one in self._reading.wanted]
        typed = pa.StructArray.from_arrays([*arrays, time], [*names, "event_time"])
        type_, count = self._reading.type, len(messages)
        lacks = pa.array([self._lacks or None] * count, type_.field("lacks").type)
        rest = [proven, bodies, lacks, pa.nulls(count, pa.string())]
        return pa.StructArray.from_arrays([typed, *rest], fields=list(type_))

    def _is_proven(self, one: Wanted, column: Taken, array: pa.Array) -> pa.Array:
        """Tell which records can have no reason against this field."""
        if column.get is None:
            return _all(len(array), is_so=not (one.required or column.is_there or len(one.path) > 1))
        if one.type == "double":
            sound = pc.less_equal(pc.abs(array), self._reading.most_magnitude)
        elif one.type == "json" and one.required:
            sound = pc.not_equal(pc.utf8_trim_whitespace(array), "null")
        elif one.type == "string" and one.required:
            sound = pc.greater(pc.binary_length(array), 0)
        elif one.required or one.type == "decimal":
            return array.is_valid()  # a decimal that is null may have been digits that do not fit
        else:
            return _all(len(array), is_so=True)
        return sound.fill_null(not one.required)

    def _times(self, messages: list[Message]) -> pa.Array:
        """Return the event times that are accepted."""
        times = self._reading.times
        if self._time.get is None:
            return pa.nulls(len(messages), _TIMESTAMP)
        found = pa.array(self._time.get(messages), pa.int64())
        within = pc.and_(pc.greater_equal(found, times.first_us), pc.less_equal(found, times.last_us))
        return pc.if_else(within, found, None).cast(_TIMESTAMP)


def _schema_id(first: bytes) -> int:
    return int.from_bytes(first[1:_HEADER], "big")


def _all(count: int, *, is_so: bool) -> pa.Array:
    return pa.array([is_so] * count, pa.bool_())


def _refused(type_: pa.StructType, count: int, why: str) -> pa.StructArray:
    """Return what is read of records that cannot be: why."""
    nothing = {one.name: pa.nulls(count, one.type) for one in type_}
    nothing["proven"], nothing["refused"] = _all(count, is_so=False), pa.array([why] * count)
    return pa.StructArray.from_arrays(list(nothing.values()), fields=list(type_))


def _varints(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the signed numbers that bytes begin with, each with where it ends."""
    number, shift = 0, 0
    for place, byte in enumerate(data):
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # noqa: PLR2004 - the last byte of a number
            yield (number >> 1) ^ -(number & 1), place + 1
            number, shift = 0, 0


def _end_of_index(value: bytes) -> int:
    """Return where the list of indexes ends by which a value names its message."""
    rest = value[_HEADER : _HEADER + 64]
    left = None
    for number, end in _varints(rest):
        left = number if left is None else left - 1
        if left <= 0:
            return _HEADER + end
    return _HEADER


def _index(data: bytes) -> list[int] | None:
    """Return the indexes of a message in its file and within others; null for none."""
    numbers = [number for number, _ in _varints(data)]
    if not numbers:
        return None
    return numbers[1:] if numbers[0] else [0]


def _message(schema: bytes, index: list[int]) -> Descriptor | None:
    """Return the type of a message by its indexes."""
    files, pool = FileDescriptorSet.FromString(schema), DescriptorPool()
    for file in files.file:
        pool.Add(file)
    own = files.file[-1]
    here, names = own.message_type, [own.package] if own.package else []
    for number in index:
        if not 0 <= number < len(here):
            return None
        names.append(here[number].name)
        here = here[number].nested_type
    return pool.FindMessageTypeByName(".".join(names))


def message_class(schema: bytes, index: list[int]) -> Any:
    """Return the class of a message by its indexes in a schema, which must have it."""
    descriptor = _message(schema, index)
    if descriptor is None:
        raise LookupError(f"there is no message {index}")
    return GetMessageClass(descriptor)
