"""Expectations for all silver tables: records that meet their contract, each with a row in bronze."""

from __future__ import annotations

from great_expectations.expectations import Expectation

from lakehouse.streams.contract import COORDINATES
from lakehouse.streams.definition import Contract, FieldType, Source
from lakehouse.streams.suites import fresh, no_rows, required, rows, unique


def accepted(source: Source) -> list[Expectation]:
    """Expect clean records to have all required fields, a bronze row, and no event time far in the future."""
    fields = [
        field
        for field in source.contract.fields
        if field.required and _is_in_every_row(source.contract, field.name)
    ]
    texts = [field.column for field in fields if field.type is FieldType.STRING]
    not_empty = " AND ".join(f"`{text}` <> ''" for text in texts)
    return [
        unique(COORDINATES),
        required(COORDINATES, (*(field.column for field in fields), "event_time", *COORDINATES)),
        *([rows(COORDINATES, "required strings are not empty", not_empty)] if texts else []),
        no_rows(
            "no event time is beyond future_tolerance",
            "SELECT topic, partition, offset, event_time FROM {batch} "
            "WHERE event_time > (SELECT timestampadd(SECOND, future_tolerance_s, now) FROM limits)",
        ),
        no_rows(
            "every row has a bronze row",
            "SELECT topic, partition, offset FROM {batch} "
            f"LEFT ANTI JOIN bronze_{source.table} USING (topic, partition, offset)",
        ),
        fresh("event_time", within="24h"),
    ]


def _is_in_every_row(contract: Contract, name: str) -> bool:
    """Return whether every row has this required field. Tombstones have only the tombstone field."""
    return contract.tombstone in (None, name)
