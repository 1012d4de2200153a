"""Records for streams of any kind: topic, fields, event time, and default column and topic names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from lakehouse.common.record_lines import RecordFormat
from lakehouse.streams.definition import Contract, Field, FieldType, Rule, Source, TimeUnit, header_of

_WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+")

Named = str | Field
"""A field in the records: its JSON name, or a Field, which also determines the column and type."""


@dataclass(frozen=True)
class Records:
    """The records in a topic, apart from the fields that are arguments of the stream's kind.

    `also` lists additional fields to keep in silver. `event_time` is the field with the event time; its unit
    and zone are as in a Contract. `rules` returns the validation rules. `table` is the name of the bronze and
    silver tables, by default the stream's name. `unique_by` and `sequence_by` are as in a Source; fields that
    they name are added. `deletion_key` and `deleted_if` define how a record deletes an id, as in a Source.
    `format` is the records' encoding.
    """

    topic: str
    event_time: str = "timestamp"
    event_time_unit: TimeUnit = "ms"
    event_time_zone: str | None = None
    also: tuple[Field, ...] = ()
    rules: Callable[[], tuple[Rule, ...]] = tuple
    table: str | None = None
    unique_by: str | None = None
    sequence_by: str | None = None
    deletion_key: str = "text"
    deleted_if: str | None = None
    format: RecordFormat = "json"


def source_of(
    stream: str,
    records: str | Records,
    fields: Iterable[Field],
    *,
    rules: Callable[[], tuple[Rule, ...]] = tuple,
    tombstone: str | None = None,
) -> Source:
    """Return a stream's source with the fields and rules of its kind, and those declared in `records`."""
    given = Records(records) if isinstance(records, str) else records
    time = (given.event_time, tombstone, given.event_time_unit, given.event_time_zone)
    contract = Contract((*fields, *given.also), *time)
    table = given.table or column_of(stream)
    source = Source(given.topic, table, contract, lambda: (*rules(), *given.rules()), format=given.format)
    with_ids = identified(source, given.unique_by, given.sequence_by)
    return replace(with_ids, deletion_key=given.deletion_key, deleted_if=given.deleted_if)


def identified(source: Source, unique_by: str | None, sequence_by: str | None) -> Source:
    """Return the source with an id and a sequence for its records, adding any missing fields.

    An added id is a string, which can be written as an integer. An added sequence is an integer. Raises
    ValueError for an id or sequence field that is optional or of another type.
    """
    known = {field.name: field for field in source.contract.fields}
    more = []
    for name, type_ in ((unique_by, FieldType.STRING), (sequence_by, FieldType.LONG)):
        if name is None or header_of(name):
            continue
        field = known.get(name)
        if field is None:
            is_text = type_ is FieldType.STRING
            more.append(Field(name, column_of(name), type_, accepts_numbers=is_text))
        elif field.type not in {type_, FieldType.LONG} or not field.required:
            raise ValueError(
                f"field {name}: an id or sequence must be a required field of type {type_.value}"
            )
    contract = replace(source.contract, fields=(*source.contract.fields, *more))
    return replace(source, contract=contract, unique_by=unique_by, sequence_by=sequence_by)


def field_of(name: Named, type_: FieldType, *, required: bool = True) -> Field:
    """Return a field with this name and type. A Field is returned unchanged."""
    return Field(name, column_of(name), type_, required) if isinstance(name, str) else name


def fields_of(names: Named | Sequence[Named], type_: FieldType) -> tuple[Field, ...]:
    """Return fields for one or more names."""
    several = (names,) if isinstance(names, str | Field) else names
    return tuple(field_of(name, type_) for name in several)


def value_of(name: Named, type_: FieldType) -> Field:
    """Return the field that a kind aggregates. Raises ValueError for an optional field.

    These kinds cannot aggregate a row without a value.
    """
    found = field_of(name, type_)
    if not found.required:
        raise ValueError(
            f"field {found.name} is the value but optional: make it required, so that records without it "
            "become dead letters, or use the kind sql, whose aggregates ignore nulls"
        )
    return found


def keys_of(names: Named | Sequence[Named], taken: Iterable[str]) -> tuple[Field, ...]:
    """Return the fields of a row's key. Raises ValueError as `require_keys` and `refuse_columns` do."""
    found = fields_of(names, FieldType.STRING)
    require_keys(found, "make it required")
    refuse_columns(found, taken)
    return found


def refuse_columns(fields: Iterable[Field], taken: Iterable[str]) -> None:
    """Raise ValueError for a field whose column clashes with one of the kind's internal columns."""
    names = set(taken)
    for field in fields:
        if field.column.lower() in names:
            raise ValueError(
                f"field {field.name}: this kind already has a column {field.column}; assign the field "
                "to a different column"
            )


def require_keys(fields: Iterable[Field], way_out: str) -> None:
    """Raise ValueError for an optional key field, which could leave a row without a key."""
    for field in fields:
        if not field.required:
            raise ValueError(f"field {field.name} is part of the key but optional: {way_out}")


def optional(field: Field) -> Field:
    """Return an optional copy of the field."""
    return replace(field, required=False)


def column_of(name: str) -> str:
    """Return the column for a JSON name: `serviceId` and `service-id` become service_id."""
    return "_".join(_WORDS.findall(name)).lower()


def message_name_of(field: Field) -> str:
    """Return a field's name in messages. For a nested field, the name is derived from its column."""
    return field.path[0] if len(field.path) == 1 else json_name_of(field.column)


def json_name_of(column: str) -> str:
    """Return the JSON name for a column: total_amount becomes totalAmount."""
    first, *others = column.split("_")
    return first + "".join(map(str.capitalize, others))


def pinned_name(stream: str, setting: str) -> str:
    """Return the full key in `lakehouse.toml` for an argument that determines a table's rows."""
    return f"streams.{stream}.{setting}"


def topic_of(to: str | None, by_default: str) -> str | None:
    """Return the topic for rows: `to`, or the default name with hyphens if `to` is empty. None: no topic."""
    return None if to is None else to or by_default.replace("_", "-")
