"""A source's contract: the fields of its records, their types, and the event time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, cast, get_args

from lakehouse.common.zones import is_zone
from lakehouse.streams.messages import json_path

MOST_PLACES = 9
"""The maximum scale of a decimal."""
MOST_MAGNITUDE = 1e140
"""The greatest allowed magnitude of a double. Squares and sums of squares therefore also fit in a double."""
COORDINATES = ("topic", "partition", "offset")
"""The columns with a record's coordinates in Kafka. They are the key of bronze and silver tables."""
OWN_TIME = "own_time"
"""The silver column with the event time in the record itself. Its maximum, the front, sets the watermark."""
SILVER_ADDS = ("event_time", OWN_TIME, *COORDINATES, "kafka_timestamp", "ingested_at", "admitted")
"""The columns that silver adds to those in a contract."""
OWN_TABLES = frozenset({"dead_letters"})
"""Names that a stream cannot use for its silver tables."""


class FieldType(Enum):
    """The JSON types of a contract's fields. They are strict: "12.5" is not a number.

    LONG is a 64-bit integer. It may have a fraction of zeros, such as 1.0, but no exponent, such as 1e3.
    DECIMAL is a number that fits in decimal(38,9) exactly. JSON is any value. A JSON string is stored without
    quotes unless it reads like JSON itself; any other value is stored as JSON text (`messages.json_text`).
    """

    STRING = "string"
    LONG = "long"
    DOUBLE = "double"
    DECIMAL = "decimal"
    BOOLEAN = "boolean"
    JSON = "json"


_NUMBERS = {FieldType.LONG, FieldType.DOUBLE, FieldType.DECIMAL}


@dataclass(frozen=True)
class Field:
    r"""A field in a record, with its JSON path, its column in silver and its type.

    A dot in `name` descends into an object, as in meta.dt; `a\.b` is the single field a.b. A record is
    invalid if a required field is absent, null or (for a string) empty. An optional field that is absent or
    null is null in silver. A field is absent if its parent object is absent or null. If the parent is neither
    an object nor null, the field has the wrong type.

    scale            decimal places, 0 to 9, to which a DECIMAL is rounded half up; None: it must fit exactly
    accepts_numbers  a STRING may also be an integer of at most 38 digits, which is stored as its digits: 17
                     and 17.0 as 17
    accepts_text     a LONG, DOUBLE or DECIMAL may also be a string that contains a JSON number: "17" is 17
    """

    name: str
    column: str
    type: FieldType
    required: bool = True
    scale: int | None = None
    accepts_numbers: bool = False
    accepts_text: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for a malformed path or an option that the type does not support."""
        json_path.names_of(self.name)
        is_decimal = self.type is FieldType.DECIMAL
        if self.scale is not None and not (is_decimal and 0 <= self.scale <= MOST_PLACES):
            raise ValueError(
                f"field {self.name}: scale is {self.scale}; expected 0 to {MOST_PLACES}, with type decimal"
            )
        if self.accepts_numbers and self.type is not FieldType.STRING:
            raise ValueError(
                f"field {self.name}: accepts_numbers requires type string, not {self.type.value}"
            )
        if self.accepts_text and self.type not in _NUMBERS:
            raise ValueError(
                f"field {self.name}: accepts_text requires type long, double or decimal, not "
                f"{self.type.value}"
            )

    @property
    def path(self) -> tuple[str, ...]:
        """The names on the path to the field."""
        return json_path.names_of(self.name)


@dataclass(frozen=True)
class KeyForm:
    """The encoding of a deletion's Kafka key, such as `json:id`.

    kind  the part before the colon
    path  the names on the path to the id within the key; empty: the key itself is the id
    """

    kind: Literal["text", "json", "long", "int", "avro"]
    path: tuple[str, ...] = ()

    @classmethod
    def of(cls, written: str) -> KeyForm:
        """Parse a key form. For any other text, raises a ValueError that lists the known forms."""
        kind, colon, path = written.partition(":")
        if kind in {"json", "avro"} and (path or not colon):
            return cls(cast('Literal["json", "avro"]', kind), json_path.names_of(path) if path else ())
        if kind in {"text", "long", "int"} and not colon:
            return cls(cast('Literal["text", "long", "int"]', kind))
        raise ValueError(
            f"deletion_key {written!r} is not a key form; expected text, json, json:FIELD, long, int, "
            "avro or avro:FIELD"
        )


@dataclass(frozen=True)
class Mark:
    """The field and value that mark a record as a deletion, such as `op=d`.

    The value is text, an integer, true or false; `true` also matches the text "true".
    """

    name: str
    value: str

    @classmethod
    def of(cls, written: str) -> Mark:
        """Parse a mark. Raises ValueError for text that is not FIELD=VALUE."""
        name, _, value = written.partition("=")
        if not name or not value:
            raise ValueError(f"deleted_if {written!r} is not FIELD=VALUE, such as op=d")
        json_path.names_of(name)
        return cls(name, value)

    @property
    def path(self) -> tuple[str, ...]:
        """The names on the path to the field."""
        return json_path.names_of(self.name)


TimeUnit = Literal["s", "ms", "us", "ns"]


@dataclass(frozen=True)
class Contract:
    """The fields of a JSON record, and its event time.

    event_time       the path to the event-time field, written like a Field's name
    event_time_unit  the unit of a numeric event time, counted since the epoch; in "s" the number may have a
                     fraction, and in "us" and "ns" it may also be a string of digits
    event_time_zone  the IANA time zone of ISO 8601 strings without an offset; None: an offset is required
    tombstone        the field that gets the Kafka key of a record without a value; the record's other fields
                     are null. None: such a record is invalid

    The event time is a number, or a string in ISO 8601 or RFC 2822. If it is absent or null, the Kafka
    record's timestamp is used.
    """

    fields: tuple[Field, ...]
    event_time: str = "timestamp"
    tombstone: str | None = None
    event_time_unit: TimeUnit = "ms"
    event_time_zone: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a malformed path, an unknown unit or an unknown time zone."""
        json_path.names_of(self.event_time)
        if self.event_time_unit not in get_args(TimeUnit):
            units = ", ".join(get_args(TimeUnit))
            raise ValueError(f"event_time_unit {self.event_time_unit!r} is not one of {units}")
        if self.event_time_zone is not None and not is_zone(self.event_time_zone):
            raise ValueError(f"event_time_zone {self.event_time_zone!r} is not an IANA time zone")

    @property
    def event_time_path(self) -> tuple[str, ...]:
        """The names on the path to the event time."""
        return json_path.names_of(self.event_time)

    @property
    def outermost_names(self) -> tuple[str, ...]:
        """The record's top-level fields that contain the contract's fields, each listed once."""
        paths = (*(field.path for field in self.fields), self.event_time_path)
        return tuple(dict.fromkeys(path[0] for path in paths))
