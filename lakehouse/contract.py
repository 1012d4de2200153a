"""What a source's records must be: their fields, their types, and which of them is the event time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, cast, get_args
from zoneinfo import ZoneInfo

from lakehouse.messages import json_path

MOST_PLACES = 9
"""Of a decimal, after its point."""
COORDINATES = ("topic", "partition", "offset")
"""The columns that say where a record lies in Kafka: the key of bronze and of silver."""
OWN_TIME = "own_time"
"""The column of silver whose greatest value is the front; nothing else moves the front."""
SILVER_ADDS = ("event_time", OWN_TIME, *COORDINATES, "kafka_timestamp", "ingested_at", "admitted")
"""The columns that silver has beside a contract's."""
OWN_TABLES = frozenset({"dead_letters"})
"""The names of silver tables that no stream can have."""


class FieldType(Enum):
    """The JSON types that a contract can require; they are strict ("12.5" is not a number).

    LONG is a whole number of 64 bits, written without a fraction or an exponent: 1.0 and 1e3 are none.
    DECIMAL is a number that decimal(38,9) holds exactly. JSON is any value. A string is kept as it is;
    anything else, and a string that itself reads like JSON, is kept as JSON text (`messages.json_text`).
    """

    STRING = "string"
    LONG = "long"
    DOUBLE = "double"
    DECIMAL = "decimal"
    BOOLEAN = "boolean"
    JSON = "json"


@dataclass(frozen=True)
class Field:
    r"""One field of a record: its path in the JSON, its column in silver and its type.

    A dot in `name` descends into an object: meta.dt; `a\.b` is the field a.b. A required field that is
    absent, null or (for a string) empty makes the record invalid; an optional one is null in silver where it
    is absent or null. A field in an absent object, or in null, is absent; one in anything else that is no
    object is of the wrong type.

    scale            a DECIMAL is rounded half up to so many places, 0 to 9; null: it has to be exact
    accepts_numbers  a STRING may also be a whole number of at most 38 digits, which is kept as its digits
    """

    name: str
    column: str
    type: FieldType
    required: bool = True
    scale: int | None = None
    accepts_numbers: bool = False

    def __post_init__(self) -> None:
        """Refuse, with ValueError, a name that is no path and options that the type does not have."""
        json_path.names_of(self.name)
        is_decimal = self.type is FieldType.DECIMAL
        if self.scale is not None and not (is_decimal and 0 <= self.scale <= MOST_PLACES):
            raise ValueError(f"field {self.name}: scale is for DECIMAL, from 0 to {MOST_PLACES}")
        if self.accepts_numbers and self.type is not FieldType.STRING:
            raise ValueError(f"field {self.name}: accepts_numbers is for STRING")

    @property
    def path(self) -> tuple[str, ...]:
        """The names that lead to the field."""
        return json_path.names_of(self.name)


@dataclass(frozen=True)
class KeyForm:
    """How the Kafka key of a deletion is written, such as `json:id`.

    kind  the part before the colon
    path  the names that lead to the id within the key; none: the key is the id
    """

    kind: Literal["text", "json", "long", "int", "avro"]
    path: tuple[str, ...] = ()

    @classmethod
    def of(cls, written: str) -> KeyForm:
        """Read a form. Raises ValueError, which lists the forms, for what is none."""
        kind, colon, path = written.partition(":")
        if kind in {"json", "avro"} and (path or not colon):
            return cls(cast('Literal["json", "avro"]', kind), json_path.names_of(path) if path else ())
        if kind in {"text", "long", "int"} and not colon:
            return cls(cast('Literal["text", "long", "int"]', kind))
        raise ValueError(
            f"deletion_key {written!r} is no form of a key; the forms are text, json, json:FIELD, long, int, "
            "avro and avro:FIELD"
        )


@dataclass(frozen=True)
class Mark:
    """What marks a record with a value as a deletion: `op=d`, a field and its value.

    The value is text, a whole number, true or false; `true` stands for the text "true" too.
    """

    name: str
    value: str

    @classmethod
    def of(cls, written: str) -> Mark:
        """Read a mark. Raises ValueError for what is none."""
        name, _, value = written.partition("=")
        if not name or not value:
            raise ValueError(f"deleted_if {written!r} is not FIELD=VALUE, such as op=d")
        json_path.names_of(name)
        return cls(name, value)

    @property
    def path(self) -> tuple[str, ...]:
        """The names that lead to the field."""
        return json_path.names_of(self.name)


TimeUnit = Literal["s", "ms", "us", "ns"]


@dataclass(frozen=True)
class Contract:
    """The fields of a JSON record, and the field with its event time.

    event_time       the field's name, a path as those of fields
    event_time_unit  what a number counts since the epoch; with "s" it may have a fraction, and with "us" and
                     "ns" it may be text of digits
    event_time_zone  the IANA name of the zone that ISO 8601 without an offset is of; null: it has an offset
    tombstone        the field that takes the key of a Kafka record without a value, the others being null;
                     null: such a record is invalid

    The event time is such a number or an ISO 8601 string; if it is absent or null, the Kafka record's
    timestamp is used.
    """

    fields: tuple[Field, ...]
    event_time: str = "timestamp"
    tombstone: str | None = None
    event_time_unit: TimeUnit = "ms"
    event_time_zone: str | None = None

    def __post_init__(self) -> None:
        """Refuse, with ValueError, what is no path, no unit and no time zone."""
        json_path.names_of(self.event_time)
        if self.event_time_unit not in get_args(TimeUnit):
            raise ValueError(f"event_time_unit {self.event_time_unit!r} is none of {get_args(TimeUnit)}")
        if self.event_time_zone is not None:
            try:
                ZoneInfo(self.event_time_zone)
            except (KeyError, OSError, ValueError) as error:
                raise ValueError(
                    f"event_time_zone {self.event_time_zone!r} is not an IANA time zone"
                ) from error

    @property
    def event_time_path(self) -> tuple[str, ...]:
        """The names that lead to the event time."""
        return json_path.names_of(self.event_time)

    @property
    def outermost_names(self) -> tuple[str, ...]:
        """The fields of the record itself in which everything lies, each once."""
        paths = (*(field.path for field in self.fields), self.event_time_path)
        return tuple(dict.fromkeys(path[0] for path in paths))
